"""PyTorch as the judge of single steps: pruning, learning rates and fake quantization of the digits network.

Each of 200 steps starts from this side's weights, on both sides; after it, what Lockstep made of it must be within 1e-6 of
what PyTorch made of it, masks must be equal. What a recipe means is written down here a second time, with PyTorch's own
parts: torch.nn.functional, torch.optim.SGD, torch.optim.lr_scheduler, torch.fake_quantize_*.

usage: torch_oracle.py RECAL_TORCH_DRIVER [unittest arguments]
"""
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from cpu_torch import torch
from torch.ao.quantization import observer as observers
F = torch.nn.functional

DRIVER = sys.argv.pop(1)
NUM_STEPS, STEPS_PER_EPOCH, BATCH = 200, 10, 16
LEARNING_RATE, MOMENTUM, TOLERANCE = 0.05, 0.9, 1e-6
NUM_LAYERS = 4


class Driver:
    """Lockstep: one step at a time, from a given state."""

    def __init__(self, recipe, folder):
        path = pathlib.Path(folder) / "recipe.yaml"
        path.write_text("version: 1.0.0\nmodifiers:\n" + "".join(f"  - {item}\n" for item in recipe))
        self.process = subprocess.Popen([DRIVER, path, str(STEPS_PER_EPOCH), str(LEARNING_RATE)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.shapes = {}
        for item in self.process.stdout.readline().decode().strip().split(";")[:-1]:
            name, *extents = item.split()
            self.shapes[name] = [int(extent) for extent in extents]

    def __enter__(self):
        return self

    def __exit__(self, *fault):
        self.process.stdin.close()
        self.process.stdout.close()
        code = self.process.wait(timeout=10)
        assert fault[0] or code == 0, f"the driver ended with {code}"

    def read(self, shape, dtype=np.float32):
        count = math.prod(shape) * np.dtype(dtype).itemsize
        data = self.process.stdout.read(count)
        assert len(data) == count, "the driver has ended"
        return torch.from_numpy(np.frombuffer(data, dtype).reshape(shape).copy())

    def step(self, weights, momenta, inputs, targets):
        parts = [torch.tensor(len(targets)), *weights.values(), *momenta.values(), inputs, targets]
        self.process.stdin.write(b"".join(part.detach().numpy().tobytes() for part in parts))
        self.process.stdin.flush()
        rate, sparsity, loss = self.read([3], np.float64).tolist()
        return {"learning rate": rate, "target sparsity": sparsity, "loss": loss,
                "weights": {name: self.read(shape) for name, shape in self.shapes.items()},
                "kept": {name: self.read(shape) for name, shape in self.shapes.items()},
                "ranges": [self.read([2]) for _ in range(NUM_LAYERS)]}


class Network:
    """The digits network and its optimizer, as PyTorch has them. What a recipe adds, tests do to it from outside."""

    def __init__(self, shapes):
        generator = torch.Generator().manual_seed(3)
        self.weights = {name: torch.nn.Parameter((torch.rand(shape, generator=generator) - 0.5) / math.sqrt(shape[0]))
                        for name, shape in shapes.items()}
        self.optimizer = torch.optim.SGD(self.weights.values(), lr=LEARNING_RATE, momentum=MOMENTUM)
        self.input_hook = lambda layer, values: values
        self.weight_hook = lambda layer, values: values

    def momenta(self):
        return {name: self.optimizer.state[weight].get("momentum_buffer", torch.zeros_like(weight))
                for name, weight in self.weights.items()}

    def layer(self, number, name, values, compute):
        values = self.input_hook(number, values)
        return compute(values, self.weight_hook(number, self.weights[name + ".weight"]), self.weights[name + ".bias"])

    def forward(self, values):
        for number, stride in enumerate((1, 2, 2)):
            values = F.gelu(self.layer(number, f"blocks.{number}.conv", values,
                                       lambda *tensors: F.conv2d(*tensors, stride=stride, padding=1)))
        return self.layer(3, "classifier", values.flatten(1), F.linear)


def batch(step):
    """The same samples at every step but for their noise, so that weights and inputs grow as in training."""
    generator = torch.Generator().manual_seed(step)
    targets = torch.arange(BATCH) % 10
    pattern = torch.sin(torch.arange(64.0)[None] * (targets[:, None] + 1))
    return (pattern + torch.rand([BATCH, 64], generator=generator)).reshape(BATCH, 1, 8, 8), targets


def distance(wanted, found):
    """The largest difference of two numbers, tensors, lists or dicts of tensors."""
    if isinstance(wanted, dict):
        return max(distance(value, found[key]) for key, value in wanted.items())
    if isinstance(wanted, (list, tuple)):
        return max(distance(a, b) for a, b in zip(wanted, found, strict=True))
    wanted, found = (torch.as_tensor(values, dtype=torch.float64).detach() for values in (wanted, found))
    return (wanted - found).abs().max().item()


class Recipe:
    """Work of a recipe around a step of the network; facts() are compared in addition to loss, rate and weights."""
    items = []

    def before(self, network, step):
        pass

    def on_gradients(self, network):
        pass

    def after(self, network, step):
        pass

    def facts(self, step):
        return {}


def train(recipe):
    """NUM_STEPS steps on both sides; yields the facts of each step, ours and Lockstep's."""
    whole_run = "!EpochRangeModifier {start_epoch: 0.0, end_epoch: 20.0}"
    with tempfile.TemporaryDirectory() as folder, Driver([*recipe.items, whole_run], folder) as driver:
        network = Network(driver.shapes)
        for step in range(NUM_STEPS):
            inputs, targets = batch(step)
            answer = driver.step(network.weights, network.momenta(), inputs, targets)
            recipe.before(network, step)
            network.optimizer.zero_grad()
            loss = F.cross_entropy(network.forward(inputs), targets)
            loss.backward()
            recipe.on_gradients(network)
            network.optimizer.step()
            recipe.after(network, step)
            yield {"learning rate": network.optimizer.param_groups[0]["lr"], "loss": loss, "weights": network.weights,
                   **recipe.facts(step)}, answer


class Rate(Recipe):
    """`make` gives PyTorch's scheduler, which lives from epoch `start` on and steps once an epoch."""

    def __init__(self, lr_class, lr_kwargs, make, start=0):
        self.items = [f"!LearningRateModifier {{start_epoch: {start}.0, end_epoch: 20.0, lr_class: {lr_class}, "
                      f"lr_kwargs: {lr_kwargs}}}"]
        self.make, self.start, self.scheduler = make, start, None

    def before(self, network, step):
        if step == self.start * STEPS_PER_EPOCH:
            self.scheduler = self.make(network.optimizer)
        elif self.scheduler and step % STEPS_PER_EPOCH == 0:
            self.scheduler.step()


class GradualPruning(Recipe):
    """Cubic, set again every half epoch; nothing between."""
    START, END, EVERY, INIT, FINAL = 2.0, 16.0, 0.5, 0.05, 0.9
    items = [f"!GradualKSModifier {{params: __ALL__, init_sparsity: {INIT}, final_sparsity: {FINAL}, "
             f"start_epoch: {START}, end_epoch: {END}, update_frequency: {EVERY}}}"]

    def __init__(self):
        self.kept = {}

    def target(self, step):
        done = math.floor((step / STEPS_PER_EPOCH - self.START) / self.EVERY + 1e-9)
        if done < 0:
            return 0.0
        share = min(done * self.EVERY / (self.END - self.START), 1.0)
        return self.FINAL + (self.INIT - self.FINAL) * (1 - share) ** 3

    def before(self, network, step):
        if self.target(step) == self.target(step - 1):
            return
        for name, weight in network.weights.items():
            if weight.dim() < 2:
                continue
            num_pruned = math.floor(self.target(step) * weight.numel() + 0.5)
            smallest_first = torch.sort(weight.detach().abs().flatten(), stable=True).indices
            kept = torch.ones(weight.numel()).index_fill(0, smallest_first[:num_pruned], 0)
            self.kept[name] = kept.view_as(weight)
        self.after(network, step)

    def on_gradients(self, network):
        for name, kept in self.kept.items():
            network.weights[name].grad.mul_(kept)

    @torch.no_grad()
    def after(self, network, step):
        for name, kept in self.kept.items():
            network.weights[name].mul_(kept)

    def facts(self, step):
        return {"target sparsity": self.target(step), **({"kept": self.kept} if self.kept else {})}


class SecondOrder(GradualPruning):
    """The optimal brain surgeon by its definition, in NumPy: Fisher blocks written out, inverted, one threshold over all weights."""
    START, END, EVERY, INIT, FINAL, NUM_GRADS, DAMP = 2.0, 10.0, 0.5, 0.1, 0.8, 4, 0.01

    def __init__(self, block_size):
        super().__init__()
        self.block_size, self.gradients = block_size, {}
        self.items = [f"!OBSPruningModifier {{params: __ALL__, init_sparsity: {self.INIT}, final_sparsity: {self.FINAL}, start_epoch: {self.START}, "
                      f"end_epoch: {self.END}, update_frequency: {self.EVERY}, num_grads: {self.NUM_GRADS}, damp: {self.DAMP}, "
                      f"fisher_block_size: {block_size}}}"]

    def on_gradients(self, network):
        super().on_gradients(network)
        for name, weight in network.weights.items():
            if weight.dim() >= 2:
                self.gradients.setdefault(name, []).append(weight.grad.numpy().astype(np.float64).ravel())

    def inverses(self, name):
        """(slice, inverse) of each block, over the last gradients since the update before."""
        rows = np.array(self.gradients[name][-self.NUM_GRADS:])
        for first in range(0, rows.shape[1], self.block_size):
            block = slice(first, min(first + self.block_size, rows.shape[1]))
            part = rows[:, block]
            yield block, np.linalg.inv(part.T @ part / len(rows) + self.DAMP * np.eye(part.shape[1]))

    @torch.no_grad()
    def before(self, network, step):
        if self.target(step) == self.target(step - 1):
            return
        weights = {name: weight.numpy().astype(np.float64).ravel() for name, weight in network.weights.items() if weight.dim() >= 2}
        blocks = {name: list(self.inverses(name)) for name in weights}
        diagonals = {name: np.concatenate([np.diag(inverse) for _, inverse in blocks[name]]) for name in weights}
        living = {name: self.kept[name].numpy().ravel() if self.kept else np.ones(len(weights[name])) for name in weights}
        scores = np.concatenate([np.where(living[name] > 0, weights[name] ** 2 / (2 * diagonals[name]), -1) for name in weights])
        kept = np.ones(len(scores))
        kept[np.argsort(scores, kind="stable")[:math.floor(self.target(step) * len(scores) + 0.5)]] = 0
        for name, part in zip(weights, np.split(kept, np.cumsum([len(values) for values in weights.values()])[:-1]), strict=True):
            lost = weights[name] * (living[name] - part) / diagonals[name]
            for block, inverse in blocks[name]:
                weights[name][block] -= inverse @ lost[block]
            shape = network.weights[name].shape
            self.kept[name] = torch.from_numpy(part).float().reshape(shape)
            network.weights[name].copy_(torch.from_numpy(weights[name]).float().reshape(shape))
        self.gradients.clear()
        self.after(network, step)


class FakeQuantization(Recipe):
    """Scales by PyTorch's own observers; those of the inputs see a step once it is over."""
    START_STEP = 30

    def __init__(self, per_channel):
        self.items = [f"!QuantizationModifier {{start_epoch: 3.0, weights: per_{'channel' if per_channel else 'tensor'}}}"]
        self.per_channel, self.on, self.seen = per_channel, False, {}
        self.observers = [observers.MovingAverageMinMaxObserver(averaging_constant=0.01, dtype=torch.quint8)
                          for _ in range(NUM_LAYERS)]

    def before(self, network, step):
        self.on = step >= self.START_STEP
        network.input_hook, network.weight_hook = self.input, self.weight

    def weight(self, layer, values):
        if not self.on:
            return values
        kind, scheme = ((observers.PerChannelMinMaxObserver, torch.per_channel_symmetric) if self.per_channel else
                        (observers.MinMaxObserver, torch.per_tensor_symmetric))
        observer = kind(dtype=torch.qint8, qscheme=scheme, quant_min=-127, quant_max=127)
        observer(values)
        scales, zero_points = observer.calculate_qparams()
        if self.per_channel:
            return torch.fake_quantize_per_channel_affine(values, scales, zero_points.int(), 0, -127, 127)
        return torch.fake_quantize_per_tensor_affine(values, scales, zero_points.int(), -127, 127)

    def input(self, layer, values):
        if not self.on:
            return values
        observed = bool(self.observers[layer].min_val.isfinite())
        self.seen[layer] = values.detach()
        if not observed:
            return values
        scale, zero_point = self.observers[layer].calculate_qparams()
        return torch.fake_quantize_per_tensor_affine(values, scale, zero_point.int(), 0, 255)

    def after(self, network, step):
        for layer, values in self.seen.items():
            self.observers[layer](values)

    def facts(self, step):
        return {"ranges": [torch.stack([o.min_val, o.max_val]) if self.on else torch.zeros(2) for o in self.observers]}


class Oracle(unittest.TestCase):
    def follow(self, recipe):
        """Compares every step; returns what PyTorch's side gave, by kind of fact."""
        worst, history = {}, {}
        for step, (wanted, found) in enumerate(train(recipe)):
            for kind, values in wanted.items():
                off = distance(values, found[kind])
                self.assertLessEqual(off, 0 if kind == "kept" else TOLERANCE, f"{kind} at step {step}")
                worst[kind] = max(worst.get(kind, 0), off)
                if not isinstance(values, dict):
                    history.setdefault(kind, []).append(values)
        self.assertEqual(step, NUM_STEPS - 1)
        print(f"{self.id().split('.')[-1]}: largest differences in {NUM_STEPS} steps: " +
              ", ".join(f"{kind} {value:.1e}" for kind, value in worst.items()))
        return history

    def test_exponential_rate(self):
        history = self.follow(Rate("ExponentialLR", "{gamma: 0.9}",
                                   lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)))
        self.assertEqual(len(set(history["learning rate"])), 20)

    def test_step_rate(self):
        history = self.follow(Rate("StepLR", "{gamma: 0.5, step: 4.0}",
                                   lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5), start=3))
        self.assertEqual(len(set(history["learning rate"])), 5)

    def test_multi_step_rate(self):
        history = self.follow(Rate("MultiStepLR", "{gamma: 0.3, milestones: [2.0, 5.0, 13.0]}",
                                   lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5, 13], 0.3)))
        self.assertEqual(len(set(history["learning rate"])), 4)

    def test_gradual_pruning(self):
        recipe = GradualPruning()
        history = self.follow(recipe)
        self.assertEqual(len(set(history["target sparsity"])), 1 + 28 + 1)  # none, every half epoch, the closing one
        self.assertEqual(recipe.kept["classifier.weight"].sum().item(), 256)

    def test_second_order_pruning_with_sums_of_products(self):
        self.check_second_order(SecondOrder(block_size=3))

    def test_second_order_pruning_with_stored_gradients(self):
        self.check_second_order(SecondOrder(block_size=25))

    def check_second_order(self, recipe):
        history = self.follow(recipe)
        self.assertEqual(len(set(history["target sparsity"])), 1 + 16 + 1)
        pruned = sum(kept.numel() - kept.sum().item() for kept in recipe.kept.values())
        self.assertEqual(pruned, round(0.8 * sum(kept.numel() for kept in recipe.kept.values())))

    def test_fake_quantization_per_channel(self):
        self.check_ranges_move(self.follow(FakeQuantization(per_channel=True)))

    def test_fake_quantization_per_tensor(self):
        self.check_ranges_move(self.follow(FakeQuantization(per_channel=False)))

    def check_ranges_move(self, history):
        moves = [distance(a, b) > 0 for a, b in zip(history["ranges"], history["ranges"][1:])]
        self.assertEqual(sum(moves), NUM_STEPS - FakeQuantization.START_STEP)


if __name__ == "__main__":
    unittest.main()
