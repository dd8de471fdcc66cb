"""Large linear layers, whose products for few samples are the engine's, and whose backward writes the weight's gradient in place.

Each gets a `forward` of its own; no class is changed.
"""
import functools

import torch

LARGE = 1 << 20  # elements of a weight; below, the call costs more than it saves


class LargeLinear:
    """Forward pass of a large nn.Linear. Copies and pickles of the layer have nn.Linear's own."""

    def __init__(self, layer, loop, weight):
        """weight: its index among the loop's parameters."""
        self.layer, self.loop, self.weight = layer, loop, weight
        self.linear = torch.ops.lockstep.loop_linear.default

    def __call__(self, values):
        layer = self.layer
        if not torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return torch.nn.functional.linear(values, layer.weight, layer.bias)
        return self.linear(self.loop, self.weight, values, layer.weight, layer.bias)

    def __reduce__(self):
        return functools.partial, (torch.nn.Linear.forward, self.layer)


def write_gradients(layers, loop):
    """Gives the large linear layers their forward pass; returns them. layers: of layers_of()."""
    large = [(layer, weight) for _, layer, weight in layers
             if isinstance(layer, torch.nn.Linear) and layer.weight.numel() >= LARGE and "forward" not in layer.__dict__]
    for layer, weight in large:
        layer.forward = LargeLinear(layer, loop, weight)
    return [layer for layer, _ in large]
