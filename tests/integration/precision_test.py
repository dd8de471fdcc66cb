"""Mixed precision, batch statistics and clipping on real ranks, some of them without samples: a run that is stopped and
killed ends bit for bit where an unbroken one does, moving statistics and loss scale included."""
import re
import unittest

from harness import LockstepTest, metric
from soak import rounds

CNN = "model={type: cnn, channels: [6, 8], hidden: 16, batch_norm: true}"
STEPS = 14  # 3 epochs of 4 batches of 359 and one of 2
SETS = [CNN, "data.global_batch_size=359", f"train.max_steps={STEPS}", "checkpoint.save_checkpoints_steps=6", "eval.every_epochs=1",
        "sync.replica_check_every=1", "sync.overlap='true'", "sync.bucket_bytes=2000", "optimizer.clip_norm=1.0"]
RECIPE = """version: 1.0.0
modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 100}
  - !QuantizationModifier {start_epoch: 1, freeze_bn_stats_epoch: 2.2}
"""


class Precision(LockstepTest):
    def saved(self, run):
        """Checksum by tensor of the last save: everything except its shards."""
        table = self.tool("ckpt", "show", run.folder / "checkpoints")
        return dict(re.findall(r"^((?:model|optimizer|_lockstep)/\S+) .* ([0-9a-f]{8})$", table, re.MULTILINE))

    def test_a_broken_run_ends_as_an_unbroken_one(self):
        for precision, batch_norm in rounds([("bf16", "average"), ("fp16", "sync")], [("bf16", "broadcast")]):
            sets = [*SETS, self.recipe(RECIPE), f"train.precision={precision}", f"train.batch_norm={batch_norm}",
                    "train.loss_scale={initial_exponent: 12, growth_steps: 3}"]
            unbroken = self.train(4, run=f"unbroken_{batch_norm}", sets=sets)
            broken = f"broken_{batch_norm}"
            stopped = self.start_faulty("usr1", rank=3, step=3, ranks=4, run=broken, sets=sets).wait()
            self.assertEqual(stopped.code, 75, stopped.log)
            killed = self.start_faulty("kill", rank=1, step=8, ranks=4, run=broken, sets=sets).wait()
            self.assertIn(killed.code, (69, 137), killed.log)  # a peer may notice first
            resumed = self.train(4, run=broken, sets=sets)
            self.assertIn(resumed.summary()["resumed_from_step"], (4, 6))  # 4: update 6 was skipped, and so its save
            self.assertEqual(resumed.steps(), unbroken.steps())
            self.assertEqual(resumed.summary()["eval"], unbroken.summary()["eval"])
            before, after = self.saved(unbroken), self.saved(resumed)
            self.assertIn("model/blocks/1/norm/moving_variance", before)
            self.assertEqual("_lockstep/loss_scale/exponent" in before, precision == "fp16")
            for folder in ("_lockstep/settings", "_lockstep/overlap", "_lockstep/packing"):  # folders' names, measured choices
                for key in [key for key in before if key.startswith(folder)]:
                    del before[key], after[key]
            self.assertEqual(before, after)
            page = unbroken.last_page(0)
            self.assertGreater(metric(page, "lockstep_gradient_norm"), 0)
            if precision == "fp16":
                self.assertGreaterEqual(metric(page, "lockstep_loss_scale"), 1)
            else:
                self.assertNotIn("\nlockstep_loss_scale ", page)

    def test_losses_are_nearly_those_of_float32(self):
        losses = {}
        for precision in ("fp32", "bf16", "fp16"):
            run = self.train(2, run=precision, sets=["train.max_steps=60", f"train.precision={precision}"])
            losses[precision] = [line["loss"] for line in run.steps()]
        for precision, limit in (("bf16", 0.05), ("fp16", 0.01)):
            worst = max(abs(a - b) for a, b in zip(losses[precision][:20], losses["fp32"][:20]))
            print(f"{precision}: largest difference of the first 20 losses {worst:.1e}")
            self.assertLessEqual(worst, limit)
            self.assertNotEqual(losses[precision], losses["fp32"])


if __name__ == "__main__":
    unittest.main()
