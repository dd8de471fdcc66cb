"""Layers of a network that a recipe quantizes."""
from .quantized_layers import layers_of, norms_of, round_layers


def layers_in(network):
    return layers_of(network.module, [parameter for _, parameter, _ in network.trained])


def quantizable_layers(network):
    """[name, index of its weight among the trained parameters, whether the network has batch normalisation] of each."""
    has_norm = bool(norms_of(network.module))
    return [[name, weight, has_norm] for name, _, weight in layers_in(network)]


def quantize_layers(network, quantize):
    """Each layer passes its input and its weight to quantize(number of the layer, whether it is the weight, values)."""
    round_layers(layers_in(network), quantize)


def freeze_norms(network):
    """Batch normalisation goes by its moving statistics, and keeps them, until the network's train()."""
    for norm in norms_of(network.module):
        norm.eval()
