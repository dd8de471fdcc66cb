"""Networks: torch.nn.Module of the user's."""
import inspect
import json
import operator
import random
import sys

from .batches import IGNORED, TARGETS, named_parts
from .faults import Fault, make
from .layers import class_of_layer, layers_of, norms_of, round_layers
from .torch_import import torch


def seed_all(seed):
    torch.manual_seed(seed)
    begin_forward(seed)


class Network:
    """A module of the user's, and what of it is trained, saved, watched: settled once, as Lockstep freezes parameters by `requires_grad` later."""

    def __init__(self, module, example):
        self.module = module
        self.example = example  # tensors and keywords of two samples; empty if they are (input, target)
        self.tried = set()  # keywords, with which forward has been called
        self.trained = [[name, parameter, class_of_layer(module, name)] for name, parameter in module.named_parameters() if parameter.requires_grad]
        self.layers = layers_of(module, [parameter for _, parameter, _ in self.trained])  # those that can be quantized
        self.frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
        saved = {*self.frozen, *module.state_dict()}
        # Frozen parameters and buffers: which module has each, under which name, and whether saves hold it.
        self.others = [(name, module.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], name in saved)
                       for name in [*self.frozen, *(name for name, _ in module.named_buffers())]]
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
        known = {name for name, *_ in self.others}
        late = [name for name, _ in self.module.named_buffers() if name not in known]
        raise Fault(f"{type(self.module).__name__} registers {', '.join(late) or 'a buffer'} in forward, or fills it there from None: "
                    "register it in the constructor with its shape and type")


def make_model(path, name, args, seed, input_shape, is_tokens, example):
    """The network, built from `seed` alone, so that all ranks build the same."""
    seed_all(seed)
    module = make(path, name, json.loads(args), "model")
    if not isinstance(module, torch.nn.Module):
        raise Fault(f"{path}: {name}(...) returns {type(module).__name__}, not a torch.nn.Module")
    lazy = torch.nn.parameter.UninitializedTensorMixin
    if any(isinstance(p, lazy) for p in [*module.parameters(), *module.buffers()]):
        zeros = torch.zeros([2, *input_shape], dtype=torch.int64 if is_tokens else torch.float32)
        build_lazy_parameters(module, *(example if example[0] else ([zeros], [])))
    module.train()
    return Network(module, example)


def build_lazy_parameters(module, tensors, names):
    """By a dry pass, with the targets only if forward takes them."""
    needed, taken, takes_any = keywords_of(module)
    module.eval()
    with torch.no_grad():
        if names:
            require_keywords(module, [name for name in names if name not in TARGETS or name in taken])
            module(**{name: tensor for name, tensor in zip(names, tensors) if name in taken or takes_any})
        else:
            module(*tensors[:max(1, len(needed), len(tensors) - 1)])


# [name, tensor, class of its layer] of each parameter that is trained, in the module's order; tied ones once.
parameters_of = operator.attrgetter("trained")
# Names of the parameters that the constructor froze; buffers_of() has their tensors.
frozen_parameters_of = operator.attrgetter("frozen")


def buffers_of(network, are_saved):
    """Lists [name, tensor] of the others that saves hold, or of those that they do not: frozen parameters and buffers. The names are settled.
    Tensors are looked up at each call, because code may have put another one in a buffer's place. Each step calls it twice: keep it quick."""
    if are_saved:
        network.require_settled()
    rows = []
    for name, owner, last, is_saved in network.others:
        if is_saved != are_saved:
            continue
        tensor = getattr(owner, last, None)
        if not isinstance(tensor, torch.Tensor):
            raise Fault(f"{type(network.module).__name__} removed {name}, which it had when it was built")
        if is_saved and tensor.layout != torch.strided:
            raise Fault(f"{type(network.module).__name__} keeps {name} as {tensor.layout}, which checkpoints do not support: register it with persistent=False")
        # Elements that share memory, as in what expand() returns, cannot be written, so they cannot be restored.
        if tensor.layout == torch.strided and not tensor.is_contiguous() and 0 in (n for n, size in zip(tensor.stride(), tensor.shape) if size > 1):
            tensor = tensor.detach().contiguous()
            if last in owner._buffers:
                owner._buffers[last] = tensor
            else:
                getattr(owner, last).data = tensor
        rows.append([name, tensor.detach()])
    return rows


def unlike_parameters(network, tensors):
    """What forward did to the first parameter that is no longer one of `tensors`, those of parameters_of(), or None."""
    now = dict(network.module.named_parameters())
    for (name, _, _), tensor in zip(network.trained, tensors):
        parameter = now.pop(name, None)
        if parameter is None or parameter.data_ptr() != tensor.data_ptr():
            return f"put another tensor in the place of {name}"
    for name, parameter in now.items():
        if parameter.requires_grad:
            return f"set requires_grad of {name}, which the constructor froze," if name in network.frozen else f"added the parameter {name}"
    return None


def move_buffers(network, device):
    """Moves what Lockstep's flat buffers do not hold. A buffer of two modules stays one."""
    for name in network.frozen:
        parameter = network.module.get_parameter(name)
        parameter.data = parameter.data.to(device)
    moved = {tensor: tensor.to(device) for tensor in network.module.buffers()}
    for module in network.module.modules():
        for name, tensor in module._buffers.items():
            if tensor is not None:
                module._buffers[name] = moved[tensor]


