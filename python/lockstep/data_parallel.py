"""Data-parallel training in a loop of one's own: `model = lockstep.DataParallel(model, optimizer, recipe="recipe.yaml")`.

The loop stays as it is: zero_grad(), forward, backward(), optimizer.step(). backward() ends with mean gradients on all ranks.
optimizer.step() ends a step of the recipe. Nothing of torch is replaced: the optimizer's own hooks frame its step.
"""
import contextlib
import datetime
import functools
import math
import os
import weakref

import torch
from torch import distributed

from . import process_group as backend
from .engine_update import EngineUpdate, rule_of
from .large_layers import write_gradients
from .launch import connect_ranks
from .optimizers import Optimizers, joined
from .pages import Pages
from .programs import EXIT_CONFIG, Error
from .quantized_layers import layers_of, norms_of, round_layers
from .sampler import no_passes

# Operators are looked up once: an access of torch.ops costs more than some of these calls.
OPERATORS = {}

# Classes whose update leaves a weight at 0 that has no gradient and no moments, whatever their options are.
KEEP_ZEROS = {"SGD", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "NAdam", "RAdam", "RMSprop"}
MOMENTA = ("momentum_buffer", "exp_avg")  # names of momentum in the state of torch.optim
GROUP_NAMES = ("weights", "other")
DIVISIONS = {"shards": 1, "shared": 2}  # of loop_attach
NO_CHANGES = ([], [])
WRAPPED = weakref.WeakSet()  # modules of DataParallel objects that are not closed


def call(operator, *arguments):
    """Calls an operator of the library; its errors become lockstep.Error without the C++ stack."""
    function = OPERATORS.get(operator)
    if function is None:
        function = OPERATORS[operator] = getattr(torch.ops.lockstep, operator).default
    try:
        return function(*arguments)
    except RuntimeError as fault:
        text, code = torch.ops.lockstep.loop_error.default()
        if text and text in str(fault):
            raise Error(text, code) from None
        raise


def layer_class(module, name):
    """The class of the layer that holds a parameter; of a parametrization, the layer whose weight it makes."""
    layer, is_parametrized, _ = f".{name}".partition(".parametrizations.")
    owner = layer[1:] if is_parametrized else name.rpartition(".")[0]
    return type(module.get_submodule(owner)).__name__


def steps_of(value, sampler):
    """A number of steps per epoch, or the length of a loader; for None the sampler's, 0 without one."""
    if value is None:
        return 0 if sampler is None else sampler.batches_per_epoch
    return value if isinstance(value, int) else len(value)


class Places:
    """The places of a module where its parameters were when it was wrapped."""

    def __init__(self, module):
        self.tables = [(prefix, owner._parameters, len(owner._parameters)) for prefix, owner in module.named_modules()]
        self.places = [(f"{prefix}.{key}" if prefix else key, table, key, parameter)
                       for prefix, table, _ in self.tables for key, parameter in table.items() if parameter is not None]

    def require_unchanged(self, trained):
        """Refuses a parameter that was added, replaced, or newly requires a gradient. trained: identities of trained parameters."""
        for prefix, table, number in self.tables:
            if len(table) != number:
                raise Error(f"[pytorch] the parameters of {prefix or 'the module'} are {', '.join(table) or 'none'}, {number} when "
                            "lockstep.DataParallel wrapped it: add and remove parameters before", EXIT_CONFIG)
        for name, table, key, parameter in self.places:
            now = table.get(key)
            if now is not parameter:
                raise Error(f"[pytorch] {name} is another tensor than when lockstep.DataParallel wrapped the module: load weights by "
                            "load_state_dict() without assign=True", EXIT_CONFIG)
            if now.requires_grad and id(now) not in trained:
                raise Error(f"[pytorch] {name} requires a gradient, and did not when lockstep.DataParallel wrapped the module: wrap it "
                            "with all parameters trained, and freeze some by the recipe's TrainableParamsModifier", EXIT_CONFIG)


