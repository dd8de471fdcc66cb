"""Updates of torch.optim that the engine makes itself, in one pass over flat buffers: which ones it can, and their state."""
import torch

from .programs import EXIT_CONFIG, Error

# Type of docs/optimizers.md, and names of its slots in torch.optim and there.
TYPES = {torch.optim.SGD: "momentum", torch.optim.Adam: "adamw", torch.optim.AdamW: "adamw"}
SLOTS = {torch.optim.SGD: ("momentum_buffer",), torch.optim.Adam: ("exp_avg", "exp_avg_sq"), torch.optim.AdamW: ("exp_avg", "exp_avg_sq")}
UNSUPPORTED = ("maximize", "differentiable", "amsgrad", "capturable")


def rule_of(optimizer):
    """(type, numbers) of the engine's rule that equals this optimizer's up to rounding; a text that says why there is none."""
    if type(optimizer) not in TYPES:
        return f"the engine has no rule of {type(optimizer).__name__}"
    found = set()
    for group in optimizer.param_groups:
        used = [key for key in UNSUPPORTED if group.get(key)]
        if used or group.get("dampening"):
            return f"the engine has no {(used or ['dampening'])[0]}"
        beta1, beta2 = map(float, group.get("betas", (0.0, 0.0)))
        decoupled = type(optimizer) is torch.optim.AdamW or bool(group.get("decoupled_weight_decay"))
        found.add((float(group.get("momentum", 0.0)), float(bool(group.get("nesterov"))), beta1, beta2, float(group.get("eps", 0.0)),
                   float(decoupled)))
    if len(found) != 1:
        return "parameter groups differ in more than lr and weight_decay"
    return TYPES[type(optimizer)], list(found.pop())


class EngineUpdate:
    """The rates of each update, from the optimizer's param_groups, and its state for optimizer.state_dict()."""

    def __init__(self, optimizer, loop, parameters, groups, call):
        self.optimizer, self.loop, self.parameters, self.call = optimizer, loop, parameters, call
        self.rule = rule_of(optimizer)
        self.group_for = [self.place_of(group, groups) for group in (0, 1)]
        self.handles = [optimizer.register_state_dict_pre_hook(self.show_state), optimizer.register_state_dict_post_hook(self.hide_state),
                        optimizer.register_load_state_dict_pre_hook(self.refuse_load)]

    def place_of(self, wanted, groups):
        """The parameter group that holds the engine's group, None for one without parameters."""
        ids = {id(parameter) for parameter, group in zip(self.parameters, groups) if group == wanted}
        return next((group for group in self.optimizer.param_groups if any(id(parameter) in ids for parameter in group["params"])), None)

    def update(self):
        if rule_of(self.optimizer) != self.rule:
            raise Error("[pytorch] the loop changes momentum, betas or eps of the optimizer, as OneCycleLR does, and the engine's updates take "
                        "lr and weight_decay only: wrap with engine_update=False", EXIT_CONFIG)
        groups = [group or self.optimizer.param_groups[0] for group in self.group_for]
        rates = [float(group["lr"]) for group in groups] + [float(group["weight_decay"]) for group in groups]
        self.call("loop_update", self.loop, rates)

    def show_state(self, optimizer):
        for index, parameter in enumerate(self.parameters):
            slots = self.call("loop_slots", self.loop, index)
            if slots:
                optimizer.state[parameter] = dict(zip(SLOTS[type(optimizer)], slots))

    def hide_state(self, optimizer, _state):
        optimizer.state.clear()

    def refuse_load(self, _optimizer, _state):
        raise Error("[pytorch] the engine makes the updates and keeps the optimizer's state: continue by lockstep.restore(), or wrap with "
                    "engine_update=False to load a state_dict()", EXIT_CONFIG)

    def remove(self):
        for handle in self.handles:
            handle.remove()
