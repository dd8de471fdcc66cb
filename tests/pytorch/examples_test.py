"""The examples in Python of examples/README.md, run as their text says."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest

import ranks
import torch._dynamo  # noqa: F401, which optimizers import: here once for all forked ranks

EXAMPLES = ranks.SOURCE / "examples"


class DdpScript(unittest.TestCase):
    def test_the_name_of_the_backend_changes_no_loss(self):
        losses = {}
        for backend, start in (("gloo", ranks.script), ("lockstep", ranks.torchrun)):
            first, _ = start(2, EXAMPLES / "ddp_script/train.py", backend)
            losses[backend] = re.findall(r"loss (\S+),", first)
            self.assertIn(f"over {backend}\nbackend {backend}\n", first)
        self.assertEqual(losses["lockstep"], losses["gloo"])
        self.assertEqual(len(losses["gloo"]), 5)
        self.assertLess(float(losses["gloo"][-1]), 0.5 * float(losses["gloo"][0]))

    def test_under_mpirun_and_as_one_process(self):
        for command in ([], [ranks.SOURCE / "launch/mpirun.sh", "2"]):
            done = subprocess.run([*command, sys.executable, "-c", ranks.AS_PROGRAM, EXAMPLES / "ddp_script/train.py"], capture_output=True, text=True,
                                  env=ranks.environment(), timeout=ranks.LIMIT_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("over lockstep"), 5)
            self.assertIn("backend lockstep", done.stdout)


class PythonLoop(unittest.TestCase):
    SCRIPT = EXAMPLES / "python_loop/train.py"

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-example-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def train(self, num_epochs, folder, num_ranks=2, start=ranks.script):
        """Lines of rank 0, one an epoch."""
        return re.findall("^epoch .*", start(num_ranks, self.SCRIPT, num_epochs, folder)[0], re.MULTILINE)

    def test_learns_while_the_recipe_prunes(self):
        lines = self.train(10, self.folder, start=ranks.torchrun)
        found = [re.fullmatch(r"epoch (\d+): step (\d+), loss (\S+), sparsity (\S+)", line) for line in lines]
        self.assertEqual([int(line[2]) for line in found], [63 * (epoch + 1) for epoch in range(10)])
        self.assertEqual(float(found[0][4]), 0)
        self.assertAlmostEqual(float(found[-1][4]), 0.8, delta=0.02)
        self.assertLess(float(found[-1][3]), 0.5)
        shown = subprocess.run([ranks.BUILD / "bin/lockstep", "ckpt", "show", self.folder], capture_output=True, text=True, check=True).stdout
        self.assertIn("model/2/weight", shown)

    def test_the_same_command_continues(self):
        whole = self.train(4, self.folder / "whole")
        self.assertEqual(self.train(2, self.folder / "parts"), whole[:2])
        self.assertEqual(self.train(4, self.folder / "parts"), whole[2:])

    def test_continues_at_another_number_of_ranks(self):
        first = self.train(2, self.folder)
        second = self.train(4, self.folder, num_ranks=4)
        self.assertEqual([line.partition(",")[0] for line in first + second], [f"epoch {epoch}: step {63 * (epoch + 1)}" for epoch in range(4)])

    def test_under_mpirun_and_as_one_process(self):
        for command in ([], [ranks.SOURCE / "launch/mpirun.sh", "2"]):
            with self.subTest(command):
                done = subprocess.run([*command, sys.executable, "-c", ranks.AS_PROGRAM, self.SCRIPT, "1", self.folder / str(len(command))],
                                      env=ranks.environment(), capture_output=True, text=True, timeout=ranks.LIMIT_S)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(len(re.findall("^epoch 0: step 63, ", done.stdout, re.MULTILINE)), 1, done.stdout)


class HuggingFace(unittest.TestCase):
    def test_learns(self):
        with tempfile.TemporaryDirectory(prefix="lockstep-example-") as folder:
            # The worker's Python has torch, the one of the tests has transformers.
            packages = f"{os.environ.get('PYTHONPATH', '')}:{sysconfig.get_path('purelib')}"
            done = subprocess.run([ranks.SOURCE / "launch/mpirun.sh", "2", ranks.BUILD / "bin/lockstepd", "--config",
                                   EXAMPLES / "hugging_face/run.yaml", "--set", f"run.project_dir={folder}"],
                                  cwd=ranks.SOURCE, env={**os.environ, "PYTHONPATH": packages}, capture_output=True, text=True, timeout=ranks.LIMIT_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            summary = json.loads((pathlib.Path(folder) / "summary.json").read_text())
        self.assertEqual(summary["steps"], 128)
        self.assertLess(summary["eval"]["loss"], 0.3)


if __name__ == "__main__":
    unittest.main()
