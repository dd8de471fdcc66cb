"""Data sets of python_test.py."""
import os
import random
import signal
import time

import torch


class Points:
    """Three classes of points; with `noise`, random numbers of all kinds, which must not depend on who reads."""

    num_classes = 3

    def __init__(self, samples=200, noise=0.0, fault=""):
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(samples, 4, generator=generator)
        self.labels = (self.inputs[:, 0] > 0).long() + (self.inputs[:, 1] > 0.5).long()
        self.noise, self.fault = noise, fault
        if fault == "nan":
            self.inputs[3] = float("nan")
        if fault == "stopped":
            self.stop_one_rank()

    def stop_one_rank(self):
        if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSTOP)

    def __len__(self):
        return len(self.labels) + (7 if self.fault == "length" else 0)

    def __getitem__(self, index):
        if self.fault == "raises" and index == 77:
            raise KeyError("no such point")
        if self.fault == "killed" and index == 77:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "terminated" and index == 77:
            os.kill(os.getpid(), signal.SIGTERM)  # as mpirun does to the whole process group
        if self.fault == "stopped_later" and index == 150:
            self.stop_one_rank()
        shape = 3 if self.fault == "ragged" and index == 77 else 4
        label = 9 if self.fault == "class" and index == 77 else self.labels[index]
        return self.inputs[index, :shape] + self.noise * (torch.randn(shape) + random.random()), label


class Whole(Points):
    """Inputs are whole numbers; without targets if asked for."""

    def __init__(self, has_targets=True):
        super().__init__()
        self.inputs, self.has_targets = (3 * self.inputs).round().long(), has_targets
        if not has_targets:
            self.num_classes = None

    def __getitem__(self, index):
        inputs, label = super().__getitem__(index)
        return (inputs.long(), label) if self.has_targets else inputs.long()


class Ignored(Points):
    """Every second class is -100, which torch.nn.functional.cross_entropy ignores."""

    def __init__(self):
        super().__init__()
        self.labels[::2] = -100


class Odd:
    """Eight samples of three classes, in which one thing is unusual."""

    num_classes = 3

    def __init__(self, kind=""):
        self.kind = kind
        self.own = random.Random(3 if kind == "seeded_once" else None)
        if kind == "count_of_tensor":
            self.num_classes = torch.arange(3).max() + 1
        if kind == "count_of_float":
            self.num_classes = 3.0

    def __len__(self):
        return 8.0 if self.kind == "length" else 8

    def __getitem__(self, index):
        inputs, target = torch.full([4], float(index)), index % 3
        if self.kind in ("unseeded", "seeded_once"):
            inputs += self.own.random()
        if self.kind == "seeded_by_sample":
            inputs += random.Random(torch.initial_seed()).random() + random.random() + torch.rand(4)
        if self.kind == "first_damaged" and index == 0:
            raise ValueError("damaged")
        if self.kind == "three_parts":
            return inputs, target, "a.jpg"
        if self.kind == "minus_one" and index == 3:
            target = -1
        if self.kind == "minus_100" and index % 2:
            target = -100
        if self.kind == "tensor_of_one":
            target = torch.tensor([target])
        return inputs, ["cat", "dog", "cow"][target] if self.kind == "text" else target


class Line:
    """Values: y = 2 x - 1."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = index / 32 - 1
        return torch.tensor([x, x * x, 0, 0]), [2 * x - 1, 0.0, 0.0]


class Squares:
    """Grey squares of one side; the one of number `damaged` cannot be read."""

    num_classes = 10

    def __init__(self, samples=250, damaged=-1):
        self.samples, self.damaged = samples, damaged

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        if index == self.damaged:
            raise OSError("this square is torn")
        return torch.full([1, 8, 8], index / self.samples), index % 10


class Tokens:
    """Sequences of eight tokens, and the next token of each."""

    num_classes = 30

    def __init__(self, samples=32):
        tokens = torch.randint(30, (samples, 9), generator=torch.Generator().manual_seed(5))
        self.inputs, self.targets = tokens[:, :-1], tokens[:, 1:]

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Pictures:
    num_classes = 10

    def __init__(self, samples=32):
        self.inputs = torch.rand(samples, 1, 8, 8, generator=torch.Generator().manual_seed(5))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], index % 10


class SlowPoints(Points):
    """Points that rank 1 takes `slow_s` seconds to read, and `eval_s` each in an evaluation on both ranks."""

    def __init__(self, slow_s=0.0, eval_s=0.0, **more):
        super().__init__(**more)
        self.pause_s = eval_s or (slow_s if os.environ["OMPI_COMM_WORLD_RANK"] == "1" else 0)

    def __getitem__(self, index):
        time.sleep(self.pause_s)
        return super().__getitem__(index)
