"""Settings of saves in a run file: content, frequency, retention, and how long training waits."""
import json
import re
import unittest

from harness import LockstepTest

QUICK = ["eval.every_epochs=0", "train.max_steps=100"]
# 90 % of most weights from step 20 on; both moments of adam
SPARSE_RECIPE = """version: 1.0.0
modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 30}
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.5, final_sparsity: 0.9, start_step: 5, end_step: 20, update_frequency_steps: 5}
"""


class Saves(LockstepTest):
    def numbers(self, run):
        return sorted(int(path.stem.rsplit("-", 1)[1]) for path in run.folder.glob("checkpoints/*.index"))

    def names(self, run, where=""):
        shown = json.loads(self.tool("ckpt", "show", run.folder / "checkpoints" / where, "--json"))
        return {tensor["name"] for tensor in shown["tensors"]}

    def test_off_saves_nothing_and_goes_on_from_nothing(self):
        for _ in range(2):
            run = self.train(run="off", sets=[*QUICK, "checkpoint=off"])
            self.assertFalse((run.folder / "checkpoints").exists())
            self.assertEqual(run.summary()["checkpoint"], "")
        stopped = self.start_faulty("usr1", rank=1, step=30, run="off", sets=[*QUICK, "checkpoint=off"]).wait()
        self.assertEqual(stopped.code, 75, stopped.log)
        self.assertIn("without a save (checkpoint is off)", stopped.log)
        refused = self.train(run="off", sets=[*QUICK, "checkpoint=off"], arguments=["--resume", "some/model.ckpt-3"], expect=78)
        self.assertIn("cannot be combined with checkpoint: off", refused.log)

    def test_include_says_what_a_save_holds(self):
        run = self.train(run="model", sets=[*QUICK, "checkpoint.include=[model]"])
        names = self.names(run)
        self.assertTrue(any(name.startswith("model/") for name in names))
        for lost in ("optimizer/", "_lockstep/masks/", "_lockstep/step", "_lockstep/random/"):
            self.assertFalse([name for name in names if name.startswith(lost)])
        again = self.train(run="model", sets=[*QUICK, "checkpoint.include=[model]"], expect=78)
        self.assertIn("checkpoint.include lacks clock, so no run can continue from model.ckpt-100", again.log)
        started = self.train(run="warm", sets=[*QUICK, f"checkpoint.warm_start_ckpt={run.folder}/checkpoints"])
        self.assertEqual(started.summary()["steps"], 100)

    def test_what_a_save_lacks_is_asked_for(self):
        sets = ["eval.every_epochs=0", "checkpoint.include=[model, clock, modifiers]"]
        self.train(run="run", sets=[*sets, "train.max_steps=50"])
        fresh_moments = self.train(run="run", sets=[*sets, "train.max_steps=60"])
        self.assertEqual(fresh_moments.summary()["resumed_from_step"], 50)
        refused = self.train(run="run", sets=["eval.every_epochs=0", "train.max_steps=70"], expect=78)
        self.assertIn("contains no 'optimizer/", refused.log)

    def test_what_stays(self):
        run = self.train(run="run", sets=[*QUICK, "checkpoint.save_checkpoints_steps=10", "checkpoint.keep_checkpoint_max=2",
                                          "checkpoint.keep_every=40"])
        self.assertEqual(self.numbers(run), [40, 80, 90, 100])

    def test_the_best_save_stays(self):
        run = self.train(run="run", sets=["train.max_steps=230", "eval.every_epochs=1", "checkpoint.keep_best=eval.loss",
                                          "checkpoint.save_checkpoints_steps=1000", "checkpoint.keep_checkpoint_max=1"])
        found = re.findall(r"\[eval\] step (\d+): loss ([\d.]+)", run.log)
        best = int(min(found, key=lambda pair: float(pair[1]))[0])
        number, metric, value = (run.folder / "checkpoints/model.ckpt.best").read_text().split()
        self.assertEqual((int(number), metric), (best, "eval.loss"))
        self.assertAlmostEqual(float(value), min(float(loss) for _, loss in found), places=4)
        self.assertEqual(self.numbers(run), sorted({best, 230}))

    def test_sparse_saves_are_small_and_go_on_bit_for_bit(self):
        recipe = self.recipe(SPARSE_RECIPE)
        sets = [recipe, "eval.every_epochs=0", "model={type: mlp, layers: [64, 1024, 512, 10]}",
                "optimizer={type: adam, learning_rate: 0.001}", "checkpoint.save_checkpoints_steps=1000"]
        dense = self.train(run="dense", sets=[*sets, "train.max_steps=60"])
        half = self.train(run="sparse", sets=[*sets, "train.max_steps=40", "checkpoint.sparse=true"])
        whole = self.train(run="sparse", ranks=3, sets=[*sets, "train.max_steps=40", "checkpoint.sparse=true"])
        self.assertEqual(half.summary()["parameters_sha256"], whole.summary()["parameters_sha256"])
        resumed = self.train(run="sparse", sets=[*sets, "train.max_steps=60", "checkpoint.sparse=true"])
        self.assertEqual(resumed.summary()["resumed_from_step"], 40)
        self.assertEqual(resumed.summary()["parameters_sha256"], dense.summary()["parameters_sha256"])
        size = lambda run: sum(path.stat().st_size for path in run.folder.glob("checkpoints/model.ckpt-60.*"))
        self.assertLess(size(resumed), 0.2 * size(dense))

    def test_divided_moments_are_saved_as_slices_and_go_on_bit_for_bit(self):
        sets = ["eval.every_epochs=0", "optimizer={type: adam, learning_rate: 0.001}", "sync.shard_optimizer=true",
                "model={type: mlp, layers: [64, 512, 512, 10]}"]
        unbroken = self.train(run="unbroken", sets=[*sets, "train.max_steps=60"])
        self.train(run="run", sets=[*sets, "train.max_steps=40"])
        shown = json.loads(self.tool("ckpt", "show", self.folder / "run/checkpoints", "--json"))
        self.assertTrue(any(tensor.get("slices") for tensor in shown["tensors"] if tensor["name"].startswith("optimizer/")))
        resumed = self.train(run="run", sets=[*sets, "train.max_steps=60"])
        self.assertEqual(resumed.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])

    def test_training_waits_as_long_as_it_is_told(self):
        shas = set()
        for wait_for in ("update", "staging", "commit"):
            run = self.train(run=wait_for, sets=[*QUICK, "checkpoint.save_checkpoints_steps=7", f"checkpoint.wait_for={wait_for}"])
            self.assertEqual(len(re.findall(r"saved step \d+:", run.log)), 15)
            shas.add(run.summary()["parameters_sha256"])
        self.assertEqual(len(shas), 1)


if __name__ == "__main__":
    unittest.main()
