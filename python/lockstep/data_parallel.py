"""Data-parallel training in a loop of one's own: `model = lockstep.DataParallel(model, optimizer, recipe="recipe.yaml")`. backward() ends with mean
gradients on all ranks, optimizer.step() ends a step of the recipe. Nothing of torch is replaced: the optimizer's own hooks frame its step."""
import contextlib
import functools
import os
import pathlib
import sys
import weakref

import torch
from torch.utils import _pytree

from . import process_group as backend
from .build_facts import VERSION
from .calls import call
from .launch import connect
from .layers import class_of_layer, layers_of, norms_of, release_gradients, round_layers, write_gradients
from .optimizers import Optimizers, keeps_zeros
from .programs import Error

DIVISIONS = {"shards": 1, "shared": 2}  # of loop_attach
WRAPPED = weakref.WeakSet()  # modules of DataParallel objects that are not closed


class Places:
    """The places of a module where its parameters were when it was wrapped."""

    def __init__(self, module):
        self.tables = [(name, layer._parameters, dict(layer._parameters)) for name, layer in module.named_modules()]
        self.trained = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}

    def require_unchanged(self):
        """Refuses a parameter that was added, removed, replaced, or newly requires a gradient."""
        for layer, table, before in self.tables:
            if len(table) != len(before):
                raise Error(f"[pytorch] the parameters of {layer or 'the module'} are {', '.join(table) or 'none'}, {len(before)} when "
                            "lockstep.DataParallel wrapped it: add and remove parameters before")
            for key, parameter in table.items():
                if parameter is not before.get(key):
                    raise Error(f"[pytorch] {f'{layer}.{key}'.lstrip('.')} is another tensor than when lockstep.DataParallel wrapped the module: "
                                "load weights by load_state_dict() without assign=True")
                if parameter is not None and parameter.requires_grad and id(parameter) not in self.trained:
                    raise Error(f"[pytorch] {f'{layer}.{key}'.lstrip('.')} requires a gradient, and did not when lockstep.DataParallel wrapped the "
                                "module: wrap it with all parameters trained, and freeze some by the recipe's TrainableParamsModifier")


