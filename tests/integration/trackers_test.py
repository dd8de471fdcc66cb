"""The callbacks of examples/trackers with the clients of MLflow and W&B, offline: their own readers find what the run wrote."""
import json
import os
import pathlib
import subprocess
import unittest

from exported import PYTHON, require_packages
from harness import DIGITS, SOURCE, LockstepTest

TRACKERS = SOURCE / "examples/trackers"
SETS = ["train.max_steps=46", "recipe=null", "eval.every_epochs=1", "export.at_end=true", "optimizer.learning_rate=0.05"]


class Trackers(LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        require_packages("mlflow", "wandb")
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"

    def run_with(self, name, arguments, sets=()):
        callback = f"{{type: python, path: {TRACKERS / name}_tracker.py, name: Tracker, modes: [train], args: {json.dumps(arguments)}}}"
        return self.train(2, config=DIGITS, run=name, sets=[*SETS, f"callbacks.tracker={callback}", *sets])

    def assert_tracked(self, kind, place, run, steps):
        done = subprocess.run([PYTHON, pathlib.Path(__file__).with_name("tracked.py"), kind, place], capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual((found["runs"], found["status"]), (1, "FINISHED"))
        self.assertEqual(found["settings"]["optimizer.learning_rate"], "0.05")
        self.assertEqual(found["settings"]["run.name"], "digits")
        losses = {row["step"]: row["loss"] for row in run.steps()}
        self.assertEqual(sorted(map(int, found["loss"])), steps)
        for step, loss in found["loss"].items():
            self.assertAlmostEqual(loss, losses[int(step)], places=5)
        self.assertEqual((found["evaluations"]["eval/accuracy"], found["evaluations"]["eval/loss"]), (2, 2))
        published = {path.name for path in (run.folder / "saved_models/46").iterdir()}
        self.assertTrue(published)
        self.assertEqual({pathlib.Path(path).name for path in found["files"]}, published)

    def test_mlflow_continues_its_record_in_the_next_start(self):
        store = f"file:{self.folder / 'mlruns'}"
        self.run_with("mlflow", {"tracking_uri": store}, sets=["train.max_steps=23", "export.at_end=false"])
        run = self.run_with("mlflow", {"tracking_uri": store})
        self.assert_tracked("mlflow", store, run, [10, 20, 30, 40])

    def test_wandb(self):
        run = self.run_with("wandb", {"mode": "offline"})
        (file,) = (run.folder / "callbacks/train").glob("wandb/offline-run-*/run-*.wandb")
        self.assert_tracked("wandb", file, run, [10, 20, 30, 40])


if __name__ == "__main__":
    unittest.main()
