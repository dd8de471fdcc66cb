"""A rank of `torch.distributed.run`, which sums, or of which rank 1 hangs."""
import datetime
import signal
import sys

from cpu_torch import torch
import torch.distributed as dist

import lockstep  # noqa: F401

dist.init_process_group("lockstep", timeout=datetime.timedelta(seconds=3))
values = torch.ones(3) + dist.get_rank()
dist.all_reduce(values)
print(f"rank {dist.get_rank()}: {values.tolist()}", flush=True)
if sys.argv[1] == "hangs":
    if dist.get_rank() == 1:
        signal.pause()
    dist.all_reduce(values)
dist.destroy_process_group()
