"""Data sets: any object of the user's with __len__ and __getitem__ that gives (input, target)."""
import ctypes
import hashlib
import json
import math
import pathlib
import random
import sys

from .faults import Fault, make, text_of
from .models import seed_all
from .torch_import import torch


class DataSet:
    """A user's data set with what Lockstep needs to know of it."""

    def __init__(self, path, name, args, targets, classes, seed, what):
        seed_all(seed)
        self.source = (path, name, args, what)
        self.items = make(path, name, json.loads(args), what)
        self.path, self.name, self.seed = path, name, seed
        for method in ("__len__", "__getitem__"):
            if not hasattr(self.items, method):
                raise Fault(f"{path}: {name} has no {method}: a data set here is read by index")
        self.length = len(self.items)
        if self.length < 1:
            raise Fault(f"{path}: {name} holds {self.length} samples")
        inputs, target = self.sample(0, 0)
        self.target_kind = targets if targets != "auto" else kind_of(inputs, target)
        self.input_shape, self.input_dtype = list(inputs.shape), inputs.dtype
        self.target_shape = list(self.as_target(target).shape)
        self.num_classes = self.count_classes(classes)

    def count_classes(self, classes):
        if classes > 0:
            return classes
        if self.target_kind == "soft":
            return self.target_shape[0]
        if self.target_kind == "values":
            return math.prod(self.target_shape)
        for name in ("num_classes", "vocab_size"):
            if isinstance(getattr(self.items, name, None), int):
                return getattr(self.items, name)
        if hasattr(self.items, "classes"):
            return len(self.items.classes)
        raise Fault(f"{self.path}: {self.name} does not say how many classes there are: write `num_classes:` beside its "
                    "name, or give it an attribute num_classes")

    def seed_sample(self, epoch, index):
        """Randomness of a sample: of (seed, epoch, index), whoever reads it."""
        mixed = int.from_bytes(hashlib.blake2b(f"{self.seed},{epoch},{index}".encode(), digest_size=8).digest(), "little")
        random.seed(mixed)
        torch.default_generator.manual_seed(mixed & (2**63 - 1))
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(mixed % 2**32)

    def sample(self, index, epoch):
        self.seed_sample(epoch, index)
        item = self.items[index]
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise Fault(f"{self.path}: sample {index} of {self.name} is {type(item).__name__}, not (input, target)")
        return as_input(item[0]), item[1]

    def target_dtype(self):
        return torch.int64 if self.target_kind in ("class", "tokens") else torch.float32

    def as_target(self, target):
        return torch.as_tensor(target).to(self.target_dtype())

    def checked(self, index, inputs, target):
        if list(inputs.shape) != self.input_shape or inputs.dtype != self.input_dtype:
            raise Fault(f"{self.path}: sample {index} of {self.name} has inputs {list(inputs.shape)} {inputs.dtype}, "
                        f"sample 0 has {self.input_shape} {self.input_dtype}")
        target = self.as_target(target)
        if list(target.shape) != self.target_shape:
            raise Fault(f"{self.path}: the target of sample {index} of {self.name} is {list(target.shape)}, "
                        f"of sample 0 {self.target_shape}")
        if self.target_kind in ("class", "tokens") and target.numel() and not (
                0 <= int(target.min()) and int(target.max()) < self.num_classes):
            raise Fault(f"{self.path}: the target of sample {index} of {self.name} holds "
                        f"{int(target.max())}, the classes are 0 to {self.num_classes - 1}")
        return inputs, target

    def read(self, indices, epoch):
        pairs = []
        for index in indices:
            try:
                pairs.append(self.checked(index, *self.sample(index, epoch)))
            except Fault:
                raise
            except Exception as fault:
                raise Fault(text_of(fault, f"sample {index} of {self.name}, whose length is {self.length}: ")) from fault
        if not pairs:
            return (torch.empty([0, *self.input_shape], dtype=self.input_dtype),
                    torch.empty([0, *self.target_shape], dtype=self.target_dtype()))
        return torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])

    def digest(self):
        """Of class, file, arguments, length, the user's `version`, and 64 spread samples; one that cannot be read counts too."""
        path, name, args, _ = self.source
        digest = hashlib.sha256(json.dumps([name, args, self.length, str(getattr(self.items, "version", ""))]).encode())
        digest.update(pathlib.Path(path).read_bytes())
        sound = []
        for index in sorted({k * (self.length - 1) // 63 for k in range(64)}):
            try:
                sound.append(self.read([index], 0))
            except Fault:
                digest.update(f"sample {index} is damaged".encode())
        for tensors in zip(*sound):
            for tensor in tensors:
                digest.update(bytes_of(tensor))
        return digest.hexdigest()


def bytes_of(tensor):
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def as_input(value):
    """Tensors as they are, in float32 or int64; pictures (PIL, uint8 arrays of rows, columns, channels) in 0 to 1, channels
    first."""
    if type(value).__module__.startswith("PIL"):
        import numpy
        value = numpy.asarray(value)
    if not isinstance(value, torch.Tensor):
        is_picture = getattr(value, "dtype", None) == "uint8" and getattr(value, "ndim", 0) in (2, 3)
        value = torch.as_tensor(value)
        if is_picture:
            value = value.unsqueeze(2) if value.dim() == 2 else value
            value = value.permute(2, 0, 1)
    if value.dtype == torch.uint8:
        return value.to(torch.float32).div_(255)
    return value.to(torch.float32) if value.is_floating_point() or value.dtype == torch.bool else value.to(torch.int64)


def kind_of(inputs, target):
    """class, soft, values or tokens, by the look of the first sample."""
    tensor = torch.as_tensor(target)
    if tensor.is_floating_point():
        return "values"
    return "class" if tensor.dim() == 0 else "tokens"


def make_dataset(path, name, args, targets, classes, seed, what):
    data = DataSet(path, name, args, targets, classes, seed, what)
    is_tokens = data.input_dtype == torch.int64
    return [data, data.length, data.input_shape, is_tokens, data.target_kind, data.num_classes]


def read_samples(data, indices, epoch):
    return list(data.read(indices.tolist(), epoch))


def digest(data):
    return data.digest()
