"""Lockstep from Python: the weights of a run.

    import lockstep
    net.load_state_dict(lockstep.load_state_dict("runs/spirals"))

torch is imported where tensors are made. To train, start the program: mpirun.sh 2 lockstepd --config run.yaml
"""
from .build_facts import VERSION as __version__
from .saves import latest_checkpoint, load_state_dict
from .programs import Error

__all__ = ["Error", "__version__", "latest_checkpoint", "load_state_dict"]
