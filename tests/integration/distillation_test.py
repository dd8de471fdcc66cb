"""Recipes that distil: the same bits on any number of ranks and over stops, teachers of all kinds, and those that are refused."""
import json
import unittest

from harness import DIGITS, LockstepTest
from soak import rounds

LENGTH = "  - !EpochRangeModifier {start_epoch: 0, end_epoch: 2}\n"
PRUNING = ("  - !GMPruningModifier {params: __ALL__, init_sparsity: 0.3, final_sparsity: 0.8, start_step: 8, end_step: 28, "
           "update_frequency_steps: 4}\n")
QUANTIZATION = "  - !QuantizationModifier {start_step: 20}\n"
SHORT = ["train.max_steps=36", "eval.every_epochs=0", "checkpoint.save_checkpoints_steps=1000"]
PLAIN = ["recipe=null", *SHORT]
TEACHERS = '''
import torch


class Digits(torch.nn.Module):
    """All of its weights are frozen, and it draws numbers, which must not change those of the network."""

    def __init__(self, classes=10):
        super().__init__()
        torch.rand(1)
        self.layer = torch.nn.Linear(64, classes).requires_grad_(False)

    def forward(self, inputs):
        return self.layer(inputs.flatten(1)) + 0 * torch.rand(1)


class Keywords(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x, labels=None):
        logits = self.layer(x)
        return logits if labels is None else {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Points(torch.utils.data.Dataset):
    num_classes = 3

    def __len__(self):
        return 48

    def __getitem__(self, index):
        return {"x": torch.sin(torch.arange(4.0) * (index + 1)), "labels": index % 3}
'''
KEYWORDS = '''version: 1.0.0
run: {{name: keywords}}
model: {{type: python, path: {path}, name: Keywords}}
data:
  train: {{type: python, path: {path}, name: Points}}
  global_batch_size: 16
train:
  max_steps: 6
  teacher_model: {{type: python, path: {path}, name: Keywords}}
recipe: {recipe}
optimizer: {{type: sgd, learning_rate: 0.5}}
summary: {{log_every: 1}}
checkpoint: off
'''


