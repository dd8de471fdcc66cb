"""Updates of torch.optim that the engine makes itself, in one pass over flat buffers: which ones it can, and their state."""
import torch

from .calls import call
from .programs import EXIT_CONFIG, Error

# Type of docs/optimizers.md, and names of its slots in torch.optim.
RULES = {torch.optim.SGD: ("momentum", ("momentum_buffer",)), torch.optim.Adam: ("adamw", ("exp_avg", "exp_avg_sq")),
         torch.optim.AdamW: ("adamw", ("exp_avg", "exp_avg_sq"))}
UNSUPPORTED = ("maximize", "differentiable", "amsgrad", "capturable", "dampening")


def rule_of(optimizers):
    """(type, numbers) of the engine's rule that equals the optimizer's up to rounding; a text that says why there is none."""
    kind, groups = type(optimizers.all[0]), optimizers.param_groups
    if kind not in RULES or len(optimizers.all) > 1:
        return f"the engine has no rule of {optimizers.type}"
    used = [key for group in groups for key in UNSUPPORTED if group.get(key)]
    if used:
        return f"the engine has no {used[0]}"
    if len(groups) > 1:
        return "the optimizer has several parameter groups"
    group = groups[0]
    decoupled = kind is torch.optim.AdamW or bool(group.get("decoupled_weight_decay"))
    numbers = (group.get("momentum", 0), bool(group.get("nesterov")), *group.get("betas", (0, 0)), group.get("eps", 0), decoupled)
    return RULES[kind][0], [float(number) for number in numbers]


class EngineUpdate:
    """The updates of an optimizer, whose state optimizer.state_dict() shows."""

    def __init__(self, optimizers, loop):
        self.optimizers, self.loop, self.rule = optimizers, loop, rule_of(optimizers)
        optimizer = optimizers.all[0]
        self.handles = [optimizer.register_state_dict_pre_hook(self.show_state),
                        optimizer.register_state_dict_post_hook(lambda optimizer, _state: optimizer.state.clear()),
                        optimizer.register_load_state_dict_pre_hook(self.refuse_load)]

    def update(self):
        if rule_of(self.optimizers) != self.rule:
            raise Error("[pytorch] the loop changes momentum, betas or eps of the optimizer, as OneCycleLR does, and the engine's updates take "
                        "lr and weight_decay only: wrap with engine_update=False", EXIT_CONFIG)
        call("loop_update", self.loop, self.optimizers.rates())

    def show_state(self, optimizer):
        for index, parameter in enumerate(self.optimizers.parameters):
            slots = call("loop_slots", self.loop, index)
            if slots:
                optimizer.state[parameter] = dict(zip(RULES[type(optimizer)][1], slots))

    def refuse_load(self, _optimizer, _state):
        raise Error("[pytorch] the engine makes the updates and keeps the optimizer's state: continue by lockstep.restore(), or wrap with "
                    "engine_update=False to load a state_dict()", EXIT_CONFIG)
