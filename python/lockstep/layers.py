"""Layers of a network: their classes, those that a recipe quantizes, and large linear ones. Both get a `forward` of their own; no class is changed.
A quantized layer rounds its inputs and its weight, as int8 would, and gradients pass straight through. It stays so when training ends and when the loop is closed."""
import functools

import torch
from torch.nn import functional as F

KINDS = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
LARGE = 1 << 20  # elements of a weight; below, the call costs more than it saves


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


class LargeLinear:
    """Forward pass of a large nn.Linear. Copies and pickles of the layer have nn.Linear's own."""

    def __init__(self, layer, loop, weight):
        """weight: its index among the loop's parameters."""
        self.layer, self.loop, self.weight = layer, loop, weight
        self.linear = torch.ops.lockstep.loop_linear.default

    def __call__(self, values):
        layer = self.layer
        if not torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return F.linear(values, layer.weight, layer.bias)
        return self.linear(self.loop, self.weight, values, layer.weight, layer.bias)

    def __reduce__(self):
        return functools.partial, (torch.nn.Linear.forward, self.layer)


def write_gradients(layers, loop):
    """Gives the large linear layers their forward pass. layers: of layers_of()."""
    for _, layer, weight in layers:
        if isinstance(layer, torch.nn.Linear) and layer.weight.numel() >= LARGE and "forward" not in layer.__dict__:
            layer.forward = LargeLinear(layer, loop, weight)


def release_gradients(module):
    """Gives the large linear layers of a module nn.Linear's forward pass back."""
    for layer in module.modules():
        if isinstance(layer.__dict__.get("forward"), LargeLinear):
            del layer.forward