class DataParallel(torch.nn.Module):
    """A module whose gradients the ranks average, with masks, rates and freezing of a recipe. docs/loop.md has a table of the arguments.

    module: on the CPU, with all parameters built; rank 0's values are taken. optimizer: of torch.optim, or a list, the first of which ends a step.
    steps_per_epoch: a number or a loader, for recipes of epochs; default: the sampler's. process_group: default: all ranks, of torch.distributed or
    of the launcher. bucket_bytes: gradients per message. timeout: longest wait for a rank, in seconds. sampler: a lockstep.DistributedSampler, whose
    position checkpoints hold, and whose uneven last batches get the weight of their samples. engine_update: the engine makes the updates of SGD,
    Adam and AdamW; None: where it can. "shards": each rank updates a part, and `grad` is undefined after backward. "shared": also one copy of the
    weights for all ranks; no rank may write weights alone. metrics_address: host:port of the pages of a host's first rank.

    Errors are lockstep.Error, raised at the line that caused them; those within backward() are RuntimeError.
    """

    def __init__(self, module, optimizer, recipe=None, *, steps_per_epoch=None, sampler=None, process_group=None, broadcast_buffers=True,
                 bucket_bytes=4 << 20, timeout=300.0, engine_update=None, metrics_address=None):
        super().__init__()
        backend.load()
        optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        require_types(module, optimizers)
        self.module, self.optimizer, self.sampler, self.broadcast_buffers = module, optimizer, sampler, broadcast_buffers
        self.optimizers = Optimizers(optimizers, module)
        self._syncs = True
        self._places = Places(module)
        if steps_per_epoch is None:
            steps_per_epoch = 0 if sampler is None else sampler.batches_per_epoch
        elif not isinstance(steps_per_epoch, int):
            steps_per_epoch = len(steps_per_epoch)
        self.loop, self.rank = connect(process_group, timeout)
        self._close = weakref.finalize(self, end_loop, self.loop, weakref.ref(module))
        self._attach(str(recipe or ""), steps_per_epoch, bucket_bytes, float(timeout), engine_update)
        WRAPPED.add(module)
        if sampler is not None:
            sampler.follow(self.loop)
        self.metrics_address = None
        metrics_address = metrics_address or os.environ.get("LOCKSTEP_METRICS_LISTEN", "off")
        if metrics_address != "off":
            facts = [pathlib.Path(sys.argv[0]).stem or "python", type(module).__name__, VERSION, torch.__version__]
            self.metrics_address = call("loop_serve", self.loop, metrics_address, os.environ.get("LOCKSTEP_METRICS_TOKEN_FILE", ""), facts,
                                        sum(parameter.numel() for parameter in module.parameters()), steps_per_epoch)
            self.optimizers.num_samples = 0

    def _attach(self, recipe, steps_per_epoch, bucket_bytes, timeout, engine_update):
        """Gives the loop its module, optimizers and recipe."""
        module, optimizers = self.module, self.optimizers
        trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        frozen = {plain_name(name): parameter for name, parameter in module.named_parameters() if not parameter.requires_grad}
        layers, norms = layers_of(module, optimizers.parameters), norms_of(module)
        rule = self._choose_rule(engine_update)
        call("loop_attach", self.loop, optimizers.parameters, [plain_name(name) for name in trained], [class_of_layer(module, name) for name in trained],
             list(frozen), [plain_name(name) for name, _, _ in layers], [weight for _, _, weight in layers], bool(norms), recipe, steps_per_epoch,
             float(optimizers.param_groups[0].get("lr", 0)), optimizers.type, all(map(keeps_zeros, optimizers.all)), bucket_bytes, timeout, *rule,
             DIVISIONS.get(engine_update, 0))
        call("loop_broadcast", self.loop, [*frozen.values(), *module.buffers()])
        optimizers.attach(self.loop, rule)
        quantizes = bool(call("loop_facts", self.loop)[4])
        self._norms = norms if quantizes else []
        if quantizes:  # a graph of torch.compile would contain the values of the first call
            round_layers(layers, functools.partial(torch._disable_dynamo(call), "loop_quantize", self.loop))
        else:
            write_gradients(layers, self.loop)

    def _choose_rule(self, wanted):
        """(type, numbers) of the engine's rule, ("", []) for the optimizer's own updates."""
        if wanted is False:
            return "", []
        kind, rest = self.optimizers.engine_rule()
        if kind and not {id(p) for p in self.optimizers.param_groups[0]["params"]}.issuperset(map(id, self.optimizers.parameters)):
            kind, rest = "", "the optimizer has not all trained parameters"
        if kind and self.optimizers.all[0].state:
            kind, rest = "", "the optimizer has state already"
        if not kind and wanted is not None:
            raise Error(f"[pytorch] engine_update={wanted!r} is not possible: {rest}")
        return (kind, rest) if kind else ("", [])

    def forward(self, *args, **kwargs):
        # A forward pass within backward, as of torch.utils.checkpoint, belongs to the pass that began.
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return self.module(*args, **kwargs)
        weight = self._begin(args, kwargs)
        outputs = self.module(*args, **kwargs)
        return outputs if weight is None else weighted(outputs, weight)

    @torch._disable_dynamo  # torch.compiler.disable() would cost an import of a second
    def _begin(self, args, kwargs):
        """Begins a pass that records gradients. Returns the weight of this rank's samples if it is not 1."""
        self._places.require_unchanged()
        if self.broadcast_buffers and self._syncs and self.training:
            call("loop_broadcast", self.loop, list(self.module.buffers()))
        self.optimizers.follow(*call("loop_begin_step", self.loop, self._syncs))
        self.optimizers.has_begun = False
        if self.optimizers.num_samples is not None:
            self.optimizers.num_samples += leading_size(args, kwargs) or 0
        if self._norms and call("loop_facts", self.loop)[5]:
            for norm in self._norms:
                norm.eval()
        if self.sampler is None or not self.training:
            return None
        weight = self.sampler.weight_of_next(leading_size(args, kwargs))
        return None if weight == 1 else weight

    @contextlib.contextmanager
    def no_sync(self):
        """Forward and backward passes inside add to this rank's gradients; the next ones outside average the sum."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def finish(self):
        """Applies what the recipe wants after the last step, such as a final sparsity. Weights then contain exact zeros."""
        self.optimizers.follow(*call("loop_finalize", self.loop))

    @property
    def step(self):
        """The number of updates done."""
        return self.optimizers.step

    @property
    def sparsity(self):
        """The pruned fraction of all prunable weights."""
        return call("loop_facts", self.loop)[1]

    def close(self):
        """Ends the connection of the ranks; the module stays usable."""
        for handle in self.optimizers.handles:
            handle.remove()
        if self.sampler is not None:
            self.sampler.follow(None)
        self._close()


def weighted(outputs, weight):
    """Outputs whose gradients count `weight` times in the mean over ranks. Losses that depend on weights alone are not touched."""
    def one(value):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            value = value.view_as(value)  # another one than a parameter that forward returns
            value.register_hook(lambda grad: grad * weight)
        return value
    return _pytree.tree_map(one, outputs)


def leading_size(args, kwargs):
    """The first dimension of the first tensor among the arguments of forward, also inside dicts and lists; None without any."""
    return next((leaf.shape[0] for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0), None)


def plain_name(name):
    """A parameter's name without the part that torch.compile(module) adds, so that recipes and checkpoints fit both."""
    return name.replace("_orig_mod.", "")


def end_loop(loop, module):
    call("loop_close", loop)
    if module() is not None:
        WRAPPED.discard(module())
        release_gradients(module())


def require_types(module, optimizers):
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"lockstep.DataParallel wraps a torch.nn.Module, not {type(module).__name__}")
    for optimizer in optimizers or [None]:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"lockstep.DataParallel takes an optimizer of torch.optim or a list of them, not {type(optimizer).__name__}")
    lazy = torch.nn.parameter.UninitializedTensorMixin
    unbuilt = [name for name, parameter in module.named_parameters() if isinstance(parameter, lazy)]
    if unbuilt:
        raise Error(f"[pytorch] {', '.join(unbuilt)} is not built yet: run one forward pass before lockstep.DataParallel")
    if any(part in WRAPPED for part in module.modules()):
        raise Error("[pytorch] the module or a part of it is wrapped by lockstep.DataParallel already: close() that one first")
