"""PyTorch's DistributedDataParallel as the judge of whole runs: the same data, order and initial weights on 2 ranks must give
the same losses for 100 steps, on a network without jumps (docs/design/numerics.md says why)."""
import os
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCE / "bench/peers"))
sys.path.insert(0, str(SOURCE / "tests/support"))
import runs
from skips import missing_tool
from soak import only_in_soak

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD"])
NUM_STEPS, TOLERANCE = 100, 1e-5
SMOOTH = runs.Job("smooth", batch=8, widths=(64, 48, 32, 10), activation="tanh", samples=160, learning_rate=0.05, steps=NUM_STEPS)
SPARSE = runs.Job("sparse", batch=8, widths=(64, 48, 32, 10), activation="gelu", samples=160, learning_rate=0.05, sparsity=0.8,
                  steps=NUM_STEPS)


class DdpIsTheJudge(unittest.TestCase):
    def setUp(self):
        for oracle in (SOURCE / ".venv-test/bin/python", pathlib.Path(os.environ["LOCKSTEP_TORCH"], "__init__.py")):
            if not oracle.exists():
                missing_tool(f"no PyTorch: {oracle} is not there; tools/setup test fetches it")

    def follow(self, job, mode, sets=()):
        ours, theirs = runs.lockstep(BUILD, job, runs.Here(), sets=sets).losses, runs.ddp(BUILD, job, runs.Here(), mode).losses
        self.assertEqual((len(ours), len(theirs)), (NUM_STEPS, NUM_STEPS))
        self.assertLess(min(theirs[-20:]), 0.97 * theirs[0], "it learns")
        off = runs.largest_difference(ours, theirs, NUM_STEPS)
        print(f"{job.name}, DDP {mode}: losses {theirs[0]:.4f} to {theirs[-1]:.4f}, largest relative difference {off:.1e}")
        return off

    @only_in_soak("test_losses_with_small_overlapped_buckets")
    def test_losses_are_those_of_ddp(self):
        self.assertLessEqual(self.follow(SMOOTH, "default"), TOLERANCE)

    def test_losses_with_small_overlapped_buckets(self):
        self.assertLessEqual(self.follow(SMOOTH, "tuned", ("sync.overlap='true'", "sync.bucket_bytes=2048")), TOLERANCE)

    def test_losses_with_fixed_masks(self):
        self.assertLessEqual(self.follow(SPARSE, "default", ("sync.sparse_allreduce=always",)), TOLERANCE)

    @only_in_soak("test_losses_with_fixed_masks")
    def test_losses_with_fixed_masks_packed_on_both_sides(self):
        self.assertLessEqual(self.follow(SPARSE, "packed", ("sync.sparse_allreduce=always",)), TOLERANCE)

    def test_another_learning_rate_is_seen(self):
        self.assertGreater(self.follow(SMOOTH, "default", ("optimizer.learning_rate=0.0501",)), 10 * TOLERANCE)


if __name__ == "__main__":
    unittest.main()
