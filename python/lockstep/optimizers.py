"""Optimizers of a module: their rates and their state, as a recipe changes them, and updates that the engine makes in their place."""
import math

import torch

from .calls import call
from .programs import Error

# Classes whose update leaves a weight at 0 that has no gradient and no moments, whatever their options are.
KEEP_ZEROS = {"SGD", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "NAdam", "RAdam", "RMSprop"}
MOMENTA = ("momentum_buffer", "exp_avg")  # names of momentum in the state of torch.optim
GROUP_NAMES = ("weights", "other")  # parameter groups of a recipe

# Updates that the engine makes itself, in one pass over flat buffers: type of docs/optimizers.md, and names of its slots in torch.optim.
RULES = {torch.optim.SGD: ("momentum", ("momentum_buffer",)), torch.optim.Adam: ("adamw", ("exp_avg", "exp_avg_sq")),
         torch.optim.AdamW: ("adamw", ("exp_avg", "exp_avg_sq"))}
UNSUPPORTED = ("maximize", "differentiable", "amsgrad", "capturable", "dampening")


def keeps_zeros(optimizer):
    return type(optimizer).__module__.startswith("torch.optim") and type(optimizer).__name__ in KEEP_ZEROS


def set_value(group, key, value):
    """Sets a value of a parameter group; a tensor stays the same one."""
    if isinstance(group.get(key), torch.Tensor):
        group[key].fill_(value)
    else:
        group[key] = value