class OptimizerHooks:
    """A torch.optim optimizer or several, their rates and their state, as a recipe changes them.

    A rate that the recipe sets is written before each update. A loop that writes it too, as a scheduler does, is refused. The first
    optimizer's step ends that of the recipe.
    """

    def __init__(self, optimizer, parameters, loop):
        self.optimizer, self.parameters, self.loop = optimizer, parameters, loop
        self.group_of = {}  # parameter group of the recipe by identity
        self.written = {}  # rates of the last update, by position and key
        self.step, self.is_paused = 0, False
        self.sizes = self.sizes_now()
        self.engine = self.pages = None  # the engine's own updates; pages of metrics
        self.has_begun = False  # an optimizer has begun the update of the last forward pass
        self.all = optimizer.all if isinstance(optimizer, Optimizers) else [optimizer]
        self.handles = [handle for one in self.all
                        for handle in (one.register_step_pre_hook(self.before), one.register_step_post_hook(self.after))]

    def attach(self, uses_engine):
        groups = call("loop_groups", self.loop)
        if uses_engine:
            self.engine = EngineUpdate(self.optimizer, self.loop, self.parameters, groups, call)
        self.group_of = {id(parameter): group for parameter, group in zip(self.parameters, groups)}

    def remove(self):
        for handle in self.handles:
            handle.remove()
        if self.engine is not None:
            self.engine.remove()

    def before(self, optimizer, _args, _kwargs):
        # After the first one's step, the others complete the same update.
        if self.is_paused or (self.has_begun and optimizer is not self.all[0]):
            return
        self.has_begun = True
        if self.sizes_now() != self.sizes:
            raise Error("[pytorch] the optimizer's parameter groups have changed since lockstep.DataParallel wrapped the module: build them before",
                        EXIT_CONFIG)
        rates = call("loop_begin_update", self.loop)
        if rates:
            self.write("lr", rates[:2])
            self.write("weight_decay", rates[2:])
        if self.engine is not None:
            self.engine.update()

    def after(self, optimizer, _args, _kwargs):
        if self.is_paused:
            return
        if optimizer is not self.all[0]:
            return self.enforce_masks(optimizer)
        self.step = call("loop_end_update", self.loop)
        if self.pages is not None:
            self.pages.record()

    def enforce_masks(self, optimizer):
        """Zeroes pruned weights that this optimizer may have moved; the end of the first one's step does so for all."""
        if keeps_zeros(optimizer):
            return
        ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for index, parameter in enumerate(self.parameters):
            if id(parameter) in ids:
                call("loop_zero_pruned", self.loop, index, [parameter.detach()])

    def sizes_now(self):
        return [len(group["params"]) for group in self.optimizer.param_groups]

    def write(self, key, rates):
        """rates: of the recipe's parameter groups, NaN where it sets none."""
        if all(math.isnan(rate) for rate in rates):
            return
        if key == "lr" and any(hasattr(one.step, "_wrapped_by_lr_sched") for one in self.all):
            raise Error("[pytorch] the recipe sets the learning rate, and a torch.optim.lr_scheduler does too: remove the scheduler, or the "
                        "recipe's learning rate modifiers", EXIT_CONFIG)
        for position, group in enumerate(self.optimizer.param_groups):
            if key not in group:
                continue
            rate = self.rate_for(position, group, key, rates)
            if rate is None or math.isnan(rate):
                continue
            self.require_unwritten(position, key, float(group[key]))
            if isinstance(group[key], torch.Tensor):
                group[key].fill_(rate)
            else:
                group[key] = rate
            self.written[position, key] = float(group[key])

    def rate_for(self, position, group, key, rates):
        """The recipe's rate for one of the optimizer's parameter groups; None for one without trained parameters."""
        wanted = {rates[self.group_of[id(parameter)]] for parameter in group["params"] if id(parameter) in self.group_of}
        if len(wanted) > 1:
            said = [f"{'none' if math.isnan(rate) else rate} for {name}" for rate, name in zip(rates, GROUP_NAMES)]
            raise Error(f"[pytorch] the recipe sets {key} {said[0]} and {said[1]}, and the optimizer's parameter group {position} holds both: "
                        "give the optimizer a group for each", EXIT_CONFIG)
        return wanted.pop() if wanted else None

    def require_unwritten(self, position, key, now):
        before = self.written.get((position, key), now)
        if now != before:
            raise Error(f"[pytorch] the recipe set {key} of parameter group {position} to {before}, and the loop to {now}: only one of them may",
                        EXIT_CONFIG)

    def follow(self, pruned, reset):
        """Zeroes the state of newly pruned weights, and the momentum that the recipe resets."""
        states = self.optimizer.state
        for index in pruned:
            parameter = self.parameters[index]
            slots = [slot for slot in states.get(parameter, {}).values()
                     if isinstance(slot, torch.Tensor) and slot.shape == parameter.shape and slot.is_floating_point()]
            call("loop_zero_pruned", self.loop, index, slots)
        for index in reset:
            state = states.get(self.parameters[index], {})
            for name in MOMENTA:
                if isinstance(state.get(name), torch.Tensor):
                    state[name].zero_()


