"""Layers of a network: their classes, and those that a recipe quantizes.

A quantized layer rounds its inputs and its weight in forward, as int8 would, and gradients pass straight through. It gets a `forward` of its own;
no class is changed. It stays when training ends, since the network was trained for it.
"""
import functools

import torch
from torch.nn import functional as F

KINDS = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


def class_of_layer(module, parameter_name):
    """The class of the layer that holds a parameter; of a parametrization, the layer whose weight it makes."""
    layer, is_parametrized, _ = f".{parameter_name}".partition(".parametrizations.")
    return type(module.get_submodule(layer[1:] if is_parametrized else parameter_name.rpartition(".")[0])).__name__


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
        layer.forward = functools.partial(rounded_forward, layer, quantize, number)


def rounded_forward(layer, quantize, number, values):
    inputs, weight = quantize(number, False, values), quantize(number, True, layer.weight)
    return F.linear(inputs, weight, layer.bias) if isinstance(layer, torch.nn.Linear) else layer._conv_forward(inputs, weight, layer.bias)
