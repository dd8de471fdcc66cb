"""What is said of a mistake in a user's code, and what a file of it is asked for."""
import contextlib
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


def text_of(fault, what=""):
    """Place in the user's code, what was done, the error; then its traceback, where there is one."""
    hint = getattr(fault, "lockstep_hint", "")
    if "Expected more than 1 value per channel when training" in str(fault):
        hint = " (a rank got one sample of a batch: set data.drop_last: true or another data.global_batch_size)"
    head = f"{what}{type(fault).__name__}: {fault}{hint}"
    if isinstance(fault, SyntaxError):
        return f"{fault.filename}:{fault.lineno}: {head}"
    frames = own_frames(fault.__traceback__)
    if not frames:
        return head
    last = ([f for f in frames if "site-packages" not in f.filename and not f.filename.startswith("<")] or frames)[-1]
    return f"{last.filename}:{last.lineno}: {head}\n" + "".join(traceback.format_list(frames)).rstrip()


@contextlib.contextmanager
def naming(what):
    """Makes what the user's code raises within a Fault, which says `what` was done."""
    try:
        yield
    except Fault:
        raise
    except Exception as fault:
        raise Fault(text_of(fault, f"{what}: ")) from fault


def describe_fault(_kind, fault, trace):
    return str(fault) if isinstance(fault, Fault) else text_of(fault.with_traceback(trace))


def make(path, name, arguments, what):
    """Calls what a .py file names `name`. The file's folder is importable from then on."""
    file = pathlib.Path(path).resolve()
    if not file.is_file():
        raise Fault(f"{path}: no such file, which '{what}.path' names")
    if importlib.util.spec_from_file_location(file.stem, file) is None:
        raise Fault(f"{path}: not a .py file, which '{what}.path' must name")
    module = import_file(file)
    if not hasattr(module, name):
        there = [word for word in vars(module) if not word.startswith("_")]
        near = difflib.get_close_matches(name, there, n=3) or there[:8]
        raise Fault(f"{path}: has no '{name}', which '{what}.name' names; it has {', '.join(near) or 'nothing'}")
    try:
        return getattr(module, name)(**arguments)
    except TypeError as fault:
        if own_frames(fault.__traceback__):
            raise
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise Fault(f"{path}: {name}({given}), as '{what}.args' says: {fault}") from fault


def flush():
    sys.stdout.flush()
    sys.stderr.flush()
