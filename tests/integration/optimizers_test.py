"""Every optimizer in whole runs: killed, divided, resized, pruned, and the same bits each time."""
import re
import unittest

from harness import SOURCE, LockstepTest
from soak import IS_SOAK

STEPS = 44  # weights are pruned from step 12 on
RECIPE = """version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.3, final_sparsity: 0.8, start_step: 12, end_step: 44, update_frequency_steps: 8}
"""
OPTIMIZERS = {
    "sgd": "learning_rate: 0.1, weight_decay: 1.0e-3",
    "momentum": "learning_rate: 0.05, nesterov: true, weight_decay: 1.0e-3, decoupled: true",
    "adam": "learning_rate: 0.002, weight_decay: 1.0e-3, learning_rate_decay_type: cosine, warmup_steps: 9",
    "adamw": "learning_rate: 0.002, weight_decay: 0.1, weight_decay_exclude: [blocks.0, 're:.*classifier']",
    "adadelta": "learning_rate: 1.0",
    "adagrad": "learning_rate: 0.05",
    "ftrl": "learning_rate: 0.1, ftrl_l1: 1.0e-4",
    "rmsprop": "learning_rate: 0.001, learning_rate_decay_type: polynomial",
    "lion": "learning_rate: 0.001, weight_decay: 0.1",
    "muon": "learning_rate: 0.02, adamw_learning_rate: 0.002, weight_decay: 0.01, normuon_beta2: 0.95, "
            "end_weight_decay: 0.1, learning_rate_multipliers: {blocks.0: 0.5, 're:.*classifier.*': 2}",
}
# The types of the run file; one without a row above trains with DEFAULT.
TYPES = re.search(r"`optimizer.type` \| one of: ([\w, ]+) \|", (SOURCE / "docs/run_file.md").read_text())[1].split(", ")
DEFAULT = "learning_rate: 0.001"
# Whole runs of three kinds: ATen's formula, slots whose first value is not 0, and matrices. tests/train tries all of them in one process;
# tools/soak all of them in whole runs.
CHOSEN = TYPES if IS_SOAK else ("adam", "ftrl", "muon")