class Distillation(LockstepTest):
    def recipe_of(self, distillation, more=""):
        return self.recipe(f"version: 1.0.0\nmodifiers:\n{LENGTH}  - !DistillationModifier {{{distillation}}}\n{more}",
                           name=f"recipe{abs(hash(distillation + more))}.yaml")

    def teacher(self):
        return self.shared("teacher", 2, sets=PLAIN).folder

    def python_teacher(self, name="Digits", args="{}"):
        path = self.folder / "teachers.py"
        path.write_text(TEACHERS)
        return f"train.teacher_model={{type: python, path: {path}, name: {name}, args: {args}}}"

    def test_a_network_with_a_loss_of_its_own_learns_from_a_teacher(self):
        """The loss that the network returns, mixed, gives the losses of the same one in the worker. The teacher has the seed's first weights."""
        self.python_teacher()
        recipe = self.recipe_of("hardness: 0.6, start_step: 2").removeprefix("recipe=")
        config = self.folder / "keywords.yaml"
        config.write_text(KEYWORDS.format(path=self.folder / "teachers.py", recipe=recipe))
        losses = [[step["loss"] for step in self.train(2, config=config, run=loss, sets=[f"train.loss={loss}"]).steps()]
                  for loss in ("auto", "own")]
        self.assertEqual(len(losses[0]), 6)
        for own, outside in zip(*losses, strict=True):
            self.assertAlmostEqual(own, outside, delta=1e-6)
        # Of a network like its teacher only the task's part of the loss is left.
        plain = self.train(1, config=config, run="plain", sets=["train.loss=own", "train.max_steps=3"]).steps()
        self.assertAlmostEqual(plain[2]["loss"], losses[1][2], delta=1e-6)

    def check(self, *sets, expect=0):
        settings = [f"run.project_dir={self.folder / 'checked'}", *SHORT, *sets]
        return self.tool("check", DIGITS, *(word for one in settings for word in ("--set", one)), expect=expect)

    def assert_same(self, run, other):
        self.assertEqual(run.summary()["parameters_sha256"], other.summary()["parameters_sha256"])
        self.assertEqual(run.steps(), other.steps())

    def test_1_2_and_4_ranks_give_the_same_bits(self):
        sets = [*SHORT, "run.deterministic=elastic", "train.replicas_to_aggregate=2", f"train.distill_teacher={self.teacher()}",
                self.recipe_of("hardness: 0.8, start_step: 2, end_step: 30", PRUNING + QUANTIZATION)]
        alone = self.train(1, run="alone", sets=sets)
        self.assertIn("the teacher's weights are from", alone.log)
        for ranks in rounds((4,), (2, 4)):
            self.assert_same(self.train(ranks, run=f"ranks{ranks}", sets=sets), alone)
        without = self.train(1, run="without", sets=[*sets, "train.distill_teacher=disable"])
        self.assertNotEqual(without.summary()["parameters_sha256"], alone.summary()["parameters_sha256"])

    def test_a_resumed_run_takes_the_same_path(self):
        """Stopped before, at and after the step at which the network is copied; and with another network as the teacher."""
        for name, more in {"self": ["train.distill_teacher=self"], "python": [self.python_teacher()]}.items():
            sets = [*SHORT, *more, self.recipe_of("start_step: 12, hardness: 0.9", PRUNING)]
            whole = self.train(2, run=f"{name}_whole", sets=sets)
            for stop in (11, 12, 21):
                run = f"{name}{stop}"
                self.train(2, run=run, sets=[*sets, f"train.max_steps={stop}"])
                parts = self.train(2, run=run, sets=sets)
                self.assertIn(f"resuming from step {stop}", parts.log)
                self.assertEqual(parts.summary()["parameters_sha256"], whole.summary()["parameters_sha256"], run)

    def test_another_teacher_is_refused_on_resume(self):
        sets = [*SHORT, self.recipe_of("hardness: 0.5"), f"train.distill_teacher={self.teacher()}"]
        self.train(2, sets=[*sets, "train.max_steps=5"])
        other = self.train(2, run="other", sets=[*PLAIN, "train.max_steps=3"]).folder
        refused = self.train(2, sets=[*sets, f"train.distill_teacher={other}"], expect=78)
        self.assertIn("the teacher's sha256 was", refused.log)

    def test_what_cannot_teach_is_refused_before_training(self):
        recipe = self.recipe_of("hardness: 0.5")
        self.assertIn("needs a teacher: set train.distill_teacher", self.check(recipe, expect=78))
        self.assertIn("train.distill_teacher: no checkpoints in", self.check(recipe, f"train.distill_teacher={self.folder}", expect=66))
        wide = self.check(recipe, self.python_teacher(args="{classes: 7}"), expect=78)
        self.assertIn("returns [2, 10] and its teacher [2, 7] for the same 2 samples", wide)
        net = ["model={type: mlp, layers: [64, 16, 10]}", f"train.distill_teacher={self.teacher()}"]
        self.assertIn("layers/0/weight", self.check(recipe, *net, expect=78).replace(".", "/"))
        mlp = "train.teacher_model={type: mlp, layers: [64, 16, 10]}"
        self.assertIn("begins with random weights", self.check(recipe, mlp, expect=78))
        self.assertIn("has no effect with train.distill_teacher: self", self.check(recipe, mlp, "train.distill_teacher=self", expect=78))

    def test_what_can_teach_passes(self):
        recipe = self.recipe_of("hardness: 0.5")
        self.assertIn(": ok", self.check(recipe, "train.distill_teacher=self"))
        self.assertIn(": ok", self.check(recipe, "model={type: mlp, layers: [64, 16, 10]}", f"train.distill_teacher={self.teacher()}",
                                         "train.teacher_model={type: digits_net}"))
        disabled = self.check(recipe, "train.distill_teacher=disable")
        self.assertIn("train.distill_teacher is disable: the loss is that of the task alone", disabled)