def begin_forward(seed):
    """Before a forward pass of training: random and numpy.random, which C++ does not reach."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def quantizable_layers(network):
    """[name, index of its weight among the trained parameters, whether the network has batch normalisation] of each layer that can be quantized."""
    has_norm = bool(norms_of(network.module))
    return [[name, weight, has_norm] for name, _, weight in network.layers]


def quantize_layers(network, quantize):
    """Each layer passes its input and its weight to quantize(number of the layer, whether it is the weight, values)."""
    round_layers(network.layers, quantize)


def freeze_norms(network):
    """Batch normalisation goes by its moving statistics, and keeps them, until the network's train()."""
    for norm in norms_of(network.module):
        norm.eval()


def set_training(network, training):
    network.module.train(training)


def pass_batch(network, tensors, names):
    """What forward returns for a batch."""
    if not names:
        return network.module(*tensors)
    key = frozenset(names)
    if key not in network.tried:
        require_keywords(network.module, names)
    try:
        outputs = network.module(**dict(zip(names, tensors)))
    except Exception as fault:
        if key not in network.tried:  # a keyword with a default may be needed all the same
            fault.lockstep_hint = f" ({lists_of(network.module, names)})"
        raise
    network.tried.add(key)
    return outputs


def keywords_of(module):
    """Keywords that forward needs, all that it takes, and whether it takes any."""
    parameters = inspect.signature(module.forward).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return [p.name for p in named if p.default is p.empty], [p.name for p in named], any(p.kind == p.VAR_KEYWORD for p in parameters)


def lists_of(module, names):
    needed, taken, takes_any = keywords_of(module)
    return (f"keywords that forward needs: {', '.join(needed) or 'none'}; that it takes: {', '.join(taken)}{', others' if takes_any else ''}; "
            f"keys of the batch: {', '.join(names)}")


def require_keywords(module, names):
    """Refuses a batch that lacks what forward needs, or has what it does not take."""
    needed, taken, takes_any = keywords_of(module)
    lacking = [name for name in needed if name not in names]
    unknown = [] if takes_any else [name for name in names if name not in taken]
    if lacking or unknown:
        wrong = f"needs {', '.join(lacking)}, which the batch lacks" if lacking else f"does not take {', '.join(unknown)} of the batch"
        advice = (f"the keyword of the targets ({', '.join(TARGETS)}) is passed with `train.loss: own` only" if lacking
                  else "leave it out, in a collate_fn for instance")
        raise Fault(f"{type(module).__name__}.forward {wrong}; {lists_of(module, names)}; {advice}")


def outputs_of(returned):
    """The outputs among what forward returned, or None: the tensor, `logits`, or the first tensor that is not the loss."""
    parts = named_parts(returned)
    if parts is not None:
        candidates = [parts.get("logits"), *(part for name, part in parts.items() if name != "loss")]
    else:
        candidates = returned[:1] if isinstance(returned, (tuple, list)) else [returned]  # (logits, loss), as many networks return
    return next((one for one in candidates if isinstance(one, torch.Tensor)), None)


def loss_of(returned):
    """The loss among what forward returned, or None: the tensor, `loss`, the last of a tuple, or its first (as of transformers)."""
    parts = named_parts(returned)
    if parts is not None:
        candidates = [parts.get("loss")]
    else:
        candidates = [returned[-1], returned[0]] if isinstance(returned, (tuple, list)) and returned else [returned]
    return next((one.reshape(()) for one in candidates if isinstance(one, torch.Tensor) and one.numel() == 1), None)


def forward(network, batch):
    returned = pass_batch(network, *batch)
    outputs = outputs_of(returned)
    if outputs is None:
        raise Fault(f"{type(network.module).__name__}.forward returns {type(returned).__name__}, not a tensor")
    return outputs


def own_loss(network, batch):
    """[the module's loss, a mean over the targets that count, its outputs or None]: what forward returns for inputs and targets."""
    returned = pass_batch(network, *batch)
    loss = loss_of(returned)
    kind, names = type(network.module).__name__, batch[1]
    if loss is None:
        if names:
            raise Fault(f"{kind}.forward returns no loss; {lists_of(network.module, names)}")
        given = f"a tensor of shape {list(returned.shape)}" if isinstance(returned, torch.Tensor) else type(returned).__name__
        raise Fault(f"{kind}.forward(inputs, targets) must return its loss, one number as a tensor (or a tuple whose last is that), not {given}")
    # Outputs of pairs are those of forward(inputs).
    outputs = outputs_of(returned) if names else None
    return [loss, outputs if outputs is not returned else None]


def num_unused_targets(network):
    """1 if the first target of each row counts in no loss, as in language models that shift their targets; else 0. Asks the network: its
    mean over no targets is NaN."""
    tensors, names = network.example
    target = next((names.index(name) for name in TARGETS if name in names), None)
    if target is None or tensors[target].is_floating_point() or tensors[target].dim() < 2 or tensors[target].shape[1] < 2:
        return 0
    labels = tensors[target]
    counted = labels[labels != IGNORED]
    first = torch.full_like(labels, IGNORED)
    first[:, 0] = counted[0] if counted.numel() else 0
    network.module.eval()
    try:
        with torch.no_grad():
            loss = loss_of(pass_batch(network, [*tensors[:target], first, *tensors[target + 1:]], names))
        return int(loss is not None and (not bool(torch.isfinite(loss)) or float(loss) == 0.0))
    except Exception:
        return 0  # raised again by the first pass of training
    finally:
        network.module.train()
