"""A run is told to stop while a rank waits for data that take a minute."""
import os
import pathlib
import signal
import unittest

from harness import BUILD, LockstepTest, wait_for, within
from soak import rounds

SLOW_SOURCE = BUILD / "tests" / "integration" / "slow_source"
BOUND_S = 15  # from the signal to the end of mpirun; it takes about 2

# Masks at each step from 4 to 10; what travels is rounded by what travelled before.
RECIPE = """version: 1.0.0
modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 0.65}
  - !GMPruningModifier {params: __ALL_PRUNABLE__, init_sparsity: 0.2, final_sparsity: 0.7, start_epoch: 0.2, end_epoch: 0.5, update_frequency: 0.05}
"""
SETS = ["data.train={type: slow}", "data.loader_threads=1", "data.global_batch_size=50", "data.eval=null", "train.max_steps=13", "eval.every_epochs=0",
        "checkpoint.save_checkpoints_steps=1000000", "sync.comm_dtype=bf16", "optimizer={type: adam, learning_rate: 0.01}"]


class DataWait(LockstepTest):
    def start_slow(self, *batches):
        """Number of batches that each rank gets; returns once each rank waits for the next one, even if ahead of its step."""
        block = self.folder / f"block_{batches}"
        fault = {"LOCKSTEP_TEST_BATCHES": ",".join(map(str, batches)), "LOCKSTEP_TEST_BLOCK": str(block)}
        run = self.start(program=SLOW_SOURCE, environment=fault, sets=self.sets)
        wait_for(lambda: all(pathlib.Path(f"{block}.{rank}").exists() for rank in (0, 1)), "the data to stand still")
        return run

    def go_on(self, **kwargs):
        """Data that come."""
        return self.train(program=SLOW_SOURCE, sets=self.sets, **kwargs)

    def require_stop(self, run, step, tell):
        """`tell(run)` asks it to stop; mpirun would end all by itself after a SIGTERM of its own."""
        run.rank_pids()
        if step > 0:
            run.wait_for_step(step)
        with within(BOUND_S, "the end of the run") as took:
            tell(run)
            run.wait()
        self.assertEqual(run.code, 75, run.log)
        self.assertRegex(run.log, r"stop requested after \d+\.\d s of waiting for the data of the next step")
        self.assertRegex(run.log, rf"stopped at step {step} on request")
        print(f"{took.passed_s():.1f} s from {tell.__name__} to the end, at step {step}")

    def test_a_stop_ends_it_and_changes_no_bit(self):
        """The stop comes where masks are due, where a rank is in the step's reduction while the other waits, and before the first step on both.
        Only one rank is told to stop, which has its data but not that of the following steps; before the first step both are."""
        def term_to_all(run):
            for pid in run.rank_pids().values():
                os.kill(pid, signal.SIGTERM)

        def usr1_to_rank_1(run):
            os.kill(run.rank_pids()[1], signal.SIGUSR1)

        def ctl_stop(run):
            run.ctl("stop")

        self.sets = [*SETS, self.recipe(RECIPE)]
        unbroken = self.go_on(run="unbroken")
        for both_wait in rounds([], [(0, term_to_all)]):
            self.require_stop(self.start_slow(0, 0), *both_wait)
        self.require_stop(self.start_slow(6, 7), 6, usr1_to_rank_1)
        self.require_stop(self.start_slow(6, 5), 11, ctl_stop)
        self.sets = [*self.sets, "data.loader_threads=0"]  # nothing is read ahead: both stand before the same step
        self.require_stop(self.start_slow(1, 1), 12, usr1_to_rank_1)
        again = self.go_on()
        self.assertIn("resuming from step 12", again.log)
        self.assertEqual(again.summary()["steps"], 13)
        self.assertEqual(again.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])


if __name__ == "__main__":
    unittest.main()
