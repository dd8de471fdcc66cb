"""TensorFlow and PyTorch as the judges of the optimizers: both get the same gradients for 200 steps.

tf.compat.v1.train's seven optimizers, its decays and its label smoothing; torch.optim's AdamW, Muon, and SGD with Nesterov
and L2; Lion as written here from its paper, in float64; NorMuon as written here from its paper around torch's iteration.

usage: optimizer_oracle.py OPTIMIZER_DRIVER [unittest arguments]
"""
import os
import pathlib
import subprocess
import sys
import unittest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
from cpu_torch import torch

DRIVER = sys.argv.pop(1)
STEPS, STEPS_PER_EPOCH = 200, 30
EXTENTS = (300, 13)
MATRICES = ("12x20", 9, "40x8", "16x16", 5)
v1 = tf.compat.v1.train


def sizes_of(extent):
    return [int(size) for size in str(extent).split("x")]


def samples(extents=EXTENTS):
    """Values [N] and gradients [STEPS, N], of several magnitudes, with zeros among them."""
    random = np.random.default_rng(7)
    num = sum(int(np.prod(sizes_of(extent))) for extent in extents)
    values = random.normal(size=num).astype(np.float32)
    scales = 10 ** random.uniform(-3, 0.5, size=num)
    grads = random.normal(size=(STEPS, num)) * scales * (random.random((STEPS, num)) > 0.1)
    return values, grads.astype(np.float32)


def driven(section, extents=EXTENTS):
    """Rates [STEPS] and values [STEPS, N] of Lockstep's optimizer."""
    values, grads = samples(extents)
    done = subprocess.run([DRIVER, section, ",".join(map(str, extents)), str(STEPS_PER_EPOCH), str(STEPS)],
                          input=values.tobytes() + grads.tobytes(), capture_output=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode())
    num_rate_bytes = 8 * STEPS
    rates = np.frombuffer(done.stdout[:num_rate_bytes])
    return rates, np.frombuffer(done.stdout[num_rate_bytes:], np.float32).reshape(STEPS, -1)


def in_tensorflow(make, weight_decay=0.0):
    """Values [STEPS, N] of make(rate), a tf.compat.v1.train optimizer."""
    values, grads = samples()
    variable = tf.Variable(values)
    optimizer = make()
    path = []
    for grad in grads:
        optimizer.apply_gradients([(tf.constant(grad) + weight_decay * variable, variable)])
        path.append(variable.numpy())
    return np.stack(path)


def in_torch(make):
    values, grads = samples()
    parameter = torch.nn.Parameter(torch.from_numpy(values.copy()))
    optimizer = make([parameter])
    path = []
    for grad in grads:
        parameter.grad = torch.from_numpy(grad.copy())
        optimizer.step()
        path.append(parameter.detach().numpy().copy())
    return np.stack(path)


def by_parameter(step):
    """Values of step(w, g, state, t), which gives the new w, for each parameter by itself in float64."""
    values, grads = samples()
    paths, begin = [], 0
    for extent in EXTENTS:
        w, state, path = values[begin:begin + extent].astype(np.float64), {}, []
        for t, grad in enumerate(grads[:, begin:begin + extent].astype(np.float64), 1):
            w = step(w, grad, state, t)
            path.append(w)
        paths.append(np.stack(path))
        begin += extent
    return np.concatenate(paths, axis=1)


def dynamic_map(is_positive):
    numbers = [0.0, 1.0]
    for decade in range(7):
        cells = (2 if is_positive else 1) << decade
        centers = 10.0 ** (decade - 6) * (0.1 + 0.9 * (np.arange(cells) + 0.5) / cells)
        numbers += [*centers] if is_positive else [*centers, *-centers]
    return np.sort(numbers)


SIGNED_MAP, POSITIVE_MAP = dynamic_map(False), dynamic_map(True)


def in_8_bits(values, numbers):
    """Each number as that of the map which is nearest; none that is positive becomes 0 where all are."""
    rounded = np.zeros_like(values)
    for begin in range(0, len(values), 256):
        block = values[begin:begin + 256]
        scale = block[np.argmax(np.abs(block))]
        if scale == 0:
            continue
        nearest = numbers[np.abs(block[:, None] / scale - numbers).argmin(axis=1)]
        if numbers is POSITIVE_MAP:
            nearest = np.where((block > 0) & (nearest == 0), numbers[1], nearest)
        rounded[begin:begin + 256] = nearest * scale
    return rounded


def lerped(mean, x, share):
    return mean + share * (x - mean)