class Optimizers(LockstepTest):
    def sets_of(self, optimizer, *more):
        return [self.recipe(RECIPE), f"optimizer={{type: {optimizer}, {OPTIMIZERS.get(optimizer, DEFAULT)}}}", f"train.max_steps={STEPS}",
                "eval.every_epochs=0", "checkpoint.save_checkpoints_steps=20", *more]

    def assert_same(self, run, other, optimizer):
        self.assertEqual(run.summary()["parameters_sha256"], other.summary()["parameters_sha256"], optimizer)
        self.assertEqual(run.steps(), other.steps(), optimizer)
        saves = [one.folder / "checkpoints" / f"model.ckpt-{STEPS}" for one in (run, other)]
        for part in ("model", "optimizer", "_lockstep/masks"):
            self.tool("ckpt", "diff", *saves, "--under", part)

    def test_killed_and_divided_runs_end_alike(self):
        """A sharded run, killed between saves and resumed, compared with an unsharded, unbroken one."""
        for optimizer in CHOSEN:
            with self.subTest(optimizer):
                unbroken = self.train(run=f"unbroken_{optimizer}", sets=self.sets_of(optimizer))
                self.assertLess(unbroken.steps()[-1]["loss"], unbroken.steps()[0]["loss"])
                divided = {"run": f"divided_{optimizer}", "sets": self.sets_of(optimizer, "sync.shard_optimizer=true", "checkpoint.wait_for=commit")}
                killed = self.start_faulty("kill", rank=1, step=31, **divided).wait()
                self.assertIn(killed.code, (137, 69), killed.log)
                resumed = self.train(**divided)
                self.assertIn("resuming from step 20 ", resumed.log)
                self.assert_same(resumed, unbroken, optimizer)

    def test_elastic_runs_give_the_same_bits(self):
        """One rank; four and then two."""
        for optimizer in CHOSEN:
            with self.subTest(optimizer):
                sets = self.sets_of(optimizer, "run.deterministic=elastic")
                alone = self.train(1, run=f"alone_{optimizer}", sets=sets)
                stopped = self.start_faulty("usr1", rank=2, step=20, ranks=4, run=f"resized_{optimizer}", sets=sets).wait()
                self.assertEqual(stopped.code, 75, stopped.log)
                resized = self.train(2, run=f"resized_{optimizer}", sets=sets)
                self.assertEqual(resized.summary()["resumed_from_step"], 20)  # a mask is due there: the stop is seen before it
                self.assert_same(resized, alone, optimizer)

    def test_the_example_of_the_page_trains(self):
        page = (SOURCE / "docs/optimizers.md").read_text()
        file = self.folder / "page.yaml"
        file.write_text(re.search(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1])
        run = self.train(1, config=file)
        rates = [line["learning_rate"] for line in run.steps()]
        self.assertEqual((rates[0], max(rates)), (0, 0.002))
        self.assertLess(rates[-1], 1e-4)
        for name in TYPES:
            self.assertRegex(page, rf"(?m)^\| `{name}`")

    def test_E30_weight_decay_reaches_the_groups_that_are_named(self):
        start = ["model={type: cnn, channels: [4], batch_norm: true}", "recipe=null", "train.max_steps=1", "eval.every_epochs=0"]
        decay = "type: sgd, learning_rate: 0.1, decoupled: true, weight_decay: 0.1"
        found = {groups: self.train(1, run=f"run{i}", sets=[*start, f"optimizer={{{decay}, weight_decay_groups: [{groups}]}}"]).summary()["parameters_sha256"]
                 for i, groups in enumerate(("", "weights", "normalisation", "weights, normalisation"))}
        found["default"] = self.train(1, run="default", sets=[*start, f"optimizer={{{decay}}}"]).summary()["parameters_sha256"]
        self.assertEqual(found.pop("default"), found["weights"])
        self.assertEqual(len(set(found.values())), 4)

    def test_what_does_not_fit_is_refused(self):
        for optimizer, message in (
                ("{type: adam, momentum: 0.9}", "unknown key 'momentum' in 'optimizer'"),
                ("{type: rmsprop, adam_beta1: 0.9}", "unknown key 'adam_beta1' in 'optimizer'"),
                ("{type: adamw, decoupled: true}", "unknown key 'decoupled' in 'optimizer'"),
                ("{type: adagrad, adagrad_initial_accumulator_value: 0}", "adagrad_initial_accumulator_value"),
                ("{type: ftrl, ftrl_learning_rate_power: 0.5}", "ftrl_learning_rate_power"),
                ("{type: adm}", "adam"),
                ("{learning_rate_decay_type: cosine, warmup_steps: 3, warmup_epochs: 1}", "keep one"),
                ("{type: muon, muon_params: [conw0]}", "optimizer.muon_params: 'conw0' names no parameter"),
                ("{type: muon, muon_params: [blocks.0.conv.bias]}", "'blocks.0.conv.bias' names no parameter of two or more dimensions"),
                ("{type: muon, adjust_lr_fn: moonshot}", "match_rms_adamw"),
                ("{learning_rate_multipliers: {conw0: 0.1}}", "optimizer.learning_rate_multipliers: 'conw0' names no parameter"),
                ("{learning_rate_multipliers: {blocks.0: 0}}", "optimizer.learning_rate_multipliers.blocks.0"),
                ("{learning_rate_multipliers: [blocks.0]}", "must be a map from names to factors"),
                ("{weight_decay_exclude: [conw0]}", "'conw0' names no parameter"),
                ("{weight_decay_exclude: ['re:(']}", "is not a regular expression"),
                ("{weight_decay_groups: [norms]}", "'norms' is not a group: use weights, normalisation or biases")):
            refused = self.train(1, sets=["recipe=null", "train.max_steps=2", f"optimizer={optimizer}"], expect=78)
            self.assertIn(message, refused.log)


if __name__ == "__main__":
    unittest.main()
