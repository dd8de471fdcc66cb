"""Callbacks: any object of the user's with on_iteration_end, which is called around an iteration."""
import collections
import inspect
import json
import pathlib

from .faults import Fault, make
from .torch_import import torch

IterationInfo = collections.namedtuple("IterationInfo", "epoch_number iteration_number execution_time is_last_iteration")
ATTRIBUTES = ("mode", "is_training", "log_dir", "summary_writer", "summary_step", "number_iterations_per_epoch", "iteration_info",
              "rank", "world_size")


class SummaryWriter:
    """Takes points of curves; what a call has added is written when it returns."""

    def __init__(self, callback):
        self.callback, self.scalars = callback, []

    def add_scalar(self, tag, scalar_value, global_step=None):
        step = self.callback.summary_step if global_step is None else global_step
        self.scalars.append([str(tag), float(scalar_value), int(step)])


class UserCallback:
    """A user's callback with what Lockstep needs to know of it."""

    def __init__(self, path, name, args, what):
        self.callback = callback = make(path, name, json.loads(args), what)
        self.path, self.name = path, name
        if not callable(getattr(callback, "on_iteration_end", None)):
            raise Fault(f"{path}: {name} has no method on_iteration_end")
        taken = [attribute for attribute in ATTRIBUTES if attribute in getattr(callback, "__dict__", {})]
        if taken:
            raise Fault(f"{path}: {name}(...) sets {', '.join(taken)}, which Lockstep sets before each call: use another name")
        self.incoming, self.generated = self.keys("incoming_keys"), self.keys("generated_keys")
        self.run_on = self.declared("run_on", "rank0")
        if self.run_on not in ("rank0", "all"):
            raise Fault(f"{path}: run_on of {name} is {self.run_on!r}; available: 'rank0' and 'all'")
        self.check_parameters()
        self.writer = SummaryWriter(callback)
        self.log_dir_text = None

    def declared(self, attribute, default):
        """An attribute, or what a method of that name returns."""
        found = getattr(self.callback, attribute, default)
        return found() if callable(found) else found

    def keys(self, attribute):
        keys = self.declared(attribute, [])
        if not isinstance(keys, (list, tuple)) or not all(isinstance(key, str) for key in keys):
            raise Fault(f"{self.path}: {attribute} of {self.name} must be a list of strings, not {keys!r}")
        return list(keys)

    def check_parameters(self):
        """on_iteration_end must take what incoming_keys name, with and without the optional ones."""
        required = [key for key in self.incoming if not key.startswith("_")]
        for keys in (required, [key.removeprefix("_") for key in self.incoming]):
            try:
                inspect.signature(self.callback.on_iteration_end).bind(**dict.fromkeys(keys))
            except TypeError as fault:
                raise Fault(f"{self.place('on_iteration_end')}on_iteration_end({', '.join(keys)}), as incoming_keys of {self.name} "
                            f"say: {fault}") from fault

    def place(self, method):
        """file:line of a method, where it has one."""
        code = getattr(getattr(self.callback, method), "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}: " if code else f"{self.path}: "

    def show(self, mode, log_dir, has_writer, step, per_epoch, info, rank, world_size):
        """What the driver keeps true around each call."""
        callback = self.callback
        if log_dir != self.log_dir_text:
            self.log_dir_text, callback.log_dir = log_dir, pathlib.Path(log_dir)
        callback.mode, callback.is_training = mode, mode == "train"
        callback.summary_writer = self.writer if has_writer else None
        callback.summary_step, callback.number_iterations_per_epoch = step, per_epoch
        callback.iteration_info = IterationInfo(*info)
        callback.rank, callback.world_size = rank, world_size

    def checked(self, value, key):
        """A value that C++ takes, or what is wrong with it."""
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, (list, tuple)) and all(isinstance(text, str) for text in value):
            return value
        if isinstance(value, dict):
            return {self.checked_key(name, key): self.checked(inner, f"{key}/{name}") for name, inner in value.items()}
        raise Fault(f"{self.place('on_iteration_end')}{self.name}.on_iteration_end returned {key} as {type(value).__name__}: a value "
                    "is a tensor, a list of strings, or a dict of these")

    def checked_key(self, name, where):
        if isinstance(name, str):
            return name
        raise Fault(f"{self.place('on_iteration_end')}{self.name}.on_iteration_end returned {where or 'a dict'} with the key "
                    f"{name!r}: keys must be strings")

    def take_scalars(self):
        taken, self.writer.scalars = self.writer.scalars, []
        return taken


def make_callback(path, name, args, what):
    made = UserCallback(path, name, args, what)
    return [made, made.incoming, made.generated, made.run_on == "all"]


def call_callback(user, method, context):
    """begin, on_iteration_start, on_epoch_end or end, where the user has one. Returns [tag, value, step] of what it added to summaries."""
    user.show(*context)
    called = getattr(user.callback, method, None)
    if called is not None:
        called()
    return user.take_scalars()


def end_iteration(user, context, data):
    """[what the user's on_iteration_end made or None, summaries as above]."""
    user.show(*context)
    made = user.callback.on_iteration_end(**data)
    if made is not None:
        if not isinstance(made, dict):
            raise Fault(f"{user.place('on_iteration_end')}{user.name}.on_iteration_end returned {type(made).__name__}, not a dict or None")
        made = {user.checked_key(key, ""): user.checked(value, key) for key, value in made.items()}
    return [made, user.take_scalars()]
