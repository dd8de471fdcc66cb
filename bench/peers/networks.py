"""Lockstep's networks in PyTorch, with the same names of parameters."""
from torch import nn

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU, "tanh": nn.Tanh}
CNN_CHANNELS, CNN_HIDDEN = (64, 64, 128, 128), 240


class Mlp(nn.Module):
    """Linear layers layers.0, layers.1, ... with an activation between (model/networks/mlp.h)."""

    def __init__(self, widths, activation):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*ends) for ends in zip(widths, widths[1:]))
        self.activation = ACTIVATIONS[activation]()

    def forward(self, values):
        values = self.layers[0](values.flatten(1))
        for layer in self.layers[1:]:
            values = layer(self.activation(values))
        return values


class Cnn(nn.Module):
    """Images 3x32x32: 3x3 convolutions with ReLU, a maximum pool after every second one, two linear layers (model/networks/cnn.h)."""

    def __init__(self, num_classes):
        super().__init__()
        ends = zip((3, *CNN_CHANNELS), CNN_CHANNELS)
        self.blocks = nn.ModuleList(nn.ModuleDict({"conv": nn.Conv2d(*end, kernel_size=3, padding=1)}) for end in ends)
        self.hidden = nn.Linear(CNN_CHANNELS[-1] * 8 * 8, CNN_HIDDEN)
        self.classifier = nn.Linear(CNN_HIDDEN, num_classes)
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(2)

    def forward(self, values):
        for i, block in enumerate(self.blocks):
            values = self.relu(block["conv"](values))
            if i % 2:
                values = self.pool(values)
        return self.classifier(self.relu(self.hidden(values.flatten(1))))


def make_network(name, widths, activation, num_classes):
    return Cnn(num_classes) if name == "cnn" else Mlp(widths, activation)
