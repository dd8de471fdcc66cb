"""Networks of python_test.py. NetOf... mistakes are named by what they do wrong."""
import os
import sys

import torch
from torch import nn


class Plain(nn.Module):
    """Two layers that share one weight, so that state_dict has a key more than there are parameters."""

    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, width)
        self.third.weight = self.second.weight
        self.classifier = nn.Linear(width, 3)

    def forward(self, inputs):
        return self.classifier(torch.tanh(self.third(torch.tanh(self.second(torch.tanh(self.first(inputs)))))))


class OfWhole(Plain):
    """Takes whole numbers, and floats as well."""

    def forward(self, inputs):
        return super().forward(inputs.float())


class Noisy(nn.Module):
    """A network with everything that a resume must not lose: dropout, batch normalisation, a buffer that is replaced."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(0.3)
        self.classifier = nn.Linear(16, 3)
        self.register_buffer("average", torch.zeros(16))

    def forward(self, inputs):
        values = self.norm(self.first(inputs))
        if self.training:
            self.average = 0.9 * self.average + 0.1 * values.detach().mean(0)
        return self.classifier(self.dropout(torch.relu(values)))


class OwnLoss(Plain):
    def __init__(self, deterministic=False):
        super().__init__()
        self.deterministic = deterministic

    def forward(self, inputs, targets=None):
        if torch.are_deterministic_algorithms_enabled() != self.deterministic:
            raise ValueError(f"kernels are deterministic: {not self.deterministic}")
        logits = super().forward(inputs)
        return logits if targets is None else (logits, nn.functional.cross_entropy(logits, targets))


class Clash(Plain):
    """Two layers whose tensors have one name in a save."""

    def __init__(self):
        super().__init__()
        self.add_module("own/layer", nn.Linear(4, 3))
        self.own = nn.Module()
        self.own.layer = nn.Linear(4, 3)


class Told(Plain):
    """Arguments of all kinds, which `lockstep infer` must give it again."""

    def __init__(self, width, text, rate, numbers, names, empty, nothing=3):
        super().__init__(width)
        given = (text, rate, numbers, names, empty, nothing)
        wanted = ("5", 0.5, [1, [2, 3]], {"a": {"b": "x y"}, "c": True}, [], None)
        if given != wanted:
            raise ValueError(f"{given} is not {wanted}")


class Bad(Plain):
    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        if fault == "dtype":
            self.first.double()
        if fault == "ranks" and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            self.classifier = nn.Linear(8, 4)

    def forward(self, inputs):
        if self.fault == "raises":
            raise ValueError("this forward fails")
        if self.fault == "exits":
            sys.exit(3)
        if self.fault == "zero_grad":
            self.zero_grad()
        if self.fault == "assigns":
            self.first.weight = nn.Parameter(self.first.weight.detach().clone())
        if self.fault == "no_tensor":
            return 3
        logits = super().forward(inputs)
        if self.fault == "backward":
            logits = FailsBackward.apply(logits)
        return logits[:, :2] if self.fault == "shape" else logits


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values * 2

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("this backward fails")


class Layers(nn.Module):
    """Lockstep's own mlp {layers: [4, 8, 3], activation: tanh}, by its names."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 3)])

    def forward(self, inputs):
        values = inputs
        for i, layer in enumerate(self.layers):
            values = layer(values if i == 0 else torch.tanh(values))
        return values


class MaskedLayers(nn.Module):
    """Layers with a causal mask in a buffer, as attention keeps one. The first row of its softmax is (1, 0, 0), so outputs are those of Layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 3)])
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))

    def forward(self, inputs):
        values = inputs
        for i, layer in enumerate(self.layers):
            values = layer(values if i == 0 else torch.tanh(values))
        return values * torch.softmax(self.mask, dim=1)[0].sum()


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 16, 3)
        self.hidden = nn.Linear(16, 32)
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(32, 10)

    def forward(self, images):
        values = nn.functional.max_pool2d(torch.relu(self.norm(self.conv1(images))), 2)
        values = nn.functional.max_pool2d(torch.relu(self.conv2(values)), 2)
        return self.classifier(self.dropout(torch.relu(self.hidden(values.flatten(1)))))
