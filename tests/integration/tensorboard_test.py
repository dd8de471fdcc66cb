"""TensorBoard's own reader finds in a run's folders every tag that the run must have written, no others, with the values of its records."""
import csv
import json
import pathlib
import subprocess
import unittest

from exported import PYTHON, require_python
from harness import LockstepTest

RECIPE = pathlib.Path(__file__).parent / "programs/every_modifier.yaml"
STEPS, EVERY, STEPS_PER_EPOCH, HISTOGRAMS_EVERY, IMAGES_EVERY = 69, 5, 23, 30, 30
CONVOLUTIONS = [f"blocks.{i}.conv.weight" for i in range(3)]
PARAMS = [f"{layer}/{kind}" for layer in ("blocks/0/conv", "blocks/1/conv", "blocks/2/conv", "classifier") for kind in ("weight", "bias")]
# By tag what the recipe's modifiers show from the first step on, and those of later ones with the step of their first point.
RECAL_AT_ONCE = {"sparsity", "mask_updates", "revived_weights", "quantized_layers", "learning_rate/weights", "learning_rate/other",
                 "7:TrainableParamsModifier/blocks.0.conv.weight/trainable", "7:TrainableParamsModifier/blocks.0.conv.bias/trainable",
                 "13:QuantizationModifier/on", "8:GMPruningModifier/target_sparsity", "9:GradualKSModifier/target_sparsity", "9:GradualKSModifier/classifier.weight/sparsity",
                 *(f"{modifier}/{param}/sparsity" for modifier in ("8:GMPruningModifier", "10:ConstantPruningModifier") for param in CONVOLUTIONS)}
RECAL_LATER = {"12:GradualParamModifier/blocks.2.conv.bias/value": 0.3 * STEPS_PER_EPOCH, "weight_decay/weights": 0.75 * STEPS_PER_EPOCH,
               "11:SetParamModifier/classifier.bias/value": 1.0 * STEPS_PER_EPOCH}
# Steps of the first and last points of each rate while its modifier sets it.
RECAL_WHILE = {f"{modifier}/learning_rate/{group}": (first * STEPS_PER_EPOCH, last * STEPS_PER_EPOCH) for group in ("weights", "other") for modifier, first, last in
               (("2:SetLearningRateModifier", 0, 0.5), ("3:LearningRateModifier", 0.5, 1.5), ("4:LearningRateModifier", 1.5, 2), ("5:LearningRateFunctionModifier", 2, 9))}
RECAL_LATER["6:SetWeightDecayModifier/weight_decay/weights"] = 0.75 * STEPS_PER_EPOCH
CURVES = {"loss/train": "loss", "lr": "learning_rate", "sparsity": "sparsity", "recal/sparsity": "sparsity", "recal/learning_rate/weights": "learning_rate"}
OF_CLASSES, OF_ALL = ("precision", "recall"), ("loss", "accuracy", "top_5", "macro_precision", "macro_recall")