class Sensitivity(LockstepTest):
    def test_the_losses_are_those_of_networks_pruned_alone(self):
        run = self.train(1, sets=[*PLAIN, "data.shuffle=false"])
        where = ["--set", f"run.project_dir={run.folder}", "--set", "recipe=null", "--set", "train.max_steps=36"]
        files = [self.folder / "s.json", self.folder / "s.svg"]
        before = sorted((path, path.stat().st_mtime) for path in run.folder.rglob("*.ckpt*"))
        table = self.tool("sensitivity", DIGITS, *where, "--levels", 0.9, 0.25, "--json", files[0], "--svg", files[1])
        print(table)
        self.assertEqual(sorted((path, path.stat().st_mtime) for path in run.folder.rglob("*.ckpt*")), before)
        found = json.loads(files[0].read_text())
        self.assertEqual([one["name"] for one in found["weights"]], [f"blocks.{i}.conv.weight" for i in range(3)] + ["classifier.weight"])
        self.assertEqual((found["levels"], found["global_step"]), ([0.25, 0.9], 36))
        for one in found["weights"]:
            self.assertIn(f"{one['losses'][0]:.4f}", table)
            self.assertGreater(one["losses"][1], found["loss"])
            self.assertGreater(one["losses"][1], one["losses"][0])
        self.assertIn("<svg", files[1].read_text())
        # A run that prunes this weight in its only step, without moving it, has the same loss.
        pruned = self.train(1, run="pruned", sets=[
            "train.max_steps=1", "data.shuffle=false", "optimizer={type: sgd, learning_rate: 1e-12}", f"checkpoint.warm_start_ckpt={run.folder}",
            self.recipe("version: 1.0.0\nmodifiers:\n  - !GMPruningModifier {params: [classifier], init_sparsity: 0.9, final_sparsity: 0.9, "
                        "start_step: 0, end_step: 1, update_frequency_steps: 1}\n")])
        self.assertAlmostEqual(pruned.summary()["eval"]["loss"], found["weights"][3]["losses"][1], places=5)
        self.tool("sensitivity", DIGITS, *where, "--levels", 1.5, expect=64)


class PruningByGradients(LockstepTest):
    RECIPES = {"obs": "!OBSPruningModifier {params: __ALL__, init_sparsity: 0.3, final_sparsity: 0.8, start_step: 8, end_step: 28, "
                      "update_frequency_steps: 4, num_grads: 3, fisher_block_size: 16}",
               "movement": "!MovementPruningModifier {params: __ALL__, init_sparsity: 0.3, final_sparsity: 0.8, start_step: 8, end_step: 28, "
                           "update_frequency_steps: 4}"}

    def sets(self, name, *more):
        return [*SHORT, *more, self.recipe(f"version: 1.0.0\nmodifiers:\n{LENGTH}  - {self.RECIPES[name]}\n", name=f"{name}.yaml")]

    def test_1_2_and_4_ranks_give_the_same_bits(self):
        digests = set()
        for name in self.RECIPES:
            sets = self.sets(name, "run.deterministic=elastic")
            alone = self.train(1, run=name, sets=sets)
            self.assertAlmostEqual(alone.summary()["sparsity"], 0.8, places=3)
            digests.add(alone.summary()["parameters_sha256"])
            for ranks in rounds((4,), (2, 4)):
                run = self.train(ranks, run=f"{name}{ranks}", sets=sets)
                self.assertEqual(run.summary()["parameters_sha256"], alone.summary()["parameters_sha256"])
        self.assertEqual(len(digests), 2)

    def test_a_resumed_run_takes_the_same_path(self):
        """Stopped within a window of gradients; the second part runs on as many ranks, whose shares of the statistics are in the save."""
        for name in self.RECIPES:
            sets = self.sets(name)
            whole = self.train(2, run=f"{name}_whole", sets=sets)
            for stop in (7, 18):
                self.train(2, run=f"{name}{stop}", sets=[*sets, f"train.max_steps={stop}"])
                parts = self.train(2, run=f"{name}{stop}", sets=sets)
                self.assertEqual(parts.summary()["parameters_sha256"], whole.summary()["parameters_sha256"])
            self.assertNotIn("_lockstep/pruning" if name == "obs" else "nothing",
                             self.tool("ckpt", "show", whole.folder / "checkpoints", "--json"))

    def test_a_resumed_run_may_have_another_size(self):
        sets = self.sets("obs", "run.deterministic=elastic")
        whole = self.train(1, run="whole", sets=sets)
        self.train(4, run="parts", sets=[*sets, "train.max_steps=18"])
        self.assertIn("_lockstep/pruning/", self.tool("ckpt", "show", self.folder / "parts" / "checkpoints", "--json"))
        parts = self.train(2, run="parts", sets=sets)
        self.assertEqual(parts.summary()["parameters_sha256"], whole.summary()["parameters_sha256"])

    def test_what_has_no_mean_gradients_is_refused(self):
        for key, value in (("sync.shard_optimizer", "true"), ("sync.sync_replicas", "false")):
            refused = self.train(2, sets=[*self.sets("obs"), f"{key}={value}"], expect=78)
            self.assertIn("cannot be combined with a recipe that prunes by gradients", refused.log)


if __name__ == "__main__":
    unittest.main()
