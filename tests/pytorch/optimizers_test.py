"""Several optimizers of one module in lockstep.DataParallel: losses of DistributedDataParallel, masks, rates, checkpoints, mistakes."""
import pathlib
import shutil
import tempfile
import unittest

import ranks
import user_loop
from ranks import dist, torch
from data_parallel_test import PRUNING, RATES

F = torch.nn.functional
STEPS = 8


class DriftingSGD(torch.optim.SGD):
    """Moves weights that have no gradient, as no class of torch does."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(1e-3)


def optimizers_of(network, second):
    makers = {"adamw": lambda p: torch.optim.AdamW(p, lr=0.01), "drifting": lambda p: DriftingSGD(p, lr=0.01)}
    return [torch.optim.SGD(network.second.parameters(), lr=0.1, momentum=0.9), makers[second](network.first.parameters())]


def train(case):
    """Trains with an optimizer for each layer. Returns losses, weights and what the case asks for."""
    import lockstep
    torch.manual_seed(3)
    network = user_loop.Plain()
    optimizers = optimizers_of(network, case.get("second", "adamw"))
    if case.get("wrapper") == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(network)
    else:
        model = lockstep.DataParallel(network, optimizers, recipe=case.get("recipe"), steps_per_epoch=4, timeout=20)
    found = lockstep.restore(model, case["restore"]) if "restore" in case else None
    generator, losses, zeros = torch.Generator().manual_seed(5 + dist.get_rank()), [], []
    for step in range(STEPS):
        x, y = torch.randn(6, 10, generator=generator), torch.randint(0, 4, (6,), generator=generator)
        if found and step < found.step:
            continue
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * (float("inf") if step == case.get("inf_at") else 1)
        loss.backward()
        for optimizer in reversed(optimizers) if case.get("first_is_last") else optimizers:
            optimizer.step()
        losses.append(loss.item())
        zeros.append((network.first.weight == 0).float().mean().item())
        if step + 1 == case.get("save_at"):
            lockstep.save(model, case["save"], wait=True)
    return {"losses": losses, "weights": torch.cat([p.detach().flatten() for p in network.parameters()]).tolist(), "zeros": zeros,
            "lr": [optimizer.param_groups[0]["lr"] for optimizer in optimizers], "step": getattr(model, "step", None)}


def refused(optimizers):
    """The error of wrapping a network with optimizers(network)."""
    import lockstep
    network = user_loop.Plain()
    try:
        lockstep.DataParallel(network, optimizers(network))
    except (lockstep.Error, TypeError) as fault:
        return str(fault)
    return ""


class SeveralOptimizers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-optimizers-"))
        cls.addClassCleanup(shutil.rmtree, cls.root)

    def run_ranks(self, num_ranks=2, **case):
        return ranks.values(num_ranks, train, case, backend="gloo")[0]

    def recipe(self, text):
        path = self.root / f"{self._testMethodName}.yaml"
        path.write_text(text)
        return str(path)

    def test_they_learn_as_with_ddp(self):
        for first_is_last in (False, True):
            with self.subTest(first_is_last=first_is_last):
                ours, theirs = (self.run_ranks(wrapper=wrapper, first_is_last=first_is_last) for wrapper in ("lockstep", "ddp"))
                for one, other in zip(ours["losses"], theirs["losses"], strict=True):
                    self.assertAlmostEqual(one, other, delta=1e-6)
                for one, other in zip(ours["weights"], theirs["weights"], strict=True):
                    self.assertAlmostEqual(one, other, delta=1e-5)
                self.assertEqual(ours["step"], STEPS)

    def test_masks_hold_whichever_optimizer_steps_last(self):
        for second in ("adamw", "drifting"):
            for first_is_last in (False, True):
                with self.subTest(second=second, first_is_last=first_is_last):
                    result = self.run_ranks(recipe=self.recipe(PRUNING), second=second, first_is_last=first_is_last)
                    self.assertAlmostEqual(result["zeros"][-1], 0.8, delta=0.005)
                    self.assertEqual(result["zeros"], sorted(result["zeros"]))

    def test_a_recipe_sets_the_rates_of_all(self):
        """After STEPS updates all have had the rate of the last one."""
        for first_is_last in (False, True):
            self.assertEqual(self.run_ranks(recipe=self.recipe(RATES), first_is_last=first_is_last)["lr"], [0.05, 0.05])

    def test_none_updates_with_a_gradient_that_is_not_finite(self):
        for first_is_last in (False, True):
            result = self.run_ranks(inf_at=3, first_is_last=first_is_last)
            self.assertTrue(all(abs(weight) < 100 for weight in result["weights"]))

    def test_a_resumed_loop_repeats_each_bit(self):
        folder = str(self.root / "saves")
        whole = self.run_ranks(save=folder, save_at=5)
        resumed = self.run_ranks(restore=folder)
        self.assertEqual(resumed["losses"], whole["losses"][5:])
        self.assertEqual(resumed["weights"], whole["weights"])

    def test_mistakes(self):
        def in_common(network):
            return [torch.optim.SGD(network.parameters(), lr=0.1), torch.optim.Adam(network.first.parameters())]
        cases = [(in_common, "two of the optimizers have a parameter in common"), (lambda _: [], "a list of them, not NoneType"),
                 (lambda network: [torch.optim.SGD(network.parameters(), lr=0.1), "adam"], "a list of them, not str")]
        for optimizers, text in cases:
            with self.subTest(text):
                self.assertIn(text, ranks.values(1, refused, optimizers, backend="gloo")[0])


if __name__ == "__main__":
    unittest.main()