class Optimizers:
    """Optimizers without common parameters, whose rates and state follow a recipe. The first one's step ends that of the recipe. A rate that the recipe
    sets is written before each update. A loop that writes it too, as a scheduler does, is refused."""

    def __init__(self, optimizers, module):
        self.all, self.type = optimizers, " + ".join(type(optimizer).__name__ for optimizer in optimizers)
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.written = {}  # rates of the last update, by position and key
        self.step, self.is_paused = 0, False
        self.has_begun = False  # an optimizer has begun the update of the last forward pass
        self.num_samples = None  # since the last update; None without pages
        self.sizes = self.sizes_now()
        known, ids = set(map(id, module.parameters())), []
        for position, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if id(parameter) not in known:
                    raise Error(f"[pytorch] parameter group {position} of the optimizer has a tensor of shape {list(parameter.shape)} that is no "
                                "parameter of the module: the ranks would not average its gradient")
                ids.append(id(parameter))
        if len(self.all) > 1 and len(set(ids)) < len(ids):
            raise Error("[pytorch] two of the optimizers have a parameter in common: each parameter needs one")

    @property
    def param_groups(self):
        return [group for optimizer in self.all for group in optimizer.param_groups]

    def state_of(self, parameter):
        return next((optimizer.state[parameter] for optimizer in self.all if parameter in optimizer.state), {})

    def engine_rule(self):
        """(type, numbers) of the engine's rule that equals the optimizer's up to rounding; ("", why there is none)."""
        kind, groups = type(self.all[0]), self.param_groups
        if kind not in RULES or len(self.all) > 1:
            return "", f"the engine has no rule of {self.type}"
        used = [key for group in groups for key in UNSUPPORTED if group.get(key)]
        if used:
            return "", f"the engine has no {used[0]}"
        if len(groups) > 1:
            return "", "the optimizer has several parameter groups"
        group = groups[0]
        decoupled = kind is torch.optim.AdamW or bool(group.get("decoupled_weight_decay"))
        numbers = (group.get("momentum", 0), bool(group.get("nesterov")), *group.get("betas", (0, 0)), group.get("eps", 0), decoupled)
        return RULES[kind][0], [float(number) for number in numbers]

    def attach(self, loop, rule):
        """rule: of engine_rule(); its type is empty if the optimizers make the updates."""
        self.loop, self.rule = loop, rule
        self.engine_updates = rule[0] != ""  # and the engine keeps the optimizer's state
        self.group_of = {id(parameter): group for parameter, group in zip(self.parameters, call("loop_groups", loop))}
        # The first of the optimizers' groups with parameters of each of the recipe's.
        self.main_groups = [next((group for group in self.param_groups if any(self.group_of.get(id(p)) == wanted for p in group["params"])),
                                 self.param_groups[0]) for wanted in range(len(GROUP_NAMES))]
        self.handles = []
        for optimizer in self.all:
            self.handles += [optimizer.register_step_pre_hook(self.before), optimizer.register_step_post_hook(self.after)]
            if self.engine_updates:
                self.handles += [optimizer.register_state_dict_pre_hook(self.show_state),
                                 optimizer.register_state_dict_post_hook(lambda optimizer, _state: optimizer.state.clear()),
                                 optimizer.register_load_state_dict_pre_hook(self.refuse_load)]

    def before(self, optimizer, _args, _kwargs):
        # After the first one's step, the others complete the same update.
        if self.is_paused or (self.has_begun and optimizer is not self.all[0]):
            return
        self.has_begun = True
        if self.sizes_now() != self.sizes:
            raise Error("[pytorch] the optimizer's parameter groups have changed since lockstep.DataParallel wrapped the module: build them before")
        rates = call("loop_begin_update", self.loop)
        if rates:
            self.write("lr", rates[:2])
            self.write("weight_decay", rates[2:])
        if self.engine_updates:
            if self.engine_rule() != self.rule:
                raise Error("[pytorch] the loop changes momentum, betas or eps of the optimizer, as OneCycleLR does, and the engine's updates take "
                            "lr and weight_decay only: wrap with engine_update=False")
            call("loop_update", self.loop, self.rates())

    def after(self, optimizer, _args, _kwargs):
        if self.is_paused:
            return
        if optimizer is not self.all[0]:
            # Pruned weights that this optimizer may have moved; the end of the first one's step zeroes those of all.
            moved = set() if keeps_zeros(optimizer) else {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            for index, parameter in enumerate(self.parameters):
                if id(parameter) in moved:
                    call("loop_zero_pruned", self.loop, index, [parameter.detach()])
            return
        self.step = call("loop_end_update", self.loop)
        if self.num_samples is not None:
            call("loop_record", self.loop, self.num_samples, self.rates())
            self.num_samples = 0

    def sizes_now(self):
        return [len(group["params"]) for group in self.param_groups]

    def rates(self):
        """Learning rate, then weight decay of the main groups."""
        return [float(group.get(key, 0)) for key in ("lr", "weight_decay") for group in self.main_groups]

    def write(self, key, rates):
        """rates: of the recipe's parameter groups, NaN where it sets none."""
        if all(math.isnan(rate) for rate in rates):
            return
        if key == "lr" and any(hasattr(one.step, "_wrapped_by_lr_sched") for one in self.all):
            raise Error("[pytorch] the recipe sets the learning rate, and a torch.optim.lr_scheduler does too: remove the scheduler, or the "
                        "recipe's learning rate modifiers")
        for position, group in enumerate(self.param_groups):
            wanted = {rates[self.group_of[id(parameter)]] for parameter in group["params"] if key in group and id(parameter) in self.group_of}
            if len(wanted) > 1:
                said = [f"{'none' if math.isnan(rate) else rate} for {name}" for rate, name in zip(rates, GROUP_NAMES)]
                raise Error(f"[pytorch] the recipe sets {key} {said[0]} and {said[1]}, and the optimizer's parameter group {position} holds both: "
                            "give the optimizer a group for each")
            rate = wanted.pop() if wanted else math.nan
            if math.isnan(rate):
                continue
            before, now = self.written.get((position, key)), float(group[key])
            if before not in (None, now):
                raise Error(f"[pytorch] the recipe set {key} of parameter group {position} to {before}, and the loop to {now}: only one of them may")
            set_value(group, key, rate)
            self.written[position, key] = float(group[key])

    def show_state(self, optimizer):
        for index, parameter in enumerate(self.parameters):
            slots = call("loop_slots", self.loop, index)
            if slots:
                optimizer.state[parameter] = dict(zip(RULES[type(optimizer)][1], slots))

    def refuse_load(self, _optimizer, _state):
        raise Error("[pytorch] the engine makes the updates and keeps the optimizer's state: continue by lockstep.restore(), or wrap with "
                    "engine_update=False to load a state_dict()")

    def follow(self, pruned, reset):
        """Zeroes the state of newly pruned weights, and the momentum that the recipe resets."""
        for index in pruned:
            parameter = self.parameters[index]
            slots = [slot for slot in self.state_of(parameter).values()
                     if isinstance(slot, torch.Tensor) and slot.shape == parameter.shape and slot.is_floating_point()]
            call("loop_zero_pruned", self.loop, index, slots)
        for index in reset:
            for name, slot in self.state_of(self.parameters[index]).items():
                if name in MOMENTA and isinstance(slot, torch.Tensor):
                    slot.zero_()

    @torch.no_grad()
    def fill_state(self):
        """Creates the state that optimizers create at their first step, by a step without rates and gradients. Returns those that had none."""
        filled = [optimizer for optimizer in self.all if not optimizer.state]
        groups = [group for optimizer in filled for group in optimizer.param_groups]
        parameters = [parameter for group in groups for parameter in group["params"]]
        # As torch.distributed.checkpoint does for its own restores.
        rates = [(group, group["lr"]) for group in groups if "lr" in group]
        self.is_paused = True
        try:
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            for group, rate in rates:
                group["lr"] = 0 * rate
            for optimizer in filled:
                optimizer.step()
        except TypeError as fault:
            raise Error(f"[resume] {type(optimizer).__name__} cannot be restored: {fault}") from None
        finally:
            self.is_paused = False
        for group, rate in rates:
            group["lr"] = rate
        for parameter in parameters:
            parameter.grad = None
        return filled
