"""The programs of the wheel: what `lockstepd` and `lockstep` in an environment's bin start, and how Python code calls the tool."""
import functools
import importlib.util
import os
import pathlib
import subprocess
import sys

from .build_facts import TORCH

PACKAGE = pathlib.Path(__file__).resolve().parent
EXIT_CONFIG = 78


class Error(RuntimeError):
    """What the tool refused to do: its message says what, where and what to do. exit_code: of docs/exit_codes.md."""

    def __init__(self, message, exit_code=EXIT_CONFIG):
        super().__init__(message)
        self.exit_code = exit_code


def torch_folder():
    """The folder of the torch that this Python imports. Error: there is none, or it is another release than the programs link."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise Error(f"[python] {sys.executable} has no torch: install torch=={TORCH} there")
    folder, facts = pathlib.Path(spec.origin).parent, {}
    exec((folder / "version.py").read_text(), facts)
    version = str(facts["__version__"])
    if version.partition("+")[0] != TORCH:
        raise Error(f"[python] {sys.executable} has torch {version}, this lockstep is linked to {TORCH}: install torch=={TORCH} there")
    return folder


def environment():
    """That of this process, in which the programs find LibTorch: beside this package by themselves, elsewhere by LD_LIBRARY_PATH."""
    torch = torch_folder()
    if torch.parent == PACKAGE.parent:
        return dict(os.environ)
    folders = [str(torch / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, folders))}


def call_tool(*arguments):
    """What `lockstep ARGUMENTS...` prints. Error: its message and exit code."""
    done = subprocess.run([PACKAGE / "bin/lockstep", *map(str, arguments)], capture_output=True, text=True, env=environment())
    if done.returncode != 0:
        raise Error(done.stderr.strip() or done.stdout.strip() or f"lockstep ends with {done.returncode}", done.returncode)
    return done.stdout


def become(program):
    """Goes on as that program, in this process: mpirun's signals and the exit code are the program's own."""
    path = str(PACKAGE / "bin" / program)
    try:
        os.execve(path, [path, *sys.argv[1:]], environment())
    except Error as fault:
        print(fault, file=sys.stderr)
        sys.exit(fault.exit_code)


lockstepd, lockstep = (functools.partial(become, program) for program in ("lockstepd", "lockstep"))