class NorMuon(torch.optim.Optimizer):
    """Li et al. 2025, algorithm 1: rows of the orthogonalised moment get even lengths."""

    def __init__(self, params, rate, beta2, decay):
        super().__init__(params, {})
        self.rate, self.beta2, self.decay = rate, beta2, decay

    @torch.no_grad()
    def step(self):
        from torch.optim._muon import _zeropower_via_newtonschulz
        for w in self.param_groups[0]["params"]:
            state = self.state[w]
            m, v = state.setdefault("m", torch.zeros_like(w)), state.setdefault("v", torch.zeros(len(w)))
            m.lerp_(w.grad, 0.05)
            o = _zeropower_via_newtonschulz(w.grad.lerp(m, 0.95), (3.4445, -4.7750, 2.0315), 5, 1e-7).float()
            v.lerp_((o * o).mean(1), 1 - self.beta2)
            o /= v.sqrt()[:, None] + 1e-8
            w.mul_(1 - self.rate * self.decay).add_(o, alpha=-0.2 * self.rate * w.numel() ** 0.5 / o.norm().item())


def in_torch_by_kind(make_of_matrices, make_of_others):
    """Values [STEPS, N] of MATRICES with an optimizer for matrices and one for all else."""
    values, grads = samples(MATRICES)
    sizes = [sizes_of(extent) for extent in MATRICES]
    cuts = np.cumsum([int(np.prod(size)) for size in sizes])[:-1]
    params = [torch.nn.Parameter(torch.from_numpy(part.reshape(size).copy())) for part, size in zip(np.split(values, cuts), sizes)]
    optimizers = [make_of_matrices([one for one in params if one.dim() == 2]), make_of_others([one for one in params if one.dim() == 1])]
    path = []
    for grad in grads:
        for one, part, size in zip(params, np.split(grad, cuts), sizes):
            one.grad = torch.from_numpy(part.reshape(size).copy())
        for optimizer in optimizers:
            optimizer.step()
        path.append(np.concatenate([one.detach().numpy().ravel() for one in params]))
    return np.stack(path)


