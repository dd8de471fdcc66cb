"""Networks for exports, with what a trace must get right or cannot."""
import torch
from torch import nn


class Normed(nn.Module):
    """Statistics, dropout, a tied weight and a buffer: evaluation only reads them."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second, self.classifier = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, inputs):
        values = nn.functional.dropout(torch.relu(self.norm(self.first(inputs))), 0.5, self.training)
        return self.classifier(self.second(values)) * self.scale


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent, self.classifier = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.classifier(self.recurrent(inputs.unsqueeze(2))[0][:, -1])


class Simple(nn.Module):
    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(4, 3)


class Branching(Simple):
    def forward(self, inputs):
        if inputs.sum() > 0:  # depends on values
            inputs = inputs * 2
        return self.classifier(inputs)


class Sized(Simple):
    def forward(self, inputs):
        if self.training:
            return self.classifier(inputs)
        return self.classifier(inputs).reshape(min(len(inputs), 2), 3)  # two samples at most