class DataParallel(torch.nn.Module):
    """A module whose gradients the ranks average, with masks, rates and freezing of a recipe.

    module: on the CPU, with all parameters built; equal on all ranks, or rank 0's values are taken. optimizer: of torch.optim, over
    parameters of the module; or a list of such, the first of which ends a step. recipe: a file of docs/recipe.md. steps_per_epoch: a
    number, or the loader of training data; default: the sampler's. A recipe that counts epochs requires one of them. process_group:
    ranks; default: all, of torch.distributed if it was initialised, else those that torchrun, mpirun or srun started.
    broadcast_buffers: each averaged forward pass of training begins with rank 0's buffers, as in DistributedDataParallel.
    bucket_bytes: gradients per message. timeout: longest wait for a rank, in seconds. sampler: a lockstep.DistributedSampler, whose
    position checkpoints hold, and whose uneven last batches get the weight of their samples. It takes a batch per backward pass.

    engine_update: the engine makes the updates of SGD, Adam and AdamW, equal to torch's up to rounding; None: where it can. "shards": each rank
    updates a part and keeps its state, and `grad` is undefined after backward. "shared": also one copy of the weights for all ranks,
    the fastest; only for loops in which no rank writes weights alone.

    metrics_address: host:port of the pages of a host's first rank, further ranks take the next ports; default: that of the variable
    LOCKSTEP_METRICS_LISTEN, without which there are none.

    Errors are lockstep.Error, raised at the line that caused them; those within backward() are RuntimeError.
    """

    def __init__(self, module, optimizer, recipe=None, *, steps_per_epoch=None, sampler=None, process_group=None, broadcast_buffers=True,
                 bucket_bytes=4 << 20, timeout=300.0, engine_update=None, metrics_address=None):
        super().__init__()
        backend.load()
        optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        require_types(module, optimizers)
        optimizer = joined(optimizers)
        require_unwrapped(module)
        self.module = module
        self.broadcast_buffers = broadcast_buffers
        self.optimizer, self.sampler = optimizer, sampler
        named = [(plain_name(name), parameter) for name, parameter in module.named_parameters()]
        trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        frozen = [(name, parameter) for name, parameter in named if not parameter.requires_grad]
        require_own_parameters(module, optimizer)
        self._syncs = True
        self._places = Places(module)
        self._trained = {id(parameter) for _, parameter in trained}
        self.loop, self.rank = connect(process_group, timeout)
        self._close = weakref.finalize(self, end_loop, self.loop, weakref.ref(module))
        layers = layers_of(module, [parameter for _, parameter in trained])
        rule = self._choose_rule(engine_update, [parameter for _, parameter in trained])
        call("loop_attach", self.loop, [parameter for _, parameter in trained], [name for name, _ in trained],
             [layer_class(module, name) for name, parameter in module.named_parameters() if parameter.requires_grad], [name for name, _ in frozen],
             [plain_name(name) for name, _, _ in layers], [weight for _, _, weight in layers], bool(norms_of(module)), str(recipe or ""),
             steps_of(steps_per_epoch, sampler), float(optimizer.param_groups[0].get("lr", 0)), type(optimizer).__name__,
             all(keeps_zeros(one) for one in optimizers), bucket_bytes, float(timeout), *rule,
             DIVISIONS.get(engine_update, 0))
        call("loop_broadcast", self.loop, [parameter for _, parameter in frozen] + self.buffers_now())
        WRAPPED.add(module)
        if sampler is not None:
            sampler.follow(functools.partial(call, "loop_passes", self.loop))
        self._hooks = OptimizerHooks(optimizer, [parameter for _, parameter in trained], self.loop)
        self._hooks.attach(bool(rule[0]))
        self._quantizes = bool(call("loop_facts", self.loop)[4])
        self._norms = norms_of(module) if self._quantizes else []
        if self._quantizes:
            round_layers(layers, quantizer_of(self.loop))
        self._large = [] if self._quantizes else write_gradients(layers, self.loop)
        metrics_address = metrics_address or os.environ.get("LOCKSTEP_METRICS_LISTEN", "off")
        if metrics_address != "off":
            self._hooks.pages = Pages(self, metrics_address, self._hooks.group_of, steps_of(steps_per_epoch, sampler), call)

    def _choose_rule(self, wanted, trained):
        """(type, numbers) of the engine's rule, ("", []) for the optimizer's own updates."""
        if wanted is False:
            return "", []
        rule = rule_of(self.optimizer)
        if not isinstance(rule, str):
            in_optimizer = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
            if len(self.optimizer.param_groups) > 1 or not all(id(parameter) in in_optimizer for parameter in trained):
                rule = "the optimizer has several parameter groups, or not all trained parameters"
            elif self.optimizer.state:
                rule = "the optimizer has state already"
        if not isinstance(rule, str):
            return rule
        if wanted is not None:
            raise Error(f"[pytorch] engine_update={wanted!r} is not possible: {rule}", EXIT_CONFIG)
        return "", []

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
        self._places.require_unchanged(self._trained)
        if self.broadcast_buffers and self._syncs and self.training:
            buffers = self.buffers_now()
            if buffers:
                call("loop_broadcast", self.loop, buffers)
        self._follow(call("loop_begin_step", self.loop, self._syncs))
        self._hooks.has_begun = False
        if self._hooks.pages is not None:
            self._hooks.pages.num_samples += leading_size(args, kwargs) or 0
        if self._norms and call("loop_facts", self.loop)[5]:
            for norm in self._norms:
                norm.eval()
        if self.sampler is None or not self.training:
            return None
        weight = self.sampler.weight_of_next(leading_size(args, kwargs))
        return None if weight == 1 else weight

    @property
    def optimizers(self):
        return self._hooks.all

    def _follow(self, changes):
        if tuple(changes) != NO_CHANGES:
            self._hooks.follow(*changes)

    def buffers_now(self):
        return list(self.module.buffers())

    @contextlib.contextmanager
    def hooks_paused(self):
        """Steps of the optimizer inside are none of training."""
        self._hooks.is_paused = True
        try:
            yield
        finally:
            self._hooks.is_paused = False

    @property
    def engine_updates(self):
        """True if the engine makes the updates and keeps the optimizer's state."""
        return self._hooks.engine is not None

    def note_restored(self):
        """Takes step and rates from a checkpoint that was restored."""
        self._hooks.step = int(call("loop_facts", self.loop)[0])
        self._hooks.written.clear()

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
        self._follow(call("loop_finalize", self.loop))

    @property
    def step(self):
        """The number of updates done."""
        return self._hooks.step

    @property
    def metrics_address(self):
        """Where this rank serves its pages, "http://127.0.0.1:9464"; None if it does not."""
        return self._hooks.pages.address if self._hooks.pages is not None else None

    @property
    def sparsity(self):
        """The pruned fraction of all prunable weights."""
        return call("loop_facts", self.loop)[1]

    def close(self):
        """Ends the connection of the ranks; the module stays usable."""
        self._hooks.remove()
        for layer in self._large:
            del layer.forward
        if self.sampler is not None:
            self.sampler.follow(no_passes)
        self._close()


