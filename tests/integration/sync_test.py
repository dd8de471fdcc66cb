"""Ways of sending gradients change the time and the number of bytes, but no bit of the result."""
import os
import re
import signal
import unittest

from harness import ENDLESS, PRUNE_EARLY, LockstepTest, metric, wait_for, within
from soak import IS_SOAK, rounds

SETS = [PRUNE_EARLY, "train.max_steps=81", "eval.every_epochs=0", "checkpoint.save_checkpoints_steps=1000"]
PRUNED = """version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.9, final_sparsity: 0.9, start_step: 0, end_step: 1000, update_frequency_steps: 500}
"""
WEIGHTS = 16 * 9 + 32 * 16 * 9 + 64 * 32 * 9 + 10 * 256
BIASES = 16 + 32 + 64 + 10
SHARE_BYTES = 14 * 8


class Sync(LockstepTest):
    def test_every_way_gives_the_same_bits(self):
        ways = {
            "plain": ["sync.overlap=false", "sync.sparse_allreduce=never"],
            "auto": [],
            "packed": ["sync.overlap=true", "sync.sparse_allreduce=always", "sync.bucket_bytes=20000"],
            "messages": ["sync.shared_window=false"],
            "divided": ["sync.shard_optimizer=true"],
            "divided_packed": ["sync.shard_optimizer=true", "sync.sparse_allreduce=always", "sync.bucket_bytes=30000"],
        }
        few = ("plain", "packed", "divided_packed")
        for ranks in (2, 3):
            runs = {name: self.train(ranks, run=f"{name}{ranks}", sets=SETS + ways[name]) for name in (few if ranks == 3 and not IS_SOAK else ways)}
            plain = runs.pop("plain").summary()["parameters_sha256"]
            for name, run in runs.items():
                self.assertEqual(run.summary()["parameters_sha256"], plain, f"{name}, {ranks} ranks")

    def test_packed_gradients_need_what_is_kept(self):
        run = self.train(2, sets=["train.max_steps=40", "eval.every_epochs=0", "sync.sparse_allreduce=always", self.recipe(PRUNED)])
        page = run.last_page(0)
        reduced = metric(page, "lockstep_allreduce_bytes_total") / 40
        dense = 4 * (WEIGHTS + BIASES)
        self.assertLessEqual(reduced - SHARE_BYTES, 0.1 * 4 * WEIGHTS + 4 * BIASES + 4 * 4)  # llround of 4 layers
        self.assertEqual(reduced - SHARE_BYTES + metric(page, "lockstep_allreduce_saved_bytes_total") / 40, dense)
        self.assertGreater(metric(page, "lockstep_allreduce_seconds_total"), 0)

    def test_a_divided_optimizer_goes_on_from_a_stop(self):
        adam = [*SETS, "optimizer={type: adam, learning_rate: 0.002}", "sync.shard_optimizer=true"]
        unbroken = self.train(2, run="unbroken", sets=adam)
        for step in sorted(rounds((26,), (10, 51))):
            stopped = self.start_faulty("usr1", rank=step % 2, step=step, run="stopped", sets=adam).wait()
            self.assertEqual(stopped.code, 75, stopped.log)
        resumed = self.train(2, run="stopped", sets=adam)
        self.assertEqual(resumed.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
        self.assertEqual(resumed.steps(), unbroken.steps())
        whole = self.train(2, run="whole", sets=[*adam, "sync.shard_optimizer=false"])
        self.assertEqual(whole.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
        self.assertGreater(metric(unbroken.last_page(0), "lockstep_gather_bytes_total"), 0)

    def test_rounded_messages_go_on_from_a_stop(self):
        rounded = [*SETS, "sync.comm_dtype=bf16"]
        unbroken = self.train(2, run="unbroken", sets=rounded)
        stopped = self.start_faulty("usr1", rank=1, step=30, run="stopped", sets=rounded).wait()
        self.assertEqual(stopped.code, 75, stopped.log)
        resumed = self.train(2, run="stopped", sets=rounded)
        self.assertEqual(resumed.steps(), unbroken.steps())
        self.assertEqual(resumed.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
        divided = self.train(2, run="divided", sets=[*rounded, "sync.shard_optimizer=true", "sync.bucket_bytes=30000"])
        self.assertEqual(divided.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
        alone = self.train(1, run="alone", sets=rounded)  # rounds nothing
        self.assertLess(max(abs(a["loss"] - b["loss"]) for a, b in zip(alone.steps()[:20], unbroken.steps())), 0.05)

    def test_a_rank_that_hangs_is_named_and_ends_the_others(self):
        for name, sets in {"window": [], "messages": ["sync.shared_window=false"], "divided": ["sync.shard_optimizer=true"]}.items():
            run = self.start(2, run=name, config=ENDLESS, sets=["sync.timeout_s=2", *sets])
            pids = run.rank_pids()
            wait_for(lambda: (run.folder / "train/steps.csv").exists(), "training to begin")
            os.kill(pids[1], signal.SIGSTOP)
            try:
                with within(20, "the end of the other rank"):
                    run.wait()
            finally:
                os.kill(pids[1], signal.SIGKILL)
            self.assertEqual(run.code, 79, run.log)
            self.assertRegex(run.log, r", call \d+: waited \S+ s for rank 1 \(process \d+ on ", run.log)
            print(name, re.search(r"E rank 0 .*", run.log)[0])


if __name__ == "__main__":
    unittest.main()
