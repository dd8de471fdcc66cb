"""run.deterministic: elastic: the number of ranks changes no bit, from the start and over stops."""
import unittest

from harness import PRUNE_EARLY, LockstepTest
from soak import rounds

SETS = ["run.deterministic=elastic", PRUNE_EARLY, "train.max_steps=81", "eval.every_epochs=0", "checkpoint.save_checkpoints_steps=1000"]


class Elastic(LockstepTest):
    def on_one_rank(self):
        return self.shared("one_rank", 1, sets=SETS)

    def assert_same(self, run, other):
        self.assertEqual(run.summary()["parameters_sha256"], other.summary()["parameters_sha256"])
        self.assertEqual(run.steps(), other.steps())

    def test_1_2_4_and_8_ranks_give_the_same_bits(self):
        """Momentum and masks from step 23 on; then batches of 30, whose shards differ in size, in micro-batches."""
        for name, more in {"pruned": [], "uneven": ["data.global_batch_size=30", "train.replicas_to_aggregate=2"]}.items():
            alone = self.train(1, run=name, sets=SETS + more) if more else self.on_one_rank()
            for ranks in rounds((4,) if more else (2, 8), (2, 4, 8)):
                self.assert_same(self.train(ranks, run=f"{name}{ranks}", sets=SETS + more), alone)
        # Without it the bits differ, or this test shows nothing.
        plain = [self.train(ranks, run=f"plain{ranks}", sets=[*SETS, "run.deterministic=true"]) for ranks in (1, 2)]
        self.assertNotEqual(*(run.summary()["parameters_sha256"] for run in plain))

    def test_a_run_may_change_its_size_at_every_stop(self):
        for ranks, step in ((4, 9), (2, 22), (1, 31)):
            stopped = self.start_faulty("usr1", rank=0, step=step, ranks=ranks, run="resized", sets=SETS).wait()
            self.assertEqual(stopped.code, 75, stopped.log)
        resumed = self.train(8, run="resized", sets=SETS)
        self.assertEqual(resumed.summary()["resumed_from_step"], 32)
        self.assert_same(resumed, self.on_one_rank())

    def test_what_cannot_be_elastic_is_refused(self):
        refused = self.train(3, sets=SETS, expect=78)
        self.assertIn("1, 2, 4 or 8 ranks, the world has 3", refused.log)
        refused = self.train(2, sets=[*SETS, "sync.comm_dtype=bf16"], expect=78)
        self.assertIn("cannot be combined with sync.comm_dtype", refused.log)
        refused = self.train(2, sets=[*SETS, "run.device=cuda"], expect=78)
        self.assertIn("cannot be combined with run.device: cuda (--set run.device): on GPUs sums over ranks are in NCCL's order", refused.log)


if __name__ == "__main__":
    unittest.main()
