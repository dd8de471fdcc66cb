"""Answers of an exported file to the digits' test split, in the programs that it is made for."""
import atexit
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from harness import SOURCE

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skips

PYTHON = SOURCE / ".venv-test" / "bin" / "python"


def require_python():
    if not PYTHON.exists():
        skips.missing_tool(f"there is no {PYTHON} (tools/setup test makes it)")


def require_torch():
    folder = pathlib.Path(os.environ.get("LOCKSTEP_TORCH", "/nonexistent"))
    if not (folder / "__init__.py").exists():
        skips.missing_tool(f"no Python in LibTorch's folder {folder}, so PyTorch cannot judge TorchScript files")


def require_packages(*names):
    """Lets the interpreters of this test's processes import packages of .venv-test, which ranks do not have of themselves."""
    require_python()
    folders = [*map(str, PYTHON.parents[1].glob("lib/python*/site-packages"))] + os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for name in names:
        if not any((pathlib.Path(folder) / name).is_dir() for folder in folders if folder):
            skips.missing_tool(f"no package {name} in {PYTHON.parents[1]} (tools/setup test installs it)")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))


class _Server:
    """exported_digits.py, whose start takes seconds: one process for all of a test file."""

    def __init__(self):
        self.said = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([PYTHON, pathlib.Path(__file__).parent / "programs/exported_digits.py", SOURCE / "data/digits/digits.csv"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True)
        atexit.register(self.process.communicate)  # it ends with its input

    def ask(self, file):
        self.process.stdin.write(f"{file}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            self.said.seek(0)
            raise AssertionError(f"exported_digits.py ended at {file}: {self.said.read()}")
        return json.loads(answer)


_server = functools.cache(_Server)


def answers_of(file):
    """{"num_samples", "accuracy", "loss"}, by onnxruntime for .onnx and by PyTorch for .pt."""
    require_python()
    return _server().ask(file)