def read_by_tensorboard(folder):
    """{kind: {tag: {step: value}}}, kinds that hold something."""
    done = subprocess.run([PYTHON, pathlib.Path(__file__).with_name("run_tags.py"), folder], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    kinds = {kind: {tag: dict(points) for tag, points in tags.items()} for kind, tags in json.loads(done.stdout).items()}
    return {kind: tags for kind, tags in kinds.items() if tags}


class TensorBoard(LockstepTest):
    def train_with_everything(self):
        require_python()
        callbacks = {"inputs": {"type": "summary", "key": "inputs", "as": "image", "every": IMAGES_EVERY, "max_samples": 2, "modes": ["train"]},
                     "topk": {"k": [1, 3], "modes": ["eval"]}}
        return self.train(2, sets=[f"train.max_steps={STEPS}", f"recipe={RECIPE}", f"summary.save_summary_steps={EVERY}", "eval.every_epochs=1",
                                   f"summary.histogram_steps={HISTOGRAMS_EVERY}", "eval.metrics=[top_k, precision_recall]",
                                   f"callbacks={json.dumps(callbacks)}"])

    def test_every_tag_of_a_run_with_every_modifier(self):
        run = self.train_with_everything()
        found = read_by_tensorboard(run.folder / "train")
        self.assertEqual(set(found), {"scalars", "histograms", "images", "tensors"})
        self.assertEqual(set(found["scalars"]), {"loss/train", "lr", "weight_decay", "sparsity"} |
                         {f"recal/{tag}" for tag in RECAL_AT_ONCE | set(RECAL_LATER) | set(RECAL_WHILE)})
        self.assertEqual(set(found["histograms"]), {f"weights/{param}" for param in PARAMS})
        self.assertEqual(set(found["images"]), {"inputs/0", "inputs/1"})
        self.assertEqual(set(found["tensors"]), {"run/settings"})
        points = {1, STEPS, *range(EVERY, STEPS, EVERY)}
        for tag, curve in found["scalars"].items():
            tag = tag.removeprefix("recal/")
            first, last = RECAL_WHILE.get(tag, (RECAL_LATER.get(tag, 0), STEPS))
            self.assertEqual(set(curve), {step for step in points if first <= step - 1 < last}, tag)
        for curve in found["histograms"].values():
            self.assertEqual(set(curve), {30, 60})
        self.assertEqual(set(found["images"]["inputs/0"]), {1, 31, 61})
        self.assert_values_of_steps(run, found["scalars"])
        self.assert_evaluations(run, read_by_tensorboard(run.folder / "eval"))

    def assert_values_of_steps(self, run, scalars):
        rows = {row["step"]: row for row in run.steps()}
        for tag, column in CURVES.items():
            for step, value in scalars[tag].items():
                if step == STEPS and column == "sparsity":
                    continue  # the closing masks come behind the last step's row
                self.assertAlmostEqual(value, rows[step][column], delta=1e-5 * max(1, abs(value)), msg=f"{tag} at {step}")

    def assert_evaluations(self, run, found):
        """Checks that the evaluations are those of evals.csv and no others."""
        with open(run.folder / "train/evals.csv") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual({row["name"] for row in rows}, {*OF_CLASSES, *OF_ALL})
        recorded = {}
        for row in rows:
            tag = f"{row['name']}/eval" + (f"/{row['class']}" if row["class"] else "")
            recorded.setdefault(tag, {})[int(row["step"])] = float(row["value"])
        self.assertEqual(len(recorded), len(OF_ALL) + 10 * len(OF_CLASSES))
        scalars = found.pop("scalars")
        self.assertEqual(found, {})
        self.assertEqual(set(scalars), set(recorded) | {"kpi/top_1", "kpi/top_3"})
        for tag, curve in recorded.items():
            self.assertEqual(set(scalars[tag]), {23, 46, 69}, tag)
            for step, value in curve.items():
                self.assertAlmostEqual(scalars[tag][step], value, delta=1e-6 * max(1, abs(value)), msg=f"{tag} at {step}")
        self.assertEqual(scalars["kpi/top_1"], scalars["accuracy/eval"])

    def test_a_run_shorter_than_its_interval_has_curves_from_its_first_step_to_its_last(self):
        require_python()
        batch = 40
        for axis, samples_a_step in (("steps", 1), ("samples", batch)):  # N48
            run = self.train(1, sets=["train.max_steps=46", "recipe=null", "eval.every_epochs=0", f"data.global_batch_size={batch}",
                                      f"summary.x_axis={axis}"], run=self.folder / axis)
            scalars = read_by_tensorboard(run.folder / "train")["scalars"]
            rows = run.steps()
            for tag, column in (("loss/train", "loss"), ("lr", "learning_rate")):
                self.assertEqual(set(scalars[tag]), {samples_a_step, 46 * samples_a_step})
                for step in (1, 46):
                    self.assertAlmostEqual(scalars[tag][step * samples_a_step], rows[step - 1][column], delta=1e-5)


if __name__ == "__main__":
    unittest.main()
