"""Data sets: any object of the user's with __len__ and __getitem__, or an iterable, that gives (input, target) or several tensors."""
import ctypes
import hashlib
import json
import math
import operator
import pathlib

from .batches import IGNORED, arranged, is_pair, named_parts, stacked, tensors_of, without_samples
from .faults import Fault, make, naming, own_frames
from .models import begin_forward, seed_all
from .streams import Stream
from .torch_import import torch

MOST_DAMAGED = 1000  # in a row, as data/dataset.cpp
A_CLASS = "a class is one whole number: an int, or a tensor without dimensions"


class DataSet:
    """A user's data set with what Lockstep needs to know of it.

    skips_damaged: sample 0 may be unreadable (data.on_error: skip). any_class: only the network reads the targets (train.loss: own).
    for_inference: samples may be inputs alone. iterable: it is iterated, num_samples times an epoch, or as often as its length says. Pairs (input,
    target) are stacked after checks of each sample. Other samples become batches with keywords: by the object's collate_fn, else by stacking."""

    def __init__(self, path, name, args, targets, classes, seed, what, skips_damaged, any_class, for_inference, iterable, num_samples):
        seed_all(seed)
        self.items = make(path, name, json.loads(args), what)
        self.path, self.name, self.args, self.seed = path, name, args, seed
        self.skips_damaged, self.for_inference = skips_damaged, for_inference
        self.length = num_samples or self.count_samples(iterable)
        self.stream = Stream(self.items, self.length, f"{path}: {name}") if iterable else None
        self.collate = getattr(self.items, "collate_fn", None)
        self.lacks_targets = None if for_inference else False  # its items are inputs alone: the first one says it
        self.any_class, self.target_dtype = any_class, None
        self.like = None  # keywords and tensors of the first sample, which others without collate_fn must have
        self.example = self.first_batch()
        self.any_class = any_class or (for_inference and not self.is_pair)
        inputs, target = self.example[0][0], self.example[1][0]
        self.target_kind = self.kind_of(target, targets)
        self.input_shape, self.input_dtype, self.target_shape = list(inputs.shape), inputs.dtype, list(target.shape)
        self.num_classes = self.count_classes(classes)
        self.target_dtype = torch.int64 if self.target_kind in ("class", "tokens") else torch.float32
        if self.is_pair:
            for tensors in (self.example, self.like[1]):
                tensors[1] = tensors[1].to(self.target_dtype)

    def count_samples(self, iterable):
        is_stream = isinstance(self.items, torch.utils.data.IterableDataset)  # its __getitem__ raises
        for method in ("__len__", "__iter__" if iterable else "__getitem__"):
            if getattr(self.items, method, None) is None or (method == "__getitem__" and is_stream):
                of_stream = {"__len__": "write the samples of an epoch in `samples:`", "__iter__": "`iterable: true` needs it"}
                hint = "; with __iter__, write `iterable: true` next to its name" if hasattr(self.items, "__iter__") else ""
                raise Fault(f"{self.path}: {self.name} has no {method}: {of_stream[method] if iterable else f'a data set is read by index{hint}'}")
        try:
            length = len(self.items)
        except TypeError as fault:
            if own_frames(fault.__traceback__):
                raise
            raise Fault(f"{self.path}: {self.name}.__len__ must return a whole number: {fault}") from fault
        if length < 1:
            raise Fault(f"{self.path}: {self.name} holds {length} samples")
        return length

    def first_batch(self):
        """The first sample twice; the first sound one if damaged ones are skipped."""
        num_tries = min(MOST_DAMAGED, self.length) if self.skips_damaged else 1
        for index in range(num_tries):
            self.first = index
            try:
                item = self.item(index, 0)
                self.is_pair = self.collate is None and is_pair(item)
                # Read anew: a collate_fn may change the items that it gets.
                return self.batch_of([item, item if self.is_pair else self.item(index, 0)], [index, index], 0)
            except Fault:
                if index + 1 == num_tries:
                    raise

    def kind_of(self, target, wanted):
        """The kind of the first target: as wanted, or by its type and shape. Refuses one whose shape is another kind's."""
        kind = wanted
        if wanted == "auto":
            kind = "values" if target.is_floating_point() else "class" if target.dim() == 0 else "tokens"
            if kind == "tokens" and list(target.shape) == [1] and self.is_pair:
                raise Fault(f"{self.target_of(self.first)} has shape [1]: {A_CLASS}; where it is a sequence of one token, write `targets: tokens`")
        if not self.is_pair and self.any_class:
            return kind
        if kind == "class" and target.dim() > 0:
            raise Fault(f"{self.target_of(self.first)} has shape {list(target.shape)}: {A_CLASS}")
        if kind in ("soft", "tokens") and target.dim() == 0:
            needs = "a probability for each class" if kind == "soft" else "a token for each token of the input"
            raise Fault(f"{self.target_of(self.first)} is one number: `targets: {kind}` needs {needs}")
        return kind

    def count_classes(self, classes):
        if classes > 0 or self.lacks_targets:
            return classes or 1
        if self.target_kind == "soft":
            return self.target_shape[0]
        if self.target_kind == "values":
            return math.prod(self.target_shape)
        for name in ("num_classes", "vocab_size"):
            value = getattr(self.items, name, None)
            if value is None:
                continue
            try:
                number = operator.index(value)  # also numpy's and torch's, such as labels.max() + 1
            except TypeError:
                number = 0
            if number < 1:
                raise Fault(f"{self.path}: {name} of {self.name} is {value!r} ({type(value).__name__}); it must be a whole number above 0")
            return number
        if hasattr(self.items, "classes"):
            return len(self.items.classes)
        if not self.is_pair and (self.any_class or self.for_inference):
            return 1  # nobody reads it
        raise Fault(f"{self.path}: {self.name} has an unknown number of classes: write `num_classes:` next to its name, or add an attribute num_classes")

    def seed_sample(self, epoch, index):
        """Randomness of a sample: of (seed, epoch, index), whoever reads it. Of a batch: the indices of its samples."""
        mixed = int.from_bytes(hashlib.blake2b(f"{self.seed},{epoch},{index}".encode(), digest_size=8).digest(), "little")
        begin_forward(mixed)
        torch.default_generator.manual_seed(mixed & (2**63 - 1))

    def target_of(self, index):
        return f"{self.path}: the target of sample {index} of {self.name}"

    def item(self, index, epoch):
        """One sample as the user's code gives it; inputs alone get a target that nobody reads."""
        with naming(f"sample {index} of {self.name}, whose length is {self.length}"):
            if self.stream is not None:
                item = self.stream.item(index, epoch, self.seed_sample)
            else:
                self.seed_sample(epoch, index)
                item = self.items[index]
        if self.lacks_targets is None:
            self.lacks_targets = not isinstance(item, (tuple, list)) and named_parts(item) is None and self.collate is None
        return (item, 0) if self.lacks_targets else item

    def batch_of(self, items, indices, epoch):
        """[inputs, targets, other tensors, keywords]."""
        try:
            batch = self.stacked(items, indices) if self.collate is None else self.collated(items, indices, epoch)
        except Fault as fault:
            raise Fault(f"{self.path}: {fault}") from fault
        # Kind and classes of targets for a loss of Lockstep's follow from the first batch.
        if self.target_dtype is not None and not self.any_class and batch[3][1:2] != [""]:
            batch[1] = batch[1].to(self.target_dtype)
            self.require_classes(indices, batch[1])
        return batch

    def collated(self, items, indices, epoch):
        what = f"{self.name}.collate_fn of samples {', '.join(map(str, indices[:8]))}{', ...' if len(indices) > 8 else ''}"
        self.seed_sample(epoch, indices)
        with naming(what):
            made = self.collate(items)
        return arranged(*tensors_of(made, f"the result of {what}"), len(items), f"the result of {what}")

    def stacked(self, items, indices):
        names = [f"sample {index} of {self.name}" for index in indices]
        samples = list(map(self.pair_of if self.is_pair else tensors_of, items, names))
        self.like = self.like or samples[0]
        return arranged(*stacked(samples, self.like, names, f"sample {self.first}"), len(items), names[0])

    def pair_of(self, item, name):
        """As tensors_of() for an (input, target)."""
        if not is_pair(item):
            raise Fault(f"{name} is {type(item).__name__}, not (input, target) like sample {self.first}")
        inputs, target = item
        if target is None or isinstance(target, (str, bytes)):
            raise Fault(f"the target of {name} is {target!r} ({type(target).__name__}): {A_CLASS}")
        with naming(f"{name}, whose length is {self.length}"):
            return [], [as_input(inputs), torch.as_tensor(target, dtype=self.target_dtype)]

    def require_classes(self, indices, targets):
        if targets.dtype != torch.int64 or targets.numel() == 0 or 0 <= int(targets.min()) <= int(targets.max()) < self.num_classes:
            return
        for index, target in zip(indices, targets):
            wrong = target[((target < 0) | (target >= self.num_classes)) & (target != IGNORED)]
            if wrong.numel():
                raise Fault(f"{self.target_of(index)} holds {int(wrong[0])}, the classes are 0 to {self.num_classes - 1}; "
                            f"{IGNORED} is ignored in the loss")

    def read(self, indices, epoch):
        """[inputs, targets, other tensors, keywords]."""
        if not indices:
            return without_samples(self.example)
        return self.batch_of([self.item(index, epoch) for index in indices], indices, epoch)

    def tensors(self, index):
        """Tensors of one sample, to compare and to digest."""
        if self.is_pair:
            return self.pair_of(self.item(index, 0), f"{self.path}: sample {index} of {self.name}")[1]
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
        digest = hashlib.sha256(json.dumps([self.name, self.args, self.length, str(getattr(self.items, "version", ""))]).encode())
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


