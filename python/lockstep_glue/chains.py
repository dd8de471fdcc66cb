"""Networks whose layers follow each other, described for exports that write layer by layer."""
import torch
from torch import fx, nn
from torch.nn import functional as F

# Without tensors: what is called, by the words of model/network.h; "" changes nothing in evaluation.
CALLS = {nn.ReLU: "relu", torch.relu: "relu", F.relu: "relu", "relu": "relu", nn.Tanh: "tanh", torch.tanh: "tanh", F.tanh: "tanh", "tanh": "tanh",
         nn.GELU: "gelu", F.gelu: "gelu", nn.Flatten: "flatten", torch.flatten: "flatten", "flatten": "flatten", nn.MaxPool2d: "max_pool2d",
         F.max_pool2d: "max_pool2d", nn.AdaptiveAvgPool2d: "global_average_pool", F.adaptive_avg_pool2d: "global_average_pool",
         nn.Dropout: "", nn.Dropout2d: "", nn.Dropout3d: "", nn.Identity: "", F.dropout: "dropout"}
# Arguments that are described, and what others must be.
WANTED = {"gelu": {"approximate": "none"}, "flatten": {"start_dim": 1, "end_dim": -1}, "global_average_pool": {"output_size": 1},
          "max_pool2d": {"padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}, "dropout": {"training": False}}
DEFAULTS = {"start_dim": 0, "training": True}  # of functions, where these are not as wanted
POSITIONS = {"flatten": ["start_dim", "end_dim"], "global_average_pool": ["output_size"], "dropout": ["p", "training"],
             "max_pool2d": ["kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"]}


class NoChain(Exception):
    pass


def one(value, what):
    """The number of (3, 3)."""
    numbers = set(value) if isinstance(value, (tuple, list)) else {value}
    if len(numbers) != 1 or not isinstance(number := numbers.pop(), int):
        raise NoChain(f"{what} is {value}")
    return number


def described_call(kind, arguments, what):
    for name, wanted in WANTED.get(kind, {}).items():
        given = arguments.get(name, DEFAULTS.get(name, wanted))
        if wanted != (given if isinstance(wanted, (str, bool)) else one(given, f"{name} of {what}")):
            raise NoChain(f"{name} of {what} is {given}")
    if kind != "max_pool2d":
        return {"kind": "" if kind == "dropout" else kind}
    extent = one(arguments["kernel_size"], f"kernel_size of {what}")
    return {"kind": kind, "kernel_extent": extent, "stride": one(arguments.get("stride") or extent, f"stride of {what}")}


def described_module(layer, name):
    """A layer with tensors, or one of CALLS."""
    what = f"{type(layer).__name__} {name}"
    if type(layer) is nn.Linear:
        return {"kind": "linear", "name": name, "has_bias": layer.bias is not None}
    if type(layer) is nn.Conv2d:
        if layer.padding_mode != "zeros" or one(layer.dilation, f"dilation of {what}") != 1:
            raise NoChain(f"{what} has another dilation or padding_mode")
        extents = {word: one(getattr(layer, key), f"{key} of {what}")
                   for word, key in (("kernel_extent", "kernel_size"), ("stride", "stride"), ("padding", "padding"))}
        return {"kind": "conv2d", "name": name, "has_bias": layer.bias is not None, "groups": layer.groups, **extents}
    if type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d) and layer.affine and layer.track_running_stats:
        return {"kind": "batch_norm", "name": name, "epsilon": layer.eps}
    if type(layer) not in CALLS:
        raise NoChain(f"{what} has no description")
    return described_call(CALLS[type(layer)], vars(layer), what)


def described(node, before, module):
    if list(node.all_input_nodes) != [before] or not node.args or node.args[0] is not before:
        raise NoChain(f"{node.name} takes {', '.join(each.name for each in node.all_input_nodes) or 'nothing'}, not the output before it")
    if node.op == "call_module":
        return described_module(module.get_submodule(node.target), node.target)
    if node.op not in ("call_function", "call_method") or node.target not in CALLS:
        raise NoChain(f"{node.name} has no description")
    kind = CALLS[node.target]
    return described_call(kind, {**dict(zip(POSITIONS.get(kind, []), node.args[1:])), **node.kwargs}, node.name)


def chain_of(network, num_dims):
    """Lists the layers as {kind, name, ...}; or tells why this is no such network. num_dims: of a batch of inputs."""
    module = network.module
    names = {name for name, _ in [*module.named_parameters(), *module.named_buffers()]}
    try:
        graph = fx.symbolic_trace(module).graph
        first, *nodes, last = (node for node in graph.nodes if node.users or node.op != "placeholder")
        layers = [described(node, before, module) for node, before in zip(nodes, [first, *nodes])]
        if first.op != "placeholder" or last.args != ([first, *nodes][-1],):
            raise NoChain("forward does not return the output of its last layer alone")
        tied = [layer["name"] for layer in layers if "name" in layer and f"{layer['name']}.weight" not in names]
        if tied:
            raise NoChain(f"the weight of {tied[0]} is another layer's")
        for layer in layers:  # a linear layer, and who reads the outputs, take [B, I] alone
            num_dims = 2 if layer["kind"] == "flatten" else num_dims
            if layer["kind"] == "linear" and num_dims != 2:
                raise NoChain(f"the linear layer {layer['name']} gets inputs of {num_dims} dimensions")
        if num_dims != 2:
            raise NoChain(f"its outputs have {num_dims} dimensions")
        return [layer for layer in layers if layer["kind"]]
    except NoChain as reason:
        return str(reason)
    except Exception as fault:  # fx raises all kinds where forward asks for values
        return f"torch.fx cannot trace its forward: {fault}"
