"""Five common scripts, in the form that the documentation of each library teaches: with the backend "lockstep" they repeat the losses of gloo.

A sum of two ranks does not depend on their order, so losses are equal to the last bit.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import patience
import ranks

SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"
NUM_RANKS, LIMIT_S = 2, 120
# Each rank imports torch without the CUDA libraries that the wheel wants, runs the script as a program, and prints which backend a group had.
AS_PROGRAM = """
import runpy, sys
from cpu_torch import torch
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name='__main__')
print('backend', 'lockstep' if hasattr(torch.ops.lockstep, 'make_group') else 'gloo')
"""
TORCHRUN = "import cpu_torch; from torch.distributed.run import main; main()"


def outputs(script, backend, folder):
    """What each rank of torchrun printed, by rank."""
    logs = folder / "logs"
    process = subprocess.Popen([sys.executable, "-c", TORCHRUN, "--standalone", f"--nproc-per-node={NUM_RANKS}", f"--log-dir={logs}", "--redirects=3",
                                "--no-python", sys.executable, "-c", AS_PROGRAM, SCRIPTS / script, backend, folder],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ranks.environment(HF_HUB_OFFLINE="1"))
    said = patience.communicate(process, LIMIT_S)
    logged = {path.parent.name + path.name: path.read_text() for path in sorted(logs.rglob("std*.log"))}
    assert process.returncode == 0, f"{script} {backend} ended with {process.returncode}:\n{said}\n{logged}"
    return [logged[f"{rank}stdout.log"] for rank in range(NUM_RANKS)]


class Scripts(unittest.TestCase):
    def losses(self, backend, output):
        self.assertEqual(output.splitlines()[-1], f"backend {backend}")
        return re.findall(r"^(?:loss|norm) .*", output, re.MULTILINE)

    def compare(self, script, num_losses):
        """num_losses: lines of all ranks that name a loss."""
        found = {}
        for backend in ("gloo", "lockstep"):
            with tempfile.TemporaryDirectory(prefix="lockstep-script-") as folder:
                found[backend] = [self.losses(backend, output) for output in outputs(script, backend, pathlib.Path(folder))]
        self.assertEqual(sum(map(len, found["gloo"])), num_losses)
        self.assertEqual(found["lockstep"], found["gloo"])

    def test_the_tutorial_of_ddp(self):
        self.compare("ddp_tutorial.py", 30)

    def test_the_loop_of_nanogpt(self):
        self.compare("gpt_loop.py", 34)

    def test_a_loop_of_accelerate(self):
        self.compare("accelerate_loop.py", 40)

    def test_a_lightning_module(self):
        self.compare("lightning_module.py", 38)

    def test_a_trainer_of_transformers(self):
        self.compare("trainer_run.py", 38)


if __name__ == "__main__":
    unittest.main()