def bytes_of(tensor):
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def array_of(picture):
    """The numbers of a PIL image: bytes, or floats; 16 bits of grey are divided by 65535. Modes whose numbers are no intensities are converted."""
    import numpy
    mode = {"1": "L", "P": "RGB", "PA": "RGBA"}.get(picture.mode)
    array = numpy.array(picture if mode is None else picture.convert(mode))  # a copy: tensors want to be writable
    if picture.mode != "I" and not picture.mode.startswith("I;16"):
        return array
    if array.min() < 0 or array.max() > 65535:
        raise ValueError(f"a picture of mode {picture.mode} holds {array.min()} to {array.max()}, not 16 bits: convert it to a float tensor")
    return array.astype("float32") / 65535


def as_input(value):
    """Tensors as they are, in float32 or int64; pictures (PIL, uint8 arrays of rows, columns, channels) in 0 to 1, channels first."""
    is_picture = type(value).__module__.startswith("PIL")
    if is_picture:
        value = array_of(value)
    if not isinstance(value, torch.Tensor):
        is_picture = is_picture or getattr(value, "dtype", None) == "uint8" and getattr(value, "ndim", 0) in (2, 3)
        value = torch.as_tensor(value)
        if is_picture:
            value = value.unsqueeze(0) if value.dim() == 2 else value.permute(2, 0, 1)
    if value.dtype == torch.uint8:
        return value.to(torch.float32).div_(255)
    return value.to(torch.float32) if value.is_floating_point() or value.dtype == torch.bool else value.to(torch.int64)


def make_dataset(*arguments):
    data = DataSet(*arguments)
    data.source = arguments
    data.require_same_twice()
    return [data, data.length, data.input_shape, data.input_dtype == torch.int64, data.target_kind, data.num_classes, bool(data.lacks_targets),
            data.collate is not None, data.example]


def read_samples(data, indices, epoch):
    return data.read(indices.tolist(), epoch)


digest = DataSet.digest
