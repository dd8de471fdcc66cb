"""What is said of a mistake in a user's code, and what a file of it is asked for."""
import difflib
import importlib.util
import pathlib
import sys
import traceback

from .user_modules import import_file

HERE = pathlib.Path(__file__).resolve().parent


class Fault(Exception):
    """A mistake of the user's that needs no traceback: its text says what and where."""


def own_frames(trace):
    """The frames of a traceback without those of this package."""
    return [frame for frame in traceback.extract_tb(trace) if pathlib.Path(frame.filename).parent != HERE]


def place_of(frames):
    """file:line of the last frame in the user's code."""
    own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith("<")] or frames
    return f"{own[-1].filename}:{own[-1].lineno}: " if own else ""


def hint_at(fault):
    """What a user can do about an error of PyTorch's that comes of how Lockstep divides batches."""
    if "Expected more than 1 value per channel when training" not in str(fault):
        return getattr(fault, "lockstep_hint", "")
    return " (a rank got one sample of a batch: set data.drop_last: true or another data.global_batch_size)"


def text_of(fault, what=""):
    """Place, what was done, the error; then its traceback, where there is one."""
    frames = own_frames(fault.__traceback__)
    head = f"{what}{type(fault).__name__}: {fault}{hint_at(fault)}"
    if isinstance(fault, SyntaxError):
        return f"{fault.filename}:{fault.lineno}: {head}"
    text = place_of(frames) + head
    if frames:
        text += "\n" + "".join(traceback.format_list(frames)).rstrip()
    return text


def describe_fault(_kind, fault, trace):
    return str(fault) if isinstance(fault, Fault) else text_of(fault.with_traceback(trace))


def load_file(path, what):
    """The module of a .py file, whose folder is importable from then on."""
    file = pathlib.Path(path).resolve()
    if not file.is_file():
        raise Fault(f"{path}: no such file, which '{what}.path' names")
    if importlib.util.spec_from_file_location(file.stem, file) is None:
        raise Fault(f"{path}: not a .py file, which '{what}.path' must name")
    return import_file(file)


def load(path, name, what):
    """What the file calls `name`."""
    module = load_file(path, what)
    if hasattr(module, name):
        return getattr(module, name)
    there = [word for word in vars(module) if not word.startswith("_")]
    near = difflib.get_close_matches(name, there, n=3) or there[:8]
    raise Fault(f"{path}: has no '{name}', which '{what}.name' names; it has {', '.join(near) or 'nothing'}")


def make(path, name, arguments, what):
    """Calls it."""
    made = load(path, name, what)
    try:
        return made(**arguments)
    except TypeError as fault:
        if own_frames(fault.__traceback__):
            raise
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise Fault(f"{path}: {name}({given}), as '{what}.args' says: {fault}") from fault


def flush():
    sys.stdout.flush()
    sys.stderr.flush()
