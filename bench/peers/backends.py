"""The backend of torch.distributed that a bench's ranks use."""
import os

import torch.distributed as dist


def init(default):
    """LOCKSTEP_BENCH_BACKEND, else the default. "lockstep" needs the package in PYTHONPATH."""
    backend = os.environ.get("LOCKSTEP_BENCH_BACKEND", default)
    if backend == "lockstep":
        import lockstep  # noqa: F401, which registers it
    dist.init_process_group(backend)