class Weighted(torch.autograd.Function):
    """The same values, and gradients times a number."""

    @staticmethod
    def forward(ctx, values, weight):
        ctx.weight = weight
        return values.view_as(values)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.weight, None


def weighted(outputs, weight):
    """Outputs whose gradients count `weight` times in the mean over ranks. Losses that depend on weights alone are not touched."""
    from torch.utils import _pytree

    def one(value):
        return Weighted.apply(value, weight) if isinstance(value, torch.Tensor) and value.requires_grad else value
    return _pytree.tree_map(one, outputs)


def leading_size(args, kwargs):
    """The first dimension of the first tensor among the arguments of forward, also inside dicts and lists; None without any."""
    from torch.utils import _pytree
    for leaf in _pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            return leaf.shape[0]
    return None


def plain_name(name):
    """A parameter's name without the part that torch.compile(module) adds, so that recipes and checkpoints fit both."""
    return name.replace("_orig_mod.", "")


def require_unwrapped(module):
    if isinstance(module, torch.nn.Module) and any(part in WRAPPED for part in module.modules()):
        raise Error("[pytorch] the module or a part of it is wrapped by lockstep.DataParallel already: close() that one first", EXIT_CONFIG)


def quantizer_of(loop):
    operator = torch.ops.lockstep.loop_quantize.default

    @torch._disable_dynamo  # a graph would contain the values of its first call
    def quantize(number, is_weight, values):
        return operator(loop, number, is_weight, values)
    return quantize


