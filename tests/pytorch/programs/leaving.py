"""A rank that leaves the interpreter with a collective under way, which the other ranks have joined or never join."""
import sys

from cpu_torch import torch
import torch.distributed as dist

import lockstep  # noqa: F401

dist.init_process_group("lockstep")
dist.all_reduce(torch.ones(3))
joined_by = {"all": dist.get_world_size(), "first": 1}[sys.argv[1]]
if dist.get_rank() < joined_by:
    work = dist.all_reduce(torch.ones(1000), async_op=True)
print("left", flush=True)
