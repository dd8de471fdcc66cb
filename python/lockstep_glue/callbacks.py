"""Callbacks: any object of the user's with on_iteration_end, or with the methods of a saver, a buffer or a KPI."""
import collections
import inspect
import json
import pathlib

from .faults import Fault, make
from .torch_import import torch

IterationInfo = collections.namedtuple("IterationInfo", "epoch_number iteration_number execution_time is_last_iteration")
ATTRIBUTES = ("mode", "is_training", "log_dir", "summary_writer", "summary_step", "number_iterations_per_epoch", "iteration_info", "rank", "world_size")
METHODS = {"on_iteration_end": "callback", "save_sample": "saver", "process_buffer": "buffer", "sums": "kpi"}  # what one of these methods makes of an object
OF_THE_BASE = {"saver": "save_names", "buffer": "evaluate"}  # optional keys that the method does not get


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


# What an attribute may be.
ALLOWED = {"a string": lambda value: isinstance(value, str), "True or False": lambda value: isinstance(value, bool),
           "a list of strings": lambda value: isinstance(value, (list, tuple)) and all(isinstance(text, str) for text in value),
           "'rank0' or 'all'": lambda value: value in ("rank0", "all"), "a whole number above 0": is_count,
           "'list', 'stats' or a whole number above 0": lambda value: value in ("list", "stats") or is_count(value)}


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
        self.method = self.only_method()
        self.kind = METHODS[self.method]
        attributes = (*ATTRIBUTES, "save_name") if self.kind == "saver" else ATTRIBUTES
        taken = [attribute for attribute in attributes if attribute in getattr(callback, "__dict__", {})]
        if taken:
            raise Fault(f"{path}: {name}(...) sets {', '.join(taken)}, which Lockstep sets before each call: use another name")
        own = OF_THE_BASE.get(self.kind)
        self.incoming = [key for key in self.declared("incoming_keys", [], "a list of strings") if key.removeprefix("_") != own]
        self.generated = list(self.declared("generated_keys", [], "a list of strings"))
        if self.generated and self.kind in ("saver", "kpi"):
            raise Fault(f"{path}: {name} with {self.method} returns no keys to other callbacks: remove generated_keys")
        self.run_on = self.declared("run_on", "rank0" if self.kind == "callback" else "all", "'rank0' or 'all'")
        self.not_batch_keys = list(self.declared("not_batch_keys", [], "a list of strings"))
        unknown = [key for key in self.not_batch_keys if not {key, f"_{key}"} & set(self.incoming)]
        if unknown:
            raise Fault(f"{path}: not_batch_keys of {name} has {unknown[0]!r}, which incoming_keys lack")
        self.check_parameters()
        self.writer = SummaryWriter(callback)

    def only_method(self):
        found = [method for method in METHODS if callable(getattr(self.callback, method, None))]
        if found[:1] == ["on_iteration_end"] or len(found) == 1:
            return found[0]
        if found:
            raise Fault(f"{self.path}: {self.name} has the methods {' and '.join(found)}: keep one, which says what kind of callback it is")
        raise Fault(f"{self.path}: {self.name} has no method on_iteration_end, save_sample, process_buffer or sums")

    def facts(self):
        """What C++ makes a callback of this kind with."""
        facts = {"kind": self.kind, "incoming": self.incoming, "generated": self.generated, "on_all": self.run_on == "all",
                 "stores_as": self.declared("stores_as", "", "a string"), "not_batch_keys": self.not_batch_keys}
        if self.kind == "saver":
            facts |= {name: self.declared(name, "", "a string") for name in ("save_prefix", "save_suffix")}
        if self.kind == "buffer":
            kept = self.declared("buffer", "list", "'list', 'stats' or a whole number above 0")
            facts |= {"gather": self.declared("gather", False, "True or False"), "buffer": kept if isinstance(kept, str) else "ring", "capacity": kept}
            if facts["gather"] and self.run_on != "all":
                raise Fault(f"{self.path}: {self.name} gathers the samples of all ranks: set run_on = 'all'")
        if self.kind == "kpi":
            facts["num_sums"] = self.declared("num_sums", None, "a whole number above 0")
            if self.run_on != "all" or not callable(getattr(self.callback, "values", None)):
                raise Fault(f"{self.path}: {self.name} with sums needs a method values(sums), and runs on all ranks")
        return facts

    def declared(self, attribute, default, wanted):
        """An attribute, or what a method of that name returns. wanted: of ALLOWED."""
        found = getattr(self.callback, attribute, default)
        value = found() if callable(found) else found
        if not ALLOWED[wanted](value):
            raise Fault(f"{self.path}: {attribute} of {self.name} is {value!r}; it must be {wanted}")
        return value

    def check_parameters(self):
        """The method must take what incoming_keys name, with and without the optional ones."""
        required = [key for key in self.incoming if not key.startswith("_")]
        for keys in (required, [key.removeprefix("_") for key in self.incoming]):
            try:
                inspect.signature(getattr(self.callback, self.method)).bind(**dict.fromkeys(keys))
            except TypeError as fault:
                raise Fault(f"{self.place(self.method)}{self.method}({', '.join(keys)}), as incoming_keys of {self.name} say: {fault}") from fault

    def place(self, method):
        """file:line of a method, where it has one."""
        code = getattr(getattr(self.callback, method), "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}: " if code else f"{self.path}: "

    def returned(self, method):
        return f"{self.place(method)}{self.name}.{method} returned"

    def show(self, mode, log_dir, has_writer, step, per_epoch, info, rank, world_size):
        """What the driver keeps true around each call."""
        values = (mode, mode == "train", pathlib.Path(log_dir), self.writer if has_writer else None, step, per_epoch, IterationInfo(*info), rank, world_size)
        for attribute, value in zip(ATTRIBUTES, values):
            setattr(self.callback, attribute, value)

    def checked(self, value, key=""):
        """A value that C++ takes, or what is wrong with it."""
        if isinstance(value, torch.Tensor) or ALLOWED["a list of strings"](value):
            return value
        if not isinstance(value, dict):
            raise Fault(f"{self.returned(self.method)} {key} as {type(value).__name__}: a value is a tensor, a list of strings, or a dict of these")
        for name in value:
            if not isinstance(name, str):
                raise Fault(f"{self.returned(self.method)} {key or 'a dict'} with the key {name!r}: keys must be strings")
        return {name: self.checked(inner, f"{key}/{name}" if key else name) for name, inner in value.items()}

    def take_scalars(self):
        taken, self.writer.scalars = self.writer.scalars, []
        return taken


def make_callback(path, name, args, what):
    made = UserCallback(path, name, args, what)
    return [made, made.facts()]


def call_callback(user, method, context):
    """begin, on_iteration_start, on_epoch_end or end, where the user has one. Returns [tag, value, step] of what it added to summaries."""
    user.show(*context)
    called = getattr(user.callback, method, None)
    if called is not None:
        called()
    return user.take_scalars()


def process(user, context, data):
    """[what the user's on_iteration_end or process_buffer made or None, summaries as above]."""
    user.show(*context)
    made = getattr(user.callback, user.method)(**data)
    if not isinstance(made, (dict, type(None))):
        raise Fault(f"{user.returned(user.method)} {type(made).__name__}, not a dict or None")
    return [made and user.checked(made), user.take_scalars()]


def save_sample(user, context, name, sample):
    """Summaries as above."""
    user.show(*context)
    user.callback.save_name = name
    user.callback.save_sample(**{key: value if key in user.not_batch_keys else with_single_texts(value) for key, value in sample.items()})
    return user.take_scalars()


def with_single_texts(value):
    """A sample's text, which is a list of one."""
    if isinstance(value, dict):
        return {key: with_single_texts(inner) for key, inner in value.items()}
    return value[0] if isinstance(value, list) else value


def kpi_sums(user, data):
    """The sums of a batch in double precision."""
    made = user.callback.sums(**data)
    try:
        sums = [float(number) for number in made]
    except (TypeError, ValueError, RuntimeError) as fault:
        raise Fault(f"{user.returned('sums')} {type(made).__name__}, not a list of numbers: {fault}") from fault
    wanted = user.declared("num_sums", None, "a whole number above 0")
    if len(sums) != wanted:
        raise Fault(f"{user.returned('sums')} {len(sums)} numbers, and num_sums is {wanted}")
    return torch.tensor(sums, dtype=torch.float64)


def kpi_values(user, sums):
    """{name: number}, of the sums over all samples."""
    made = user.callback.values(sums)
    if not isinstance(made, dict) or not all(isinstance(name, str) for name in made):
        raise Fault(f"{user.returned('values')} {made!r}, not a dict of numbers by name")
    try:
        return {name: float(value) for name, value in made.items()}
    except (TypeError, ValueError, RuntimeError) as fault:
        raise Fault(f"{user.returned('values')} {made!r}: {fault}") from fault