def end_loop(loop, module):
    torch.ops.lockstep.loop_close.default(loop)
    if module() is not None:
        WRAPPED.discard(module())


def keeps_zeros(optimizer):
    return type(optimizer).__module__.startswith("torch.optim") and type(optimizer).__name__ in KEEP_ZEROS


def require_types(module, optimizers):
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"lockstep.DataParallel wraps a torch.nn.Module, not {type(module).__name__}")
    for optimizer in optimizers or [None]:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"lockstep.DataParallel takes an optimizer of torch.optim or a list of them, not {type(optimizer).__name__}")
    lazy = torch.nn.parameter.UninitializedTensorMixin
    unbuilt = [name for name, parameter in module.named_parameters() if isinstance(parameter, lazy)]
    if unbuilt:
        raise Error(f"[pytorch] {', '.join(unbuilt)} is not built yet: run one forward pass before lockstep.DataParallel", EXIT_CONFIG)


def require_own_parameters(module, optimizer):
    known = {id(parameter) for parameter in module.parameters()}
    for position, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in known:
                raise Error(f"[pytorch] parameter group {position} of the optimizer has a tensor of shape {list(parameter.shape)} that is no "
                            "parameter of the module: the ranks would not average its gradient", EXIT_CONFIG)


def connect(group, timeout):
    """(number of a new loop, this rank in it) over the ranks of the process group; without one, of all ranks that a launcher started."""
    if group is None and not distributed.is_initialized():
        if not connect_ranks(timeout):
            return call("loop_alone"), 0
    ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
    is_whole = len(ranks) == distributed.get_world_size()
    # Its own connections: messages of the loop never wait for those of the script.
    gloo = distributed.new_group(ranks, backend="gloo", timeout=datetime.timedelta(seconds=timeout), use_local_synchronization=not is_whole)
    return call("loop_connect", gloo.boxed(), ranks, float(timeout)), ranks.index(distributed.get_rank())
