"""A rank of user_loop.train, or of sums: the request as JSON, the backend, and the signal that rank 1 gives itself at step 2, or 0.

Prints the result as JSON.
"""
import datetime
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import user_loop
from user_loop import distributed, torch

import lockstep  # noqa: F401

request, backend, signal_number = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def fail(_case, step, _model, _network):
    if signal_number and step == 2 and distributed.get_rank() == 1:
        os.kill(os.getpid(), signal_number)


def sums(num_values):
    """What collectives of whole numbers, of several sizes, give on this rank: the digest must be that of gloo."""
    rank, size, found = distributed.get_rank(), distributed.get_world_size(), []
    for number in (1, 1000, num_values, num_values + 7):
        values = torch.arange(number * size, dtype=torch.float32) % 1000 * (rank + 1)
        total, piece, whole, first = values.clone(), torch.empty(number), torch.empty(number * size), values.clone()
        works = [distributed.all_reduce(total, async_op=True), distributed.reduce_scatter_tensor(piece, values, async_op=True),
                 distributed.broadcast(first, size - 1, async_op=True)]
        for work in works:
            work.wait()
        distributed.all_gather_into_tensor(whole, piece)
        found += [total, whole, first]
    distributed.barrier()
    return {"digest": user_loop.digest(found)}


user_loop.make_mistake = fail
distributed.init_process_group(backend, timeout=datetime.timedelta(seconds=20))
result = sums(request["sums"]) if "sums" in request else user_loop.train(request)
print("result", json.dumps(result), flush=True)
distributed.destroy_process_group()
