"""Networks: torch.nn.Module of the user's."""
import json
import random
import sys

from .faults import Fault, make
from .torch_import import torch


def seed_all(seed):
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def make_model(path, name, args, seed, input_shape, is_tokens):
    """The network, built from `seed` alone, so that all ranks build the same."""
    seed_all(seed)
    model = make(path, name, json.loads(args), "model")
    if not isinstance(model, torch.nn.Module):
        raise Fault(f"{path}: {name}(...) gives {type(model).__name__}, not a torch.nn.Module")
    build_lazy_parameters(model, input_shape, is_tokens)
    model.train()
    return model


def build_lazy_parameters(model, input_shape, is_tokens):
    lazy = torch.nn.parameter.UninitializedTensorMixin
    if not any(isinstance(p, lazy) for p in [*model.parameters(), *model.buffers()]):
        return
    model.eval()
    with torch.no_grad():
        model(torch.zeros([2, *input_shape], dtype=torch.int64 if is_tokens else torch.float32))


def owner_of(model, parameter_name):
    return model.get_submodule(parameter_name.rpartition(".")[0])


def parameters_of(model):
    """[name, tensor, class of its module] of each that is trained, in the module's order; tied ones once."""
    return [[name, parameter, type(owner_of(model, name)).__name__] for name, parameter in model.named_parameters()
            if parameter.requires_grad]


def buffers_of(model):
    """[name, tensor, whether forward moves it] of all that a save must hold beside the trained parameters. Looked up anew at each call: code
    may have put another tensor in a buffer's place."""
    kept = set(model.state_dict().keys())
    rows = [[name, p.detach(), False] for name, p in model.named_parameters() if not p.requires_grad]
    return rows + [[name, tensor, True] for name, tensor in model.named_buffers() if name in kept]


def unlike_parameters(model, tensors):
    """The name of the first parameter that is no longer one of `tensors`, or None."""
    now = [p for _, p in model.named_parameters() if p.requires_grad]
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    if len(now) != len(tensors):
        return "the number of parameters"
    for name, a, b in zip(names, now, tensors):
        if a.data_ptr() != b.data_ptr():
            return name
    return None


def move_buffers(model, device):
    for module in model.modules():
        for name, tensor in module._buffers.items():
            if tensor is not None:
                module._buffers[name] = tensor.to(device)


def set_training(model, training):
    model.train(training)


def forward(model, inputs):
    outputs = model(inputs)
    if isinstance(outputs, (tuple, list)) and outputs and isinstance(outputs[0], torch.Tensor):
        outputs = outputs[0]  # (logits, loss), as many networks return
    if not isinstance(outputs, torch.Tensor):
        raise Fault(f"{type(model).__name__}.forward returns {type(outputs).__name__}, not a tensor")
    return outputs


def own_loss(model, inputs, targets):
    """The module's loss, a mean over the samples: what forward(inputs, targets) returns, or the last of what it does."""
    loss = model(inputs, targets)
    if isinstance(loss, (tuple, list)) and loss:
        loss = loss[-1]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise Fault(f"{type(model).__name__}.forward(inputs, targets) must return its loss, one number as a tensor "
                    f"(or a tuple whose last is that), not {type(loss).__name__}")
    return loss.reshape(())
