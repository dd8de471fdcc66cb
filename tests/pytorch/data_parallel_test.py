"""lockstep.DataParallel in a loop of a user's (user_loop.py): losses of DistributedDataParallel over gloo, recipes, checkpoints, mistakes."""
import gc
import os
import pathlib
import shutil
import sys
import tempfile
import unittest
import unittest.mock

import ranks
import object_store
import user_loop
from ranks import torch

import lockstep
import lockstep.checkpoints

PRUNING = """version: 1.1.0
modifiers:
  - !GradualKSModifier
    start_step: 2
    end_step: 6
    update_frequency: 0.5
    init_sparsity: 0.3
    final_sparsity: 0.8
    params: [first]
"""
RATES = """version: 1.1.0
modifiers:
  - !SetLearningRateModifier
    start_step: 0
    learning_rate: 0.2
  - !SetLearningRateModifier
    start_step: 4
    learning_rate: 0.05
"""
QUANTIZING = """version: 1.1.0
modifiers:
  - !QuantizationModifier
    start_step: 2
    submodules: [first, second]
"""
FREEZING = """version: 1.1.0
modifiers:
  - !TrainableParamsModifier
    params: [first]
    trainable: false
    start_step: 3
    end_step: 6
"""


class UserLoop(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-loop-"))
        cls.addClassCleanup(shutil.rmtree, cls.root)

    def run_all(self, num_ranks, cases):
        """What the loop returned on rank 0 for each case, one after another in one group; all ranks end with 0 and equal weights."""
        results = ranks.values(num_ranks, lambda: [user_loop.train(case) for case in cases], backend="gloo")
        for case, of_ranks in zip(cases, zip(*results, strict=True), strict=True):
            self.assertEqual(len({result["digest"] for result in of_ranks}), 1, case)
        return results[0]

    def run_ranks(self, num_ranks, **case):
        return self.run_all(num_ranks, [case])[0]

    def recipe(self, text):
        path = self.root / f"{self._testMethodName}.yaml"
        path.write_text(text)
        return str(path)

    def test_losses_and_weights_are_those_of_ddp(self):
        cases = [{}, {"optimizer": "adamw", "clip": 0.5}, {"network": "unused"}, {"network": "unused", "to_none": False},
                 {"micro_batches": 3, "to_none": False}, {"network": "tied"}, {"precision": "bf16"}]
        for num_ranks, case in [(2, case) for case in cases] + [(3, case) for case in cases[:3]]:
            updates = (False, True) if "clip" in case else (False, True, "shards", "shared")  # in the last two no rank has all gradients
            theirs, *ours = self.run_all(num_ranks, [{"steps": 5, **case, **wrapped} for wrapped in
                                                     ({"wrapper": "ddp"}, *({"engine_update": update} for update in updates))])
            for engine_update, each in zip(updates, ours, strict=True):
                with self.subTest(ranks=num_ranks, engine_update=engine_update, **case):
                    for one, other in zip(each["losses"], theirs["losses"], strict=True):
                        self.assertAlmostEqual(one, other, delta=1e-6)
                    for one, other in zip(each["weights"], theirs["weights"], strict=True):
                        self.assertAlmostEqual(one, other, delta=1e-5)

    def test_gradients_stay_after_the_step(self):
        theirs, *ours = self.run_all(2, [{"wrapper": "ddp"}, {"engine_update": False}, {"engine_update": True}])
        for engine_update, each in zip((False, True), ours, strict=True):
            with self.subTest(engine_update):
                for one, other in zip(each["grads"], theirs["grads"], strict=True):
                    self.assertAlmostEqual(one, other, delta=1e-6)

    def test_averages_add_up_or_are_refused(self):
        """Several averaged backward() in a step, without no_sync(); and gradients that the loop never zeroes."""
        case = {"micro_batches": 3, "sums_averages": True}
        theirs, *ours = self.run_all(2, [{**case, "wrapper": "ddp"}, {**case, "engine_update": False}, {**case, "engine_update": True}])
        for engine_update, each in zip((False, True), ours, strict=True):
            with self.subTest(engine_update):
                for one, other in zip(each["weights"], theirs["weights"], strict=True):
                    self.assertAlmostEqual(one, other, delta=1e-5)
        for engine_update in ("shards", "shared"):
            for rank in ranks.run(2, user_loop.train, {**case, "engine_update": engine_update}, backend="gloo"):
                self.assertIn("a second backward() averages gradients in this step", rank.fault)

    def test_uneven_last_batches_count_by_their_samples(self):
        alone = self.run_ranks(1, samples=27, batch=4, optimizer="sgd", steps=14)
        together = self.run_ranks(4, samples=27, batch=4, optimizer="sgd", steps=14)  # the seventh batch has 3 samples
        for one, other in zip(alone["weights"], together["weights"], strict=True):
            self.assertAlmostEqual(one, other, delta=1e-5)

    def test_a_recipe_prunes_and_the_moments_of_pruned_weights_are_zero(self):
        case = {"recipe": self.recipe(PRUNING), "steps": 9, "engine_update": False}
        optimizers = ("momentum", "adamw", "adagrad")
        results = self.run_all(2, [{**case, "optimizer": optimizer} for optimizer in optimizers])
        for optimizer, result in zip(optimizers, results, strict=True):
            with self.subTest(optimizer):
                self.assertAlmostEqual(result["zeros"], 0.8, delta=0.005)
                self.assertEqual(result["state_of_zeros"], 0)

    def test_a_pruned_loop_learns_the_same_by_either_update(self):
        case = {"recipe": self.recipe(PRUNING), "steps": 9}
        updates = (True, "shards", "shared")
        torchs, *others = self.run_all(2, [{**case, "engine_update": engine_update} for engine_update in (False, *updates)])
        for engine_update, engines in zip(updates, others, strict=True):
            with self.subTest(engine_update):
                self.assertEqual(engines["zeros"], torchs["zeros"])
                for one, other in zip(engines["weights"], torchs["weights"], strict=True):
                    self.assertAlmostEqual(one, other, delta=1e-5)

    def test_a_recipe_sets_the_learning_rate(self):
        case = {"recipe": self.recipe(RATES)}
        self.assertEqual([result["lr"] for result in self.run_all(2, [{**case, "steps": 4}, {**case, "steps": 5}])], [0.2, 0.05])

    def test_a_recipe_in_steps_needs_no_length_of_an_epoch(self):
        self.assertEqual(self.run_ranks(2, recipe=self.recipe(RATES), steps=5, steps_per_epoch=None)["lr"], 0.05)
        for rank in ranks.run(2, user_loop.train, {"recipe": self.recipe(PRUNING), "steps_per_epoch": None}, backend="gloo"):
            self.assertIn("the recipe counts epochs: pass steps_per_epoch", rank.fault)
        by_sampler = self.run_ranks(2, recipe=self.recipe(PRUNING), steps_per_epoch=None, samples=40, steps=9)  # 7 steps an epoch
        self.assertAlmostEqual(by_sampler["zeros"], 0.8, delta=0.005)

    def test_a_recipe_freezes_and_thaws(self):
        """Of each number of steps, the digest of the weights of `first`: equal while it is frozen."""
        recipe, size = self.recipe(FREEZING), 10 * 32 + 32
        weights = [result["weights"] for result in self.run_all(2, [{"recipe": recipe, "steps": steps} for steps in (3, 5, 8)])]
        self.assertEqual(weights[0][:size], weights[1][:size])
        self.assertNotEqual(weights[0][size:], weights[1][size:])
        self.assertNotEqual(weights[1][:size], weights[2][:size])

    def test_a_recipe_quantizes_from_its_step_on(self):
        """Inputs of the first quantized step are not rounded yet, weights are."""
        plain, rounded = (result["losses"] for result in self.run_all(2, [{"recipe": recipe, "steps": 6} for recipe in (None, self.recipe(QUANTIZING))]))
        self.assertEqual(plain[:2], rounded[:2])
        self.assertNotEqual(plain[2], rounded[2])
        self.assertTrue(all(abs(one - other) < 0.1 for one, other in zip(plain, rounded, strict=True)))

    def test_a_quantized_network_answers_alike_when_its_loop_has_ended(self):
        """Whether the loop was closed or dropped; a pass that records gradients must not move the ranges."""
        recipe = self.recipe(QUANTIZING.replace("start_step: 2", "start_step: 0"))

        def answers(closes):
            torch.manual_seed(3)
            network, x = user_loop.NETWORKS["plain"](), torch.randn(16, 10)
            plain = network(x)
            optimizer = torch.optim.SGD(network.parameters(), lr=0.0)
            model = lockstep.DataParallel(network, optimizer, recipe, steps_per_epoch=4)
            for _ in range(2):
                model(x).sum().backward()
                optimizer.step()
            rounded = model(x)
            if closes:
                model.close()
            del model
            gc.collect()
            network(100 * x).sum().backward()
            again = network(x)
            return {"same": torch.equal(rounded, again), "rounds": not torch.equal(plain, again)}

        for closes in (True, False):
            for rank in ranks.values(2, lambda: answers(closes), backend="gloo"):
                self.assertEqual(rank, {"same": True, "rounds": True})

    def test_no_rank_updates_with_a_gradient_that_is_not_finite(self):
        result = self.run_ranks(2, inf_at=3)
        self.assertTrue(all(abs(weight) < 100 for weight in result["weights"]))

    def test_a_scaler_skips_the_same_updates_on_all_ranks(self):
        """Rank 0 alone overflows, in the bias of the last layer."""
        def scaled(engine_update):
            torch.manual_seed(3)
            network = user_loop.NETWORKS["plain"]()
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
            model = lockstep.DataParallel(network, optimizer, engine_update=engine_update)
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
            for step in range(4):
                optimizer.zero_grad()
                loss = model(torch.ones(4, 10)).sum()
                if step == 1 and model.rank == 0:
                    loss = loss + network.second.bias.sum() * float("inf")
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            return model.step, scaler.get_scale(), user_loop.digest(network.parameters())

        results = [ranks.values(2, lambda: scaled(update), backend="gloo") for update in (None, False, "shards", "shared")]
        for result in results:
            self.assertEqual(result[0], result[1])
            self.assertEqual(result[0][:2], (3, 8.0))

    def test_a_resumed_loop_repeats_each_bit(self):
        """Step 7 ends an epoch of 40 samples, step 5 does not."""
        for engine_update, save_at in ((False, 7), (True, 5), ("shards", 7), ("shared", 5)):
            with self.subTest(engine_update):
                case = {"network": "normed", "optimizer": "adamw", "steps": 12, "samples": 40, "recipe": self.recipe(PRUNING),
                        "engine_update": engine_update}
                folder = str(self.root / f"whole-{engine_update}")
                whole = self.run_ranks(2, **case, save=folder, save_at=save_at)
                resumed = self.run_ranks(2, **case, restore=folder)
                self.assertEqual(resumed["losses"], whole["losses"][save_at:])
                self.assertEqual(resumed["digest"], whole["digest"])
                self.assertEqual(resumed["buffers"], whole["buffers"])

    def test_a_batch_counts_once_whatever_passes_it_takes(self):
        """Two forward passes of each batch; and two batches of a step, of which the first is not averaged. 41 samples: the last batch is uneven."""
        for name, passes, steps in (("views", {"views": 2}, 12), ("batches", {"micro_batches": 2}, 6)):
            with self.subTest(name):
                case, folder = {"network": "normed", "samples": 41, "steps": steps, **passes}, str(self.root / name)
                whole = self.run_ranks(2, **case, save=folder, save_at=4)
                resumed = self.run_ranks(2, **case, restore=folder)
                self.assertEqual(resumed["losses"], whole["losses"][4:])
                self.assertEqual(resumed["digest"], whole["digest"])

    def test_a_loop_resumes_at_another_number_of_ranks(self):
        case = {"steps": 12, "samples": 40, "batch": 4}
        whole = self.run_ranks(2, **case, save=str(self.root / "other"), save_at=7)
        resumed = self.run_ranks(4, **case, restore=str(self.root / "other"))
        for one, other in zip(resumed["losses"], whole["losses"][7:], strict=True):
            self.assertAlmostEqual(one, other, delta=1e-5)

    def test_checkpoints_in_a_store(self):
        store = object_store.StoreProcess(sys.executable)
        self.addCleanup(store.close)
        case, place = {"network": "normed", "optimizer": "adamw", "steps": 12, "samples": 40}, "s3://bucket/loop"
        with unittest.mock.patch.dict(os.environ, store.variables):
            whole = self.run_ranks(2, **case, save=place, save_at=5)
            resumed = self.run_ranks(2, **case, restore=place)
            self.assertEqual((resumed["losses"], resumed["digest"]), (whole["losses"][5:], whole["digest"]))
            self.assertIn("loop/model.ckpt-5.index", store.objects("bucket"))
            with self.assertRaisesRegex(lockstep.Error, "pathlib has removed a slash from the address of a store; pass it as a str"):
                lockstep.checkpoints.text_of(pathlib.Path(place))
            store.key("another")
            for arguments in ({"save": place, "save_at": 5}, {"restore": place}):
                of_ranks = ranks.run(2, user_loop.train, {**case, **arguments}, backend="gloo")
                for one in of_ranks:
                    self.assertIn("access is denied to the key of the environment (AWS_ACCESS_KEY_ID)", one.fault)

    def test_a_save_of_one_rank_alone_says_so(self):
        fault = ranks.run(2, user_loop.train, {"mistake": "save", "save": str(self.root / "alone"), "timeout": 2}, backend="gloo")[0].fault
        self.assertIn("Call lockstep.save() on all ranks, not on one", fault)

    def test_a_loop_without_a_recipe_resumes_with_another_batch(self):
        folder = str(self.root / "batches")
        self.run_ranks(2, samples=40, steps=3, batch=8, save=folder, save_at=3, steps_per_epoch=None)
        self.run_ranks(2, samples=40, steps=6, batch=4, restore=folder, steps_per_epoch=None)

    def test_mistakes_are_refused_at_their_line(self):
        for mistake, text, line in (("added", "the parameters of first are weight, bias, more", "model(x)"),
                                    ("assigned", "is another tensor than when lockstep.DataParallel wrapped the module", "model(x)"),
                                    ("double", "another type or size since lockstep.DataParallel wrapped", "model(x)"),
                                    ("group", "the optimizer's parameter groups have changed", "optimizer.step()"),
                                    ("inner", "call the wrapped module before each backward()", "loss.backward()")):
            with self.subTest(mistake):
                for rank in ranks.run(2, user_loop.train, {"mistake": mistake}, backend="gloo"):
                    self.assertNotEqual(rank.code, 0)
                    self.assertIn(text, rank.fault)
                    said = rank.said.splitlines()
                    lines = [said[i + 1] for i, each in enumerate(said) if "user_loop.py" in each]
                    self.assertIn(line, lines[-1])

    def test_recipes_that_need_the_loss_or_the_gradients_are_refused(self):
        for item, text in (("!DistillationModifier {}", "DistillationModifier cannot work in a loop of your own, which computes the loss"),
                           ("!MovementPruningModifier {params: __ALL__, init_sparsity: 0.1, final_sparsity: 0.5, start_step: 1, end_step: 3, "
                            "update_frequency_steps: 1}", "the recipe prunes by gradients")):
            recipe = self.root / "refused.yaml"
            recipe.write_text(f"version: 1.0.0\nmodifiers:\n  - {item}\n  - !EpochRangeModifier {{start_epoch: 0, end_epoch: 2}}\n")
            for rank in ranks.run(2, user_loop.train, {"recipe": str(recipe)}, backend="gloo"):
                self.assertNotEqual(rank.code, 0)
                self.assertIn(text, rank.fault)

    def test_values_that_the_loop_puts_elsewhere_are_trained(self):
        for engine_update in (False, True, "shared"):
            with self.subTest(engine_update):
                plain, moved = self.run_all(2, [{"engine_update": engine_update, "mistake": mistake} for mistake in (None, "data")])
                self.assertEqual(moved["digest"], plain["digest"])

    def test_moments_of_other_updates_are_refused(self):
        folder, case = str(self.root / "updates"), {"samples": 40, "steps": 5}
        self.run_ranks(2, **case, engine_update=True, save=folder, save_at=5)
        for rank in ranks.run(2, user_loop.train, {**case, "restore": folder, "engine_update": False}, backend="gloo"):
            self.assertIn("was saved with updates by the engine: wrap the module with engine_update=True", rank.fault)

    def test_a_rank_that_hangs_is_named(self):
        ended = self.root / "ended"

        def train():
            try:
                return user_loop.train({"mistake": "hang", "until": str(ended), "timeout": 2})
            finally:
                ended.touch()
        fault = ranks.run(2, train, backend="gloo")[0].fault
        self.assertRegex(fault, r"waited \d\.\d s for rank 1 .*raise the timeout of lockstep\.DataParallel$")

    def test_a_rank_that_fails_ends_the_others(self):
        other, failed = ranks.run(2, user_loop.train, {"mistake": "raise"}, backend="gloo")
        self.assertIn("an error of rank 1 alone", failed.fault)
        self.assertNotEqual(other.code, 0)
        self.assertIn("rank 1", other.fault)


if __name__ == "__main__":
    unittest.main()
