"""Pages of a rank for Prometheus and browsers, as lockstepd serves them (docs/metrics.md)."""
import os
import pathlib
import sys

import torch

from .build_facts import VERSION


class Pages:
    """Counts samples between updates, and records each update with its rates."""

    def __init__(self, model, address, groups, steps_per_epoch, call):
        """groups: the recipe's parameter group of each trained parameter, by identity."""
        self.loop, self.call, self.num_samples = model.loop, call, 0
        param_groups = model.optimizer.param_groups
        # The first of the optimizer's groups with parameters of the recipe's group shows its rates.
        self.shown = [next((group for group in param_groups if any(groups.get(id(parameter)) == wanted for parameter in group["params"])),
                           param_groups[0]) for wanted in (0, 1)]
        facts = [pathlib.Path(sys.argv[0]).stem or "python", type(model.module).__name__, VERSION, torch.__version__]
        num_parameters = sum(parameter.numel() for parameter in model.module.parameters())
        self.address = call("loop_serve", self.loop, address, os.environ.get("LOCKSTEP_METRICS_TOKEN_FILE", ""), facts, num_parameters,
                            steps_per_epoch)

    def record(self):
        rates = [float(group.get(key, 0)) for key in ("lr", "weight_decay") for group in self.shown]
        self.call("loop_record", self.loop, self.num_samples, rates)
        self.num_samples = 0
