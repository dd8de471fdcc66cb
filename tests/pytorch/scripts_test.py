"""Five common scripts, in the form that the documentation of each library teaches: with the backend "lockstep" they repeat the losses of gloo.

A sum of two ranks does not depend on their order, so losses are equal to the last bit. The first script runs under torchrun, the others in forks
with torchrun's variables: their libraries take seconds to import.
"""
import os
import pathlib
import re
import tempfile
import unittest

import ranks

os.environ["HF_HUB_OFFLINE"] = "1"
import accelerate  # noqa: E402, F401
import lightning  # noqa: E402, F401
from lightning.pytorch.strategies import DDPStrategy  # noqa: E402, F401
from transformers import GPT2LMHeadModel, Trainer  # noqa: E402, F401

SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"


class Scripts(unittest.TestCase):
    def losses(self, backend, output):
        self.assertEqual(output.splitlines()[-1], f"backend {backend}")
        return re.findall(r"^(?:loss|norm) .*", output, re.MULTILINE)

    def compare(self, script, num_losses, start=ranks.script):
        """num_losses: lines of all ranks that name a loss."""
        found = {}
        for backend in ("gloo", "lockstep"):
            with tempfile.TemporaryDirectory(prefix="lockstep-script-") as folder:
                found[backend] = [self.losses(backend, output) for output in start(2, SCRIPTS / script, backend, folder)]
        self.assertEqual(sum(map(len, found["gloo"])), num_losses)
        self.assertEqual(found["lockstep"], found["gloo"])

    def test_the_tutorial_of_ddp(self):
        self.compare("ddp_tutorial.py", 30, ranks.torchrun)

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