class InTensorFlow(unittest.TestCase):
    def compare(self, section, expected, tolerance=1e-5):
        worst = np.abs(driven(section)[1] - expected).max()
        self.assertLess(worst, tolerance, section)
        self.assertGreater(np.abs(expected[-1] - samples()[0]).max(), 0.01, "nothing moved: nothing was compared")

    def test_the_seven_optimizers(self):
        for section, make in (
                ("{type: sgd, learning_rate: 0.01}", lambda: v1.GradientDescentOptimizer(0.01)),
                ("{type: momentum, learning_rate: 0.01}", lambda: v1.MomentumOptimizer(0.01, 0.9)),
                ("{type: momentum, learning_rate: 0.01, momentum: 0.8, nesterov: true}",
                 lambda: v1.MomentumOptimizer(0.01, 0.8, use_nesterov=True)),
                ("{type: adam, learning_rate: 0.01, opt_epsilon: 1.0}", lambda: v1.AdamOptimizer(0.01, epsilon=1.0)),
                ("{type: adam, learning_rate: 0.01, adam_beta1: 0.8, adam_beta2: 0.99, opt_epsilon: 1.0e-4}",
                 lambda: v1.AdamOptimizer(0.01, 0.8, 0.99, epsilon=1e-4)),
                ("{type: adadelta, learning_rate: 1.0}", lambda: v1.AdadeltaOptimizer(1.0)),
                ("{type: adadelta, learning_rate: 0.5, adadelta_rho: 0.8, opt_epsilon: 1.0}",
                 lambda: v1.AdadeltaOptimizer(0.5, 0.8, 1.0)),
                ("{type: adagrad, learning_rate: 0.01}", lambda: v1.AdagradOptimizer(0.01)),
                ("{type: adagrad, learning_rate: 0.01, adagrad_initial_accumulator_value: 3}",
                 lambda: v1.AdagradOptimizer(0.01, 3.0)),
                ("{type: rmsprop, learning_rate: 0.001}", lambda: v1.RMSPropOptimizer(0.001, momentum=0.9)),
                ("{type: rmsprop, learning_rate: 0.01, rmsprop_decay: 0.7, rmsprop_momentum: 0, opt_epsilon: 1.0}",
                 lambda: v1.RMSPropOptimizer(0.01, 0.7, epsilon=1.0)),
                ("{type: ftrl, learning_rate: 0.01}", lambda: v1.FtrlOptimizer(0.01)),
                ("{type: ftrl, learning_rate: 0.05, ftrl_l1: 0.02, ftrl_l2: 0.1, ftrl_initial_accumulator_value: 0.5}",
                 lambda: v1.FtrlOptimizer(0.05, initial_accumulator_value=0.5, l1_regularization_strength=0.02,
                                          l2_regularization_strength=0.1)),
                ("{type: ftrl, learning_rate: 0.05, ftrl_learning_rate_power: -0.3, ftrl_l1: 0.01}",
                 lambda: v1.FtrlOptimizer(0.05, learning_rate_power=-0.3, l1_regularization_strength=0.01))):
            with self.subTest(section):
                self.compare(section, in_tensorflow(make))

    def test_l2(self):
        self.compare("{type: rmsprop, learning_rate: 0.001, opt_epsilon: 1.0, weight_decay: 0.1}",
                     in_tensorflow(lambda: v1.RMSPropOptimizer(0.001, momentum=0.9, epsilon=1.0), 0.1))

    def test_decays(self):
        def rates(name, **arguments):
            return [float(getattr(v1, name)(0.1, step, **arguments)()) for step in range(STEPS)]
        for section, expected in (
                ("learning_rate_decay_type: exponential",
                 rates("exponential_decay", decay_steps=60, decay_rate=0.94, staircase=True)),
                ("learning_rate_decay_type: exponential, staircase: false, num_epochs_per_decay: 1.5, learning_rate_decay_factor: 0.8",
                 rates("exponential_decay", decay_steps=45, decay_rate=0.8)),
                ("learning_rate_decay_type: polynomial", rates("polynomial_decay", decay_steps=STEPS)),
                ("learning_rate_decay_type: polynomial, num_epochs_per_decay: 2, power: 2, end_learning_rate: 0.01",
                 rates("polynomial_decay", decay_steps=60, end_learning_rate=0.01, power=2.0)),
                ("learning_rate_decay_type: polynomial, decay_steps: 70", rates("polynomial_decay", decay_steps=70)),
                ("learning_rate_decay_type: cosine, decay_steps: 150", rates("cosine_decay", decay_steps=150)),
                ("learning_rate_decay_type: cosine, decay_steps: 150, end_learning_rate: 0.02",
                 rates("cosine_decay", decay_steps=150, alpha=0.2))):
            with self.subTest(section):
                found = driven(f"{{type: sgd, learning_rate: 0.1, {section}}}")[0]
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)  # TensorFlow has them in float32

    def test_a_trapezoid(self):
        found = driven("{type: sgd, learning_rate: 0.1, learning_rate_decay_type: wsd, warmup_steps: 20, decay_steps: 50, end_learning_rate: 0.01}")[0]
        np.testing.assert_allclose(found, np.interp(np.arange(STEPS), [0, 20, 150, 200], [0, 0.1, 0.1, 0.01]), rtol=1e-12)

    def test_label_smoothing(self):
        random = np.random.default_rng(3)
        logits, targets = random.normal(size=(40, 7)).astype(np.float32), random.integers(0, 7, 40)
        for smoothing in (0.0, 0.1, 0.5):
            found = subprocess.run([DRIVER, "loss", str(smoothing), "40", "7"], input=logits.tobytes() + targets.tobytes(),
                                   capture_output=True, check=True).stdout
            expected = tf.compat.v1.losses.softmax_cross_entropy(tf.one_hot(targets, 7), logits, label_smoothing=smoothing)
            self.assertAlmostEqual(np.frombuffer(found)[0], float(expected), places=5)


