"""Parameters that the user's code froze."""


def frozen_parameters_of(network):
    """Names of the parameters that the constructor froze; buffers_of() has their tensors."""
    return [name for name, *_ in network.frozen]
