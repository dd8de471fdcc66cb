"""Layers that a recipe quantizes: their inputs and weights are rounded in forward, as int8 would, and gradients pass straight through.

Each such layer gets a `forward` of its own; no class is changed. It stays when training ends, since the network was trained for it.
"""
import functools

import torch
from torch.nn import functional as F

KINDS = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


def layers_of(module, trained):
    """[(name, layer, index of its weight among the trained parameters)] of those that can be quantized. A tied weight belongs to the layer that
    checkpoints name it after."""
    index = {id(parameter): i for i, parameter in enumerate(trained)}
    owned = {name: id(parameter) for name, parameter in module.named_parameters()}
    return [(name, layer, index[id(layer.weight)]) for name, layer in module.named_modules()
            if type(layer) in KINDS and id(layer.weight) in index and owned.get(f"{name}.weight") == id(layer.weight)]


def norms_of(module):
    return [layer for layer in module.modules() if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)]


def round_layers(layers, quantize):
    """quantize: (number of the layer, whether it is the weight, values) -> rounded values."""
    for number, (_, layer, _) in enumerate(layers):
        kind = forward_of_linear if isinstance(layer, torch.nn.Linear) else forward_of_convolution
        layer.forward = functools.partial(kind, layer, quantize, number)


def forward_of_linear(layer, quantize, number, values):
    inputs, weight = quantize(number, False, values), quantize(number, True, layer.weight)
    return F.linear(inputs, weight, layer.bias)


def forward_of_convolution(layer, quantize, number, values):
    inputs, weight = quantize(number, False, values), quantize(number, True, layer.weight)
    return layer._conv_forward(inputs, weight, layer.bias)
