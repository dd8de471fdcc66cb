"""Data sets: any object of the user's with __len__ and __getitem__, or an iterable, that gives (input, target) or several tensors."""
import ctypes
import hashlib
import json
import math
import operator
import pathlib
import random
import sys

from .batches import IGNORED, arranged, is_pair, named_parts, stacked, tensors_of, without_samples
from .faults import Fault, make, own_frames, text_of
from .models import seed_all
from .streams import Stream
from .torch_import import torch

MOST_DAMAGED = 1000  # in a row, as data/dataset.cpp
A_CLASS = "a class is one whole number: an int, or a tensor without dimensions"


class DataSet:
    """A user's data set with what Lockstep needs to know of it.

    skips_damaged: sample 0 may be unreadable (data.on_error: skip). any_class: only the network reads the targets (train.loss: own).
    for_inference: samples may be inputs alone. iterable: it is iterated, num_samples times an epoch, or as often as its length says. Pairs
    (input, target) are stacked after checks of each sample. Other samples become batches with keywords: by the object's collate_fn, else by
    stacking.
    """

    def __init__(self, path, name, args, targets, classes, seed, what, skips_damaged, any_class, for_inference, iterable, num_samples):
        seed_all(seed)
        self.items = make(path, name, json.loads(args), what)
        if for_inference:
            self.items = ForInference(self.items)
        self.path, self.name, self.args, self.seed = path, name, args, seed
        self.skips_damaged, self.any_class = skips_damaged, any_class
        self.length = num_samples or self.count_samples(iterable)
        self.stream = Stream(self.items, self.length, f"{path}: {name}") if iterable else None
        self.collate = getattr(self.items, "collate_fn", None)
        self.first, item = self.first_item()
        self.is_pair = self.collate is None and is_pair(item)
        any_class = self.any_class = any_class or (for_inference and not self.is_pair)
        self.like = None  # keywords and tensors of the first sample, which others without collate_fn must have
        self.example = self.first_batch(item)
        inputs, target = self.example[0][0], self.example[1][0]
        self.target_kind = self.kind_of(target) if targets == "auto" else targets
        if self.is_pair or not any_class:
            self.require_shape_of_kind(target)
        self.input_shape, self.input_dtype = list(inputs.shape), inputs.dtype
        self.target_shape = list(target.shape)
        self.num_classes = self.count_classes(classes)
        self.source = (path, name, args, self.target_kind, self.num_classes, seed, what, skips_damaged, any_class, for_inference, iterable,
                       num_samples)

    def count_samples(self, iterable):
        for method in ("__len__", "__iter__" if iterable else "__getitem__"):
            if getattr(self.items, method, None) is None or (method == "__getitem__" and is_iterable(self.items)):
                raise Fault(f"{self.path}: {self.name} has no {method}: " + (
                    "write the samples of an epoch in `samples:`" if iterable and method == "__len__"
                    else "`iterable: true` needs it" if iterable
                    else "a data set is read by index; with __iter__, write `iterable: true` next to its name" if hasattr(self.items, "__iter__")
                    else "a data set is read by index"))
        try:
            length = len(self.items)
        except TypeError as fault:
            if own_frames(fault.__traceback__):
                raise
            raise Fault(f"{self.path}: {self.name}.__len__ must return a whole number: {fault}") from fault
        if length < 1:
            raise Fault(f"{self.path}: {self.name} holds {length} samples")
        return length

    def first_item(self):
        """Index and item of the first sample; of the first sound one if damaged ones are skipped."""
        num_tries = min(MOST_DAMAGED, self.length) if self.skips_damaged else 1
        for index in range(num_tries):
            try:
                item = self.item(index, 0)
                if self.collate is None and is_pair(item):
                    self.pair_of(index, item)
                return index, item
            except Fault:
                if index + 1 == num_tries:
                    raise

    def first_batch(self, item):
        """The first sample twice."""
        if self.is_pair:
            inputs, target = self.pair_of(self.first, item)
            return [torch.stack([inputs, inputs]), torch.stack([target, target]), [], []]
        # Read anew: a collate_fn may change the items that it gets.
        return self.batch_of([item, self.item(self.first, 0)], [self.first] * 2, 0)

    def kind_of(self, target):
        """class, values or tokens, by the first target."""
        if target.is_floating_point():
            return "values"
        if list(target.shape) == [1] and self.is_pair:
            raise Fault(f"{self.target_of(self.first)} has shape [1]: {A_CLASS}; where it is a sequence of one token, write `targets: tokens`")
        return "class" if target.dim() == 0 else "tokens"

    def require_shape_of_kind(self, target):
        if self.target_kind == "class" and target.dim() > 0:
            raise Fault(f"{self.target_of(self.first)} has shape {list(target.shape)}: {A_CLASS}")
        if self.target_kind in ("soft", "tokens") and target.dim() == 0:
            needs = "a probability for each class" if self.target_kind == "soft" else "a token for each token of the input"
            raise Fault(f"{self.target_of(self.first)} is one number: `targets: {self.target_kind}` needs {needs}")

    def count_classes(self, classes):
        if classes > 0:
            return classes
        if self.target_kind == "soft":
            return self.target_shape[0]
        if self.target_kind == "values":
            return math.prod(self.target_shape)
        for name in ("num_classes", "vocab_size"):
            if getattr(self.items, name, None) is not None:
                return self.whole_number(name)
        if hasattr(self.items, "classes"):
            return len(self.items.classes)
        if not self.is_pair and (self.any_class or isinstance(self.items, ForInference)):
            return 1  # nobody reads it
        raise Fault(f"{self.path}: {self.name} has an unknown number of classes: write `num_classes:` next to its name, "
                    "or add an attribute num_classes")

    def whole_number(self, name):
        """Also numpy's and torch's, such as labels.max() + 1."""
        value = getattr(self.items, name)
        try:
            number = operator.index(value)
        except TypeError:
            number = 0
        if number < 1:
            raise Fault(f"{self.path}: {name} of {self.name} is {value!r} ({type(value).__name__}); it must be a whole number above 0")
        return number

    def seed_sample(self, epoch, index):
        """Randomness of a sample: of (seed, epoch, index), whoever reads it. Of a batch: the indices of its samples."""
        mixed = int.from_bytes(hashlib.blake2b(f"{self.seed},{epoch},{index}".encode(), digest_size=8).digest(), "little")
        random.seed(mixed)
        torch.default_generator.manual_seed(mixed & (2**63 - 1))
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(mixed % 2**32)

    def target_of(self, index):
        return f"{self.path}: the target of sample {index} of {self.name}"

    def item(self, index, epoch):
        """One sample as the user's code gives it. What that raises becomes a Fault that names the sample."""
        try:
            if self.stream is not None:
                return self.stream.item(index, epoch, self.seed_sample)
            self.seed_sample(epoch, index)
            return self.items[index]
        except Fault:
            raise
        except Exception as fault:
            raise Fault(text_of(fault, f"sample {index} of {self.name}, whose length is {self.length}: ")) from fault

    def pair_of(self, index, item):
        """Inputs and target of a sample as tensors."""
        if not is_pair(item):
            raise Fault(f"{self.path}: sample {index} of {self.name} is {type(item).__name__}, not (input, target) like sample {self.first}")
        try:
            return as_input(item[0]), self.as_tensor(index, item[1])
        except Fault:
            raise
        except Exception as fault:
            raise Fault(text_of(fault, f"sample {index} of {self.name}, whose length is {self.length}: ")) from fault

    def batch_of(self, items, indices, epoch):
        """[inputs, targets, other tensors, keywords] of samples that are no pairs."""
        try:
            batch = self.stacked(items, indices) if self.collate is None else self.collated(items, indices, epoch)
        except Fault as fault:
            raise Fault(f"{self.path}: {fault}") from fault
        if not self.any_class and batch[3][1:2] != [""]:
            batch[1] = self.checked_targets(indices, batch[1])
        return batch

    def collated(self, items, indices, epoch):
        what = f"{self.name}.collate_fn of samples {', '.join(map(str, indices[:8]))}{', ...' if len(indices) > 8 else ''}"
        self.seed_sample(epoch, indices)
        try:
            made = self.collate(items)
        except Exception as fault:
            raise Fault(text_of(fault, f"{what}: ")) from fault
        return arranged(*tensors_of(made, f"the result of {what}"), len(items), f"the result of {what}")

    def stacked(self, items, indices):
        def place_of(i):
            return f"sample {indices[i]} of {self.name}"

        samples = [tensors_of(item, place_of(i)) for i, item in enumerate(items)]
        self.like = self.like or samples[0]
        return arranged(*stacked(samples, self.like, place_of, f"sample {self.first}"), len(items), place_of(0))

    def checked_targets(self, indices, targets):
        """Targets of a batch for a loss of Lockstep's."""
        if not hasattr(self, "num_classes"):  # of the first batch, from which kind and classes follow
            return targets
        targets = targets.to(self.target_dtype())
        if self.target_kind in ("class", "tokens"):
            for index, target in zip(indices, targets):
                self.require_classes(index, target)
        return targets

    def as_tensor(self, index, target):
        if target is None or isinstance(target, (str, bytes)):
            raise Fault(f"{self.target_of(index)} is {target!r} ({type(target).__name__}): {A_CLASS}")
        return torch.as_tensor(target)

    def target_dtype(self):
        return torch.int64 if self.target_kind in ("class", "tokens") else torch.float32

    def checked(self, index, inputs, target):
        if list(inputs.shape) != self.input_shape or inputs.dtype != self.input_dtype:
            raise Fault(f"{self.path}: sample {index} of {self.name} has inputs {list(inputs.shape)} {inputs.dtype}, "
                        f"sample {self.first} has {self.input_shape} {self.input_dtype}")
        if list(target.shape) != self.target_shape:
            raise Fault(f"{self.target_of(index)} is {list(target.shape)}, of sample {self.first} {self.target_shape}")
        target = target.to(self.target_dtype())
        if self.target_kind in ("class", "tokens") and not self.any_class:
            self.require_classes(index, target)
        return inputs, target

    def require_classes(self, index, target):
        if target.numel() == 0 or 0 <= int(target.min()) <= int(target.max()) < self.num_classes:
            return
        wrong = target[((target < 0) | (target >= self.num_classes)) & (target != IGNORED)]
        if wrong.numel():
            raise Fault(f"{self.target_of(index)} holds {int(wrong[0])}, the classes are 0 to {self.num_classes - 1}; "
                        f"{IGNORED} is ignored in the loss")

    def read(self, indices, epoch):
        """[inputs, targets, other tensors, keywords]."""
        if not self.is_pair:
            items = [self.item(index, epoch) for index in indices]
            return self.batch_of(items, indices, epoch) if items else without_samples(self.example)
        pairs = [self.checked(index, *self.pair_of(index, self.item(index, epoch))) for index in indices]
        if not pairs:
            return [torch.empty([0, *self.input_shape], dtype=self.input_dtype),
                    torch.empty([0, *self.target_shape], dtype=self.target_dtype()), [], []]
        return [torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs]), [], []]

    def tensors(self, index):
        """Tensors of one sample, to compare and to digest."""
        if self.is_pair:
            return self.pair_of(index, self.item(index, 0))
        inputs, targets, more, _ = self.read([index], 0)
        return [inputs, targets, *more]

    def spread(self, count):
        """Indices of `count` samples at most, from the first to the last; of a stream the first ones."""
        if self.stream is not None:
            return range(min(count, self.length))
        return sorted({k * (self.length - 1) // (count - 1) for k in range(count)})

    def require_same_twice(self):
        """Other ranks, resumed runs and the digest rely on it: a sample depends on (seed, epoch, index) alone."""
        for index in self.spread(4 if self.stream is None else 1):
            try:
                once, again = self.tensors(index), self.tensors(index)
            except Fault:
                continue  # raised again where the sample is needed
            if [bytes_of(t) for t in once] != [bytes_of(t) for t in again]:
                raise Fault(f"{self.path}: sample {index} of {self.name} differs when it is read twice: it draws from its own generator, or "
                            "reading changes it; draw from random, numpy.random or torch's default generator, which are seeded before "
                            "each sample, or seed a generator in __getitem__ with torch.initial_seed()")

    def digest(self):
        """Of class, file, arguments, length, the user's `version`, and 64 spread samples; one that cannot be read counts too."""
        version = str(getattr(self.items, "version", ""))
        digest = hashlib.sha256(json.dumps([self.name, self.args, self.length, version]).encode())
        digest.update(pathlib.Path(self.path).read_bytes())
        sound = []
        for index in self.spread(64):
            try:
                inputs, targets, more, _ = self.read([index], 0)
                sound.append([inputs, targets, *more])
            except Fault:
                digest.update(f"sample {index} is damaged".encode())
        for tensors in zip(*sound):
            for tensor in tensors:
                digest.update(bytes_of(tensor))
        return digest.hexdigest()


class ForInference:
    """A user's data set whose items may be inputs alone, as the first one is. They get a target that nobody reads."""

    def __init__(self, items):
        self.items, self.lacks_targets = items, None

    def __len__(self):
        return len(self.items)

    def __getattr__(self, name):
        if name == "num_classes" and self.lacks_targets:
            return 1
        return getattr(self.items, name)

    def __getitem__(self, index):
        return self.with_target(self.items[index])

    def __iter__(self):
        return map(self.with_target, self.items)

    def with_target(self, item):
        if self.lacks_targets is None:
            self.lacks_targets = not isinstance(item, (tuple, list)) and named_parts(item) is None and not hasattr(self.items, "collate_fn")
        return (item, 0) if self.lacks_targets else item


def is_iterable(items):
    """True for an IterableDataset of PyTorch, which has a __getitem__ that raises."""
    return "torch.utils.data" in sys.modules and isinstance(items, sys.modules["torch.utils.data"].IterableDataset)


def bytes_of(tensor):
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


# PIL's modes whose numbers are no intensities, and what they are converted to.
CONVERTED = {"1": "L", "P": "RGB", "PA": "RGBA"}


def array_of(picture):
    """The numbers of a PIL image: bytes, or floats; 16 bits of grey are divided by 65535."""
    import numpy
    if picture.mode in CONVERTED:
        picture = picture.convert(CONVERTED[picture.mode])
    array = numpy.array(picture)  # a copy: tensors want to be writable
    if picture.mode != "I" and not picture.mode.startswith("I;16"):
        return array
    if array.min() < 0 or array.max() > 65535:
        raise ValueError(f"a picture of mode {picture.mode} holds {array.min()} to {array.max()}, not 16 bits: convert it to a float tensor")
    return array.astype("float32") / 65535


def as_input(value):
    """Tensors as they are, in float32 or int64; pictures (PIL, uint8 arrays of rows, columns, channels) in 0 to 1, channels
    first."""
    is_picture = type(value).__module__.startswith("PIL")
    if is_picture:
        value = array_of(value)
    if not isinstance(value, torch.Tensor):
        is_picture = is_picture or getattr(value, "dtype", None) == "uint8" and getattr(value, "ndim", 0) in (2, 3)
        value = torch.as_tensor(value)
        if is_picture:
            value = value.unsqueeze(2) if value.dim() == 2 else value
            value = value.permute(2, 0, 1)
    if value.dtype == torch.uint8:
        return value.to(torch.float32).div_(255)
    return value.to(torch.float32) if value.is_floating_point() or value.dtype == torch.bool else value.to(torch.int64)


def make_dataset(*arguments):
    data = DataSet(*arguments)
    data.require_same_twice()
    is_tokens = data.input_dtype == torch.int64
    lacks_targets = isinstance(data.items, ForInference) and data.items.lacks_targets
    return [data, data.length, data.input_shape, is_tokens, data.target_kind, data.num_classes, lacks_targets, data.collate is not None,
            data.example]


def read_samples(data, indices, epoch):
    return data.read(indices.tolist(), epoch)


def digest(data):
    return data.digest()
