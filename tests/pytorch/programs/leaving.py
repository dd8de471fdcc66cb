"""A rank that leaves the interpreter with a collective under way, which the other ranks have joined or never join, or right after one (finished)."""
import os
import sys

from cpu_torch import torch
import torch.distributed as dist

import lockstep  # noqa: F401

dist.init_process_group("lockstep")
dist.all_reduce(torch.ones(3))
if sys.argv[1] == "finished":
    # One core, and threads of low priority: a thread that has finished a call lets go of its tensors only after this one has moved on.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            os.setpriority(os.PRIO_PROCESS, int(thread), 19)
            os.sched_setaffinity(int(thread), {min(os.sched_getaffinity(0))})
    sys.setswitchinterval(0.3)
    print("left", flush=True)
    if sys.argv[2] == "objects":
        dist.all_gather_object([None] * dist.get_world_size(), "text")
    else:
        values = torch.ones(1000, dtype=torch.int32) if sys.argv[2] == "tensor" else torch.frombuffer(bytearray(4000), dtype=torch.int32)
        dist.all_reduce(values)  # of a type that gloo reduces
        del values
else:
    joined_by = {"all": dist.get_world_size(), "first": 1}[sys.argv[1]]
    if dist.get_rank() < joined_by:
        work = dist.all_reduce(torch.ones(1000), async_op=True)
    print("left", flush=True)
