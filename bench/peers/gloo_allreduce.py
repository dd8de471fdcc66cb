"""All-reduce of float32 over gloo, or LOCKSTEP_BENCH_BACKEND, in place, one rank; RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and LOCKSTEP_TORCH as for
ddp.py. Rank 0 writes a JSON object to --out: the seconds of each call of the slower rank, from a barrier on. The buffer is
touched before; the first call does not count. With --alone each rank only adds 1 to its values: every all-reduce reads and writes
them once at least."""
import argparse
import json
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
from cpu_torch import torch
import torch.distributed as dist

import backends


def time_calls(call, num_calls):
    seconds = []
    for _ in range(num_calls + 1):
        dist.barrier()
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    seconds = torch.tensor(seconds[1:], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=float, default=64)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    backends.init("gloo")
    values = torch.ones(int(options.mib * 2**20) // 4)
    dist.all_reduce(values)
    assert values.eq(dist.get_world_size()).all(), "a wrong sum: nothing was measured"
    values.zero_()
    seconds = time_calls((lambda: values.add_(1)) if options.alone else (lambda: dist.all_reduce(values)), options.calls)
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps({"seconds": seconds}))
    dist.barrier()
    os._exit(0)  # the orderly way out aborts now and then: a thread of gloo's is still there


if __name__ == "__main__":
    main()
