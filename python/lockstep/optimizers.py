"""Several optimizers of one module as one: their parameter groups in order, and their state."""
from .programs import EXIT_CONFIG, Error


class Optimizers:
    """Optimizers without common parameters. The type's name joins theirs: "SGD + AdamW"."""

    def __init__(self, optimizers):
        self.all = optimizers

    @property
    def param_groups(self):
        return [group for optimizer in self.all for group in optimizer.param_groups]

    @property
    def state(self):
        """A copy of the maps; the slots are those of the optimizers."""
        return {parameter: slots for optimizer in self.all for parameter, slots in optimizer.state.items()}


def joined(optimizers):
    """The optimizer itself if the list has only one."""
    if len(optimizers) == 1:
        return optimizers[0]
    parameters = [id(parameter) for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]]
    if len(set(parameters)) < len(parameters):
        raise Error("[pytorch] two of the optimizers have a parameter in common: each parameter needs one", EXIT_CONFIG)
    return type(" + ".join(type(optimizer).__name__ for optimizer in optimizers), (Optimizers,), {})(optimizers)
