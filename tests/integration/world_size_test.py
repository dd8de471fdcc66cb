"""One run that resumes with 4, 2, 3 and 1 ranks: each sample once an epoch, and the curve of a run that kept its size."""
import collections
import unittest

from harness import BUILD, LockstepTest
from soak import only_in_soak

SEEN_SAMPLES = BUILD / "tests" / "integration" / "seen_samples"
LEGS = ((4, 30), (2, 55), (3, 80), (1, 100))  # ranks, and the step at which they stop; none is an epoch's end
STEPS_AN_EPOCH, NUM_SAMPLES, BATCH = 23, 1438, 64
BOUND = 1e-5

PLAIN = "version: 1.0.0\nmodifiers: []\n"
PRUNED = """version: 1.0.0
modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 10}
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.2, final_sparsity: 0.8, start_step: 20, end_step: 90, update_frequency_steps: 10}
"""
MOMENTUM = "optimizer={type: momentum, learning_rate: 0.02}"
ADAM = "optimizer={type: adam, learning_rate: 0.001}"


class WorldSize(LockstepTest):
    def train_legs(self, name, legs, sets):
        """The last part's run, and the samples that every rank saw: {step: samples over all ranks}."""
        folder = self.folder / f"{name}_samples"
        folder.mkdir()
        seen = collections.defaultdict(collections.Counter)
        for ranks, last_step in legs:
            run = self.train(ranks, run=name, sets=[*sets, f"train.max_steps={last_step}"], program=SEEN_SAMPLES,
                             environment={"LOCKSTEP_TEST_SAMPLES": str(folder)})
            files = sorted(folder.iterdir())
            self.assertEqual(len(files), ranks)
            for path in files:
                for step, *samples in map(str.split, path.read_text().splitlines()):
                    seen[int(step)].update(samples)
                path.unlink()
        return run, seen

    def assert_each_sample_once_an_epoch(self, seen, steps):
        self.assertEqual(sorted(seen), list(range(steps)))
        epochs = [collections.Counter() for _ in range(-(-steps // STEPS_AN_EPOCH))]
        for step, samples in seen.items():
            is_last = step % STEPS_AN_EPOCH == STEPS_AN_EPOCH - 1
            self.assertEqual(samples.total(), NUM_SAMPLES - (STEPS_AN_EPOCH - 1) * BATCH if is_last else BATCH, f"step {step}")
            epochs[step // STEPS_AN_EPOCH] += samples
        whole = epochs[:steps // STEPS_AN_EPOCH]
        for number, epoch in enumerate(whole):
            self.assertEqual(len(epoch), NUM_SAMPLES, f"epoch {number}: samples left out")
            self.assertEqual(max(epoch.values()), 1, f"epoch {number}: samples seen again")
            self.assertEqual(epoch, whole[0], f"epoch {number}: other samples")

    def assert_same_curve(self, sets, recipe):
        sets = [*sets, self.recipe(recipe), "data.eval=null", "checkpoint.save_checkpoints_steps=9"]
        fixed, seen_fixed = self.train_legs("fixed", ((4, 100),), sets)
        moved, seen_moved = self.train_legs("moved", LEGS, sets)
        self.assert_each_sample_once_an_epoch(seen_moved, 100)
        self.assertEqual(seen_moved, seen_fixed)  # and each update is made of the same ones
        self.assertEqual(moved.summary()["resumed_from_step"], LEGS[-2][1])
        self.assertEqual([line["step"] for line in moved.steps()], [line["step"] for line in fixed.steps()])
        differences = [abs(a["loss"] - b["loss"]) for a, b in zip(moved.steps(), fixed.steps())]
        print(f"{self.id().rsplit('.', 1)[1]}: losses of 100 steps differ by at most {max(differences):.2e}")
        self.assertLessEqual(max(differences), BOUND)
        self.assertEqual(moved.summary()["sparsity"], fixed.summary()["sparsity"])
        return fixed, moved

    @only_in_soak("test_adam_with_moments_divided_over_the_ranks")
    def test_momentum(self):
        self.assert_same_curve([MOMENTUM], PLAIN)

    def test_adam_with_moments_divided_over_the_ranks(self):
        _, moved = self.assert_same_curve([ADAM, "sync.shard_optimizer=true"], PLAIN)
        shown = self.tool("ckpt", "show", moved.folder / "checkpoints" / "model.ckpt-80")
        self.assertIn("slice", shown)  # 3 ranks, each with its own moments

    def test_sparse_saves_while_weights_are_pruned(self):
        fixed, moved = self.assert_same_curve([MOMENTUM, "checkpoint.sparse=true"], PRUNED)
        self.assertAlmostEqual(moved.summary()["sparsity"], 0.8, places=2)

    def test_sparse_saves_of_divided_moments(self):
        self.assert_same_curve([ADAM, "sync.shard_optimizer=true", "checkpoint.sparse=true"], PRUNED)


if __name__ == "__main__":
    unittest.main()
