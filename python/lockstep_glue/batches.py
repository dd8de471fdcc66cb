"""Batches: samples of any kind as tensors in the order of a call, with their keywords."""
import collections.abc
import dataclasses

from .faults import Fault
from .torch_import import torch

IGNORED = -100  # a class or token that counts in no loss, as in torch.nn.functional.cross_entropy
TARGETS = ("labels", "label", "targets", "target")  # keywords of the targets, the first that a batch has


def named_parts(value):
    """{name: part} of a dict or another mapping, a dataclass or a named tuple, without those that are None. None for other values."""
    if isinstance(value, collections.abc.Mapping):
        parts = dict(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "_asdict") and len(value) != 2:  # two: an (input, target) with names
        parts = value._asdict()
    else:
        return None
    return {name: part for name, part in parts.items() if part is not None}


def is_pair(item):
    """Tells whether a sample is (input, target)."""
    return isinstance(item, (tuple, list)) and len(item) == 2 and not any(isinstance(part, collections.abc.Mapping) for part in item)


def tensors_of(value, what):
    """(keywords, tensors) of a sample or a batch; without keywords for a tuple or list."""
    parts = named_parts(value)
    if isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], collections.abc.Mapping):
        parts = {**named_parts(value[0]), TARGETS[0]: value[1]}
    if parts is None and isinstance(value, (tuple, list)) and len(value) > 1:
        return [], [tensor_of(part, f"part {i} of {what}") for i, part in enumerate(value)]
    if not parts:
        raise Fault(f"{what} is {type(value).__name__}: it must be (input, target), a longer tuple, a dict or a dataclass")
    if not all(isinstance(name, str) for name in parts):
        raise Fault(f"{what} has the key {next(n for n in parts if not isinstance(n, str))!r}: keys are keywords of forward")
    return list(parts), [tensor_of(part, f"{name} of {what}") for name, part in parts.items()]


def tensor_of(value, what):
    try:
        return value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as fault:
        raise Fault(f"{what} is {type(value).__name__} and no tensor: {fault}; convert it, or leave it out (in a collate_fn, for instance)") from fault


def stacked(samples, like, names, first):
    """(keywords, tensors) of a batch of samples, each as from tensors_of() and like the data set's first one. names, first: of the samples and of the
    first one, for messages."""
    keywords, tensors = like
    for sample, name in zip(samples, names):
        if sample[0] != keywords or len(sample[1]) != len(tensors):
            has, wanted = (", ".join(words) or f"{len(parts)} without names" for words, parts in (sample, like))
            raise Fault(f"{name} has the parts {has}, {first} has {wanted}")
        for k, (other, tensor) in enumerate(zip(sample[1], tensors)):
            if other.shape != tensor.shape or other.dtype != tensor.dtype:
                words = keywords or (["input", "target"] if len(tensors) == 2 else [f"part {i}" for i in range(len(tensors))])
                raise Fault(f"{words[k]} of {name} is {list(other.shape)} {other.dtype}, of {first} {list(tensor.shape)} {tensor.dtype}: "
                            "give the data set a collate_fn, which pads the samples of a batch to one length")
    return keywords, [torch.stack(column) for column in zip(*(parts for _, parts in samples))]


def arranged(names, tensors, num_samples, what):
    """[inputs, targets, other tensors, keywords in this order] of a batch. Inputs and targets have a row for each sample; without a keyword
    the targets are zeros in their place."""
    def has_rows(tensor):
        return tensor.dim() > 0 and tensor.shape[0] == num_samples

    shapes = ", ".join(f"{name or f'part {i}'} {list(t.shape)}" for i, (name, t) in enumerate(zip(names or [""] * len(tensors), tensors)))
    if not names:
        if not (has_rows(tensors[0]) and has_rows(tensors[-1])):
            raise Fault(f"{what} has no row for each of {num_samples} samples in its first and its last part: {shapes}")
        return [tensors[0], tensors[-1], tensors[1:-1], []]
    parts = dict(zip(names, tensors))
    target = next((name for name in TARGETS if name in parts), "")
    main = next((name for name, tensor in parts.items() if name != target and has_rows(tensor)), None)
    if main is None or (target and not has_rows(parts[target])):
        raise Fault(f"{what} has no row for each of {num_samples} samples in its {'inputs' if main is None else target}: {shapes}")
    others = [name for name in parts if name not in (main, target)]
    return [parts[main], parts[target] if target else torch.zeros(num_samples), [parts[name] for name in others], [main, target, *others]]


def without_samples(batch):
    """The batch without its rows."""
    inputs, targets, more, names = batch
    return [inputs[:0], targets[:0], [tensor[:0] if tensor.dim() > 0 else tensor for tensor in more], names]
