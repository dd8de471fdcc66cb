"""Networks: torch.nn.Module of the user's."""
import json
import random
import sys

from .faults import Fault, make
from .torch_import import torch


def seed_all(seed):
    torch.manual_seed(seed)
    begin_forward(seed)


class Network:
    """A module of the user's, and what of it is trained, saved, watched: settled once, as Lockstep freezes parameters by
    `requires_grad` later."""

    def __init__(self, module):
        self.module = module
        trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        self.trained = [[name, parameter, type(layer_of(module, name)).__name__] for name, parameter in trained]
        names = {name for name, _ in trained}
        saved = module.state_dict().keys()
        # A tensor each: which module has it, under which name, and whether saves hold it.
        self.frozen = [(name, *place_of(module, name), True) for name, _ in module.named_parameters() if name not in names]
        self.buffers = [(name, *place_of(module, name), name in saved) for name, _ in module.named_buffers()]
        self.modules = list(module.modules())
        self.num_buffers = self.count_buffers()

    def count_buffers(self):
        """Those that saves hold. One that two modules share counts twice."""
        return sum(tensor is not None and name not in getattr(module, "_non_persistent_buffers_set", ())
                   for module in self.modules for name, tensor in module._buffers.items())

    def require_settled(self):
        """Refuses a buffer that was not there in the constructor: it would be in no save, and equal on no two ranks."""
        if self.count_buffers() <= self.num_buffers:
            return
        known = {name for name, *_ in self.buffers}
        late = [name for name, _ in self.module.named_buffers() if name not in known]
        raise Fault(f"{type(self.module).__name__} registers {', '.join(late) or 'a buffer'} in forward, or fills it there from None: "
                    "register it in the constructor with its shape and type")


def make_model(path, name, args, seed, input_shape, is_tokens):
    """The network, built from `seed` alone, so that all ranks build the same."""
    seed_all(seed)
    module = make(path, name, json.loads(args), "model")
    if not isinstance(module, torch.nn.Module):
        raise Fault(f"{path}: {name}(...) returns {type(module).__name__}, not a torch.nn.Module")
    build_lazy_parameters(module, input_shape, is_tokens)
    module.train()
    return Network(module)


def build_lazy_parameters(module, input_shape, is_tokens):
    lazy = torch.nn.parameter.UninitializedTensorMixin
    if not any(isinstance(p, lazy) for p in [*module.parameters(), *module.buffers()]):
        return
    module.eval()
    with torch.no_grad():
        module(torch.zeros([2, *input_shape], dtype=torch.int64 if is_tokens else torch.float32))


def place_of(module, name):
    """The module that holds a parameter or buffer, and its name there."""
    path, _, last = name.rpartition(".")
    return module.get_submodule(path), last


def layer_of(module, parameter_name):
    """The layer that a parameter belongs to; of a parametrization, the layer whose weight it makes."""
    layer, found, _ = f".{parameter_name}".partition(".parametrizations.")
    return module.get_submodule(layer[1:]) if found else place_of(module, parameter_name)[0]


def parameters_of(network):
    """[name, tensor, class of its layer] of each that is trained, in the module's order; tied ones once."""
    return network.trained


def frozen_parameters_of(network):
    """Names of the parameters that the constructor froze; buffers_of() has their tensors."""
    return [name for name, *_ in network.frozen]


def buffers_of(network, are_saved):
    """Lists [name, tensor] of the others that saves hold, or of those that they do not: frozen parameters and buffers. The names are settled.
    Tensors are looked up at each call, because code may have put another one in a buffer's place. Each step calls it twice: keep it quick."""
    if are_saved:
        network.require_settled()
    rows = []
    for name, owner, last, is_saved in network.frozen + network.buffers:
        if is_saved != are_saved:
            continue
        tensor = getattr(owner, last, None)
        if not isinstance(tensor, torch.Tensor):
            raise Fault(f"{type(network.module).__name__} removed {name}, which it had when it was built")
        if is_saved and tensor.layout != torch.strided:
            raise Fault(f"{type(network.module).__name__} keeps {name} as {tensor.layout}, which checkpoints do not support: register it with persistent=False")
        if tensor.layout == torch.strided and not tensor.is_contiguous() and overlaps_itself(tensor):
            tensor = tensor.detach().contiguous()
            if last in owner._buffers:
                owner._buffers[last] = tensor
            else:
                getattr(owner, last).data = tensor
        rows.append([name, tensor.detach()])
    return rows


def overlaps_itself(tensor):
    """Tells whether elements share memory, as in what expand() returns. Such a tensor cannot be written, so it cannot be restored."""
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride()))


def unlike_parameters(network, tensors):
    """What forward did to the first parameter that is no longer one of `tensors`, those of parameters_of(), or None."""
    now = dict(network.module.named_parameters())
    for (name, _, _), tensor in zip(network.trained, tensors):
        parameter = now.pop(name, None)
        if parameter is None or parameter.data_ptr() != tensor.data_ptr():
            return f"put another tensor in the place of {name}"
    frozen = {name for name, *_ in network.frozen}
    for name, parameter in now.items():
        if parameter.requires_grad:
            return f"set requires_grad of {name}, which the constructor froze," if name in frozen else f"added the parameter {name}"
    return None


def move_buffers(network, device):
    """Moves what Lockstep's flat buffers do not hold. A buffer of two modules stays one."""
    for _, owner, last, _ in network.frozen:
        parameter = getattr(owner, last)
        parameter.data = parameter.data.to(device)
    moved = {id(tensor): (tensor, tensor.to(device)) for tensor in network.module.buffers()}
    for module in network.module.modules():
        for name, tensor in module._buffers.items():
            if tensor is not None:
                module._buffers[name] = moved[id(tensor)][1]


def begin_forward(seed):
    """Before a forward pass of training: random and numpy.random, which C++ does not reach."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def set_training(network, training):
    network.module.train(training)


def forward(network, inputs):
    model = network.module
    outputs = model(inputs)
    if isinstance(outputs, (tuple, list)) and outputs and isinstance(outputs[0], torch.Tensor):
        outputs = outputs[0]  # (logits, loss), as many networks return
    if not isinstance(outputs, torch.Tensor):
        raise Fault(f"{type(model).__name__}.forward returns {type(outputs).__name__}, not a tensor")
    return outputs


def own_loss(network, inputs, targets):
    """The module's loss, a mean over the samples: what forward(inputs, targets) returns, or the last of what it does."""
    model = network.module
    loss = model(inputs, targets)
    if isinstance(loss, (tuple, list)) and loss:
        loss = loss[-1]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        given = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise Fault(f"{type(model).__name__}.forward(inputs, targets) must return its loss, one number as a tensor "
                    f"(or a tuple whose last is that), not {given}")
    return loss.reshape(())
