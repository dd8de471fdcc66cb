"""What an exported file answers for the digits' test split, in the hands of those it is for."""
import json
import os
import pathlib
import subprocess
import sys

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


def answers_of(file):
    """{"num_samples", "accuracy", "loss"}, by onnxruntime for .onnx and by PyTorch for .pt."""
    require_python()
    done = subprocess.run([PYTHON, pathlib.Path(__file__).parent / "programs/exported_digits.py", file,
                           SOURCE / "data" / "digits" / "digits.csv"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