class InTorch(unittest.TestCase):
    compare = InTensorFlow.compare

    def test_adamw(self):
        self.compare("{type: adamw, learning_rate: 0.01, weight_decay: 0.1, opt_epsilon: 1.0e-3}",
                     in_torch(lambda params: torch.optim.AdamW(params, 0.01, weight_decay=0.1, eps=1e-3)))

    def test_muon(self):
        adamw = "adamw_learning_rate: 0.002, opt_epsilon: 1.0e-3, weight_decay: 0.1"
        for section, make in (
                ("", lambda params: torch.optim.Muon(params, 0.02, weight_decay=0.1)),
                (", nesterov: false, momentum: 0.9, ns_steps: 3, adjust_lr_fn: match_rms_adamw",
                 lambda params: torch.optim.Muon(params, 0.02, 0.1, 0.9, nesterov=False, ns_steps=3, adjust_lr_fn="match_rms_adamw")),
                (", normuon_beta2: 0.95", lambda params: NorMuon(params, 0.02, 0.95, 0.1))):
            with self.subTest(section):
                expected = in_torch_by_kind(make, lambda params: torch.optim.AdamW(params, 0.002, weight_decay=0.1, eps=1e-3))
                found = driven(f"{{type: muon, learning_rate: 0.02, {adamw}{section}}}", MATRICES)[1]
                worst = np.abs(found - expected).max(0)
                is_of_matrix = np.concatenate([np.full(np.prod(size), len(size) == 2) for size in map(sizes_of, MATRICES)])
                self.assertLess(worst[is_of_matrix].max(), 1e-5)
                self.assertLess(worst.max(), 2e-5, "AdamW, whose values are larger here than in its own test")
                self.assertGreater(np.abs(expected[-1] - samples(MATRICES)[0]).max(), 0.01)

    def test_multipliers_and_a_schedule_of_decay(self):
        """Parameter groups of torch, whose decay a loop sets along a cosine before each step."""
        values, grads = samples()
        cuts = np.cumsum(EXTENTS)[:-1]
        params = [torch.nn.Parameter(torch.from_numpy(part.copy())) for part in np.split(values, cuts)]
        groups = [{"params": [one], "lr": 0.01 * factor} for one, factor in zip(params, (1, 0.25))]
        optimizer, path = torch.optim.AdamW(groups, eps=1e-3), []
        for step, grad in enumerate(grads):
            for one, part in zip(params, np.split(grad, cuts)):
                one.grad = torch.from_numpy(part.copy())
            for group in optimizer.param_groups:
                group["weight_decay"] = 0.4 + (0.04 - 0.4) * (1 + np.cos(np.pi * step / STEPS)) / 2
            optimizer.step()
            path.append(np.concatenate([one.detach().numpy() for one in params]))
        self.compare("{type: adamw, learning_rate: 0.01, opt_epsilon: 1.0e-3, weight_decay: 0.04, end_weight_decay: 0.4, "
                     "learning_rate_multipliers: {p1: 0.25, 're:p.*': 9, p0: 1}}", np.stack(path))

    def test_moments_in_8_bits(self):
        """Dettmers et al. 2022 in float64: blocks of 256, whose largest element is the scale."""
        rate, beta1, beta2, decay = 0.01, 0.9, 0.999, 0.1

        def adamw(w, g, state, t):
            m = lerped(state.get("m", np.zeros_like(w)), g, 1 - beta1)
            v = lerped(state.get("v", np.zeros_like(w)), g * g, 1 - beta2)
            state["m"], state["v"] = in_8_bits(m, SIGNED_MAP), in_8_bits(v, POSITIVE_MAP)
            return w * (1 - rate * decay) - rate * m / (1 - beta1 ** t) / (np.sqrt(v / (1 - beta2 ** t)) + 1e-3)

        def momentum(w, g, state, t):
            m = 0.9 * state.get("m", np.zeros_like(w)) + g
            state["m"] = in_8_bits(m, SIGNED_MAP)
            return w - rate * m
        for section, step in (("{type: adamw, opt_epsilon: 1.0e-3, weight_decay: 0.1", adamw), ("{type: momentum", momentum)):
            expected = by_parameter(step)
            found = driven(section + f", learning_rate: {rate}, state_dtype: int8}}")[1]
            way = np.abs(expected - samples()[0]).max(axis=0)
            apart = np.abs(found - expected) / (way + 1e-6)
            # A number half-way between two of the map may go to the other one in float32.
            self.assertLess(np.median(apart[-1]), 1e-5, section)
            self.assertLess(np.quantile(apart, 0.99), 1e-2, section)

    def test_momentum_with_l2(self):
        self.compare("{type: momentum, learning_rate: 0.01, nesterov: true, weight_decay: 0.1}",
                     in_torch(lambda params: torch.optim.SGD(params, 0.01, 0.9, nesterov=True, weight_decay=0.1)))

    def test_lion(self):
        """Chen et al. 2023, algorithm 2."""
        rate, beta1, beta2, decay = 0.001, 0.9, 0.99, 0.1

        def step(w, g, state, t):
            m = state.get("m", np.zeros_like(w))
            u = np.sign(beta1 * m + (1 - beta1) * g)
            state["m"] = beta2 * m + (1 - beta2) * g
            return w - rate * (u + decay * w)
        self.compare("{type: lion, learning_rate: 0.001, weight_decay: 0.1}", by_parameter(step))


if __name__ == "__main__":
    unittest.main()
