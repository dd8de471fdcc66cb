"""A run is told to stop while a rank waits for data that do not come for a minute."""
import os
import pathlib
import signal
import time
import unittest

from harness import BUILD, LockstepTest, wait_for

SLOW_SOURCE = BUILD / "tests" / "integration" / "slow_source"
BOUND_S = 15  # from the signal to the end of mpirun; it takes about 2

# Masks at each step from 4 to 10; what travels is rounded by what travelled before.
RECIPE = """version: 1.0.0
modifiers:
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 0.65}
  - !GMPruningModifier {params: __ALL_PRUNABLE__, init_sparsity: 0.2, final_sparsity: 0.7, start_epoch: 0.2, end_epoch: 0.5, update_frequency: 0.05}
"""
SETS = ["data.train={type: slow}", "data.global_batch_size=50", "data.eval=null", "train.max_steps=13", "eval.every_epochs=0",
        "checkpoint.save_checkpoints_steps=1000000", "sync.comm_dtype=fp16", "optimizer={type: adam, learning_rate: 0.01}"]


class DataWait(LockstepTest):
    def start_slow(self, rank, batch):
        """The data of that batch of this process do not come on `rank`; returns once it waits for them."""
        block = self.folder / f"block_{rank}_{batch}"
        fault = {"LOCKSTEP_TEST_RANK": str(rank), "LOCKSTEP_TEST_STEP": str(batch), "LOCKSTEP_TEST_BLOCK": str(block)}
        run = self.start(program=SLOW_SOURCE, environment=fault, sets=self.sets)
        ranks = [0, 1] if rank == "all" else [rank]
        wait_for(lambda: all(pathlib.Path(f"{block}.{one}").exists() for one in ranks), "the data to stand still")
        return run

    def go_on(self, **kwargs):
        """Data that come."""
        return self.train(program=SLOW_SOURCE, environment={"LOCKSTEP_TEST_RANK": "none"}, sets=self.sets, **kwargs)

    def require_stop(self, run, step, number):
        """Whichever signal: mpirun ends all by itself after a SIGTERM of its own."""
        pids = run.rank_pids()
        if step > 0:
            run.wait_for_step(step)
        began = time.monotonic()
        for pid in pids.values():
            os.kill(pid, number)
        run.wait()
        took_s = time.monotonic() - began
        self.assertEqual(run.code, 75, run.log)
        self.assertLess(took_s, BOUND_S, run.log)
        self.assertRegex(run.log, r"told to stop, after \d+\.\d s in which the data of the next step did not come")
        self.assertRegex(run.log, rf"stopped at step {step} on request")
        print(f"{took_s:.1f} s from {signal.Signals(number).name} to the end, at step {step}")

    def test_a_stop_ends_it_and_changes_no_bit(self):
        """Before the first step, on all ranks; where masks are due; and where a rank stands in the step's reduction while the other waits."""
        self.sets = [*SETS, self.recipe(RECIPE)]
        unbroken = self.go_on(run="unbroken")
        self.require_stop(self.start_slow("all", 0), 0, signal.SIGTERM)
        self.require_stop(self.start_slow(0, 6), 6, signal.SIGUSR1)
        self.require_stop(self.start_slow(1, 5), 11, signal.SIGUSR1)
        again = self.go_on()
        self.assertIn("resuming from step 11", again.log)
        self.assertEqual(again.summary()["steps"], 13)
        self.assertEqual(again.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])


if __name__ == "__main__":
    unittest.main()
