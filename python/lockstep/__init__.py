"""Lockstep from Python: the weights of a run, a backend of torch.distributed, and the engine in a loop of one's own. To train with the daemon, start
the program: mpirun.sh 2 lockstepd --config run.yaml. torch is imported where tensors are made.

    import lockstep
    net.load_state_dict(lockstep.load_state_dict("runs/spirals"))
    torch.distributed.init_process_group("lockstep")
    model = lockstep.DataParallel(model, optimizer, recipe="recipe.yaml", steps_per_epoch=len(loader))
"""
import importlib
import sys

from . import process_group
from .build_facts import VERSION as __version__
from .saves import latest_checkpoint, load_state_dict
from .programs import Error

WITH_TORCH = {"DataParallel": "data_parallel", "DistributedSampler": "sampler", "Restored": "checkpoints", "exit_codes": "calls",
              "launched": "launch", "restore": "checkpoints", "save": "checkpoints", "wait_for_save": "checkpoints"}
__all__ = ["Error", "__version__", "latest_checkpoint", "load_state_dict", *WITH_TORCH]


def __getattr__(name):
    """Imports on first use what needs torch."""
    if name in WITH_TORCH:
        return getattr(importlib.import_module(f".{WITH_TORCH[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if "torch" in sys.modules:  # otherwise torch calls the wheel's entry point when it is imported
    process_group.autoload()
