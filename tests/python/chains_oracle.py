"""Descriptions of chains, computed layer by layer as exports write them, against the networks that they describe."""
import os
import pathlib
import sys
import types
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "tests/support"), os.environ["LOCKSTEP_GLUE"]]
from cpu_torch import torch  # noqa: E402
from lockstep_glue.chains import chain_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Branch(nn.Module):
    """A linear layer, used as `how` says."""

    def __init__(self, how):
        super().__init__()
        self.how, self.layer, self.tied = how, nn.Linear(4, 4), nn.Linear(4, 4)
        self.tied.weight = self.layer.weight

    def forward(self, x, targets=None):
        return {"sum": lambda: x + self.layer(x), "tuple": lambda: (self.layer(x), 3), "twice": lambda: self.layer(self.layer(x)),
                "unused": lambda: (self.layer(x), torch.tanh(x))[1], "tied": lambda: self.tied(self.layer(x)), "drops": lambda: F.dropout(self.layer(x), 0.5),
                "whole": lambda: self.layer(x).flatten(), "method": lambda: self.layer(x).relu().tanh(), "softmax": lambda: self.layer(x).softmax(1),
                "values": lambda: self.layer(x) if x.sum() > 0 else x}[self.how]()


class Functions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2, bias=False), nn.BatchNorm2d(4, eps=0.01), nn.Linear(16, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2, stride=2)
        return self.last(F.dropout(torch.flatten(F.gelu(x), 1), 0.3, self.training))


CHAINS = {
    "modules": (nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                              nn.Linear(3, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh(), nn.Identity(), nn.Linear(5, 3)), (2, 8, 8)),
    "functions": (Functions(), (2, 8, 8)),
    "nested": (nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(8, 4), nn.GELU()), nn.Linear(4, 3)), (2, 4)),
    "method": (Branch("method"), (4,)),
    "twice": (Branch("twice"), (4,)),
}
REFUSED = {
    "add takes x, layer": (Branch("sum"), (4,)),
    "does not return the output of its last layer alone": (Branch("tuple"), (4,)),
    "tanh takes x": (Branch("unused"), (4,)),
    "the weight of tied is another layer's": (Branch("tied"), (4,)),
    "training of dropout is True": (Branch("drops"), (4,)),
    "start_dim of flatten is 0": (Branch("whole"), (4,)),
    "softmax has no description": (Branch("softmax"), (4,)),
    "torch.fx cannot trace its forward": (Branch("values"), (4,)),
    "approximate of GELU 0 is tanh": (nn.Sequential(nn.GELU(approximate="tanh")), (4,)),
    "kernel_size of Conv2d 0 is": (nn.Sequential(nn.Conv2d(1, 2, (3, 5))), (1, 8, 8)),
    "padding of Conv2d 0 is same": (nn.Sequential(nn.Conv2d(1, 2, 3, padding="same")), (1, 8, 8)),
    "another dilation or padding_mode": (nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2)), (1, 8, 8)),
    "padding of MaxPool2d 0 is 1": (nn.Sequential(nn.MaxPool2d(3, padding=1)), (1, 8, 8)),
    "ceil_mode of MaxPool2d 0 is True": (nn.Sequential(nn.MaxPool2d(3, ceil_mode=True)), (1, 8, 8)),
    "output_size of AdaptiveAvgPool2d 0 is 2": (nn.Sequential(nn.AdaptiveAvgPool2d(2)), (1, 8, 8)),
    "BatchNorm2d 0 has no description": (nn.Sequential(nn.BatchNorm2d(1, affine=False)), (1, 8, 8)),
    "its outputs have 4 dimensions": (nn.Sequential(nn.Conv2d(1, 2, 3)), (1, 8, 8)),
    "the linear layer 0 gets inputs of 3 dimensions": (nn.Sequential(nn.Linear(4, 3)), (2, 4)),
    "LSTM 0 has no description": (nn.Sequential(nn.LSTM(4, 4)), (2, 4)),
}


def compute(layers, tensors, x):
    for layer in layers:
        name, weight, bias = (layer.get("name"), *(tensors.get(f"{layer.get('name')}.{part}") for part in ("weight", "bias")))
        x = {"flatten": lambda: x.flatten(1), "relu": x.relu, "tanh": x.tanh, "gelu": lambda: x * (1 + torch.erf(x / 2**0.5)) / 2,
             "linear": lambda: x @ weight.T + (bias if layer["has_bias"] else 0),
             "conv2d": lambda: F.conv2d(x, weight, bias if layer["has_bias"] else None, layer["stride"], layer["padding"], 1, layer["groups"]),
             "max_pool2d": lambda: F.max_pool2d(x, layer["kernel_extent"], layer["stride"]), "global_average_pool": lambda: x.mean((2, 3), keepdim=True),
             "batch_norm": lambda: F.batch_norm(x, tensors[f"{name}.running_mean"], tensors[f"{name}.running_var"], weight, bias, False, 0.1, layer["epsilon"]),
             }[layer["kind"]]()
    return x


class Chains(unittest.TestCase):
    def chain(self, module, shape):
        return chain_of(types.SimpleNamespace(module=module.eval()), len(shape) + 1)

    def test_chains_compute_what_the_networks_do(self):
        torch.manual_seed(1)
        for name, (module, shape) in CHAINS.items():
            with self.subTest(name):
                module.train()(torch.randn(6, *shape))  # moves the statistics
                layers = self.chain(module, shape)
                self.assertIsInstance(layers, list, layers)
                x = torch.randn(5, *shape)
                with torch.no_grad():
                    torch.testing.assert_close(compute(layers, module.state_dict(), x), module(x))

    def test_other_networks_are_refused_with_the_reason(self):
        for reason, (module, shape) in REFUSED.items():
            with self.subTest(reason):
                self.assertIn(reason, self.chain(module, shape))


if __name__ == "__main__":
    unittest.main()
