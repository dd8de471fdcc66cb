"""Processes that read whole batches, spawned: a process of MPI must not be forked."""
import concurrent.futures
import multiprocessing
import os
import sys
import threading
import time

from .datasets import DataSet, bytes_of
from .faults import Fault
from .torch_import import torch

worker_data = None


def start_workers(data, num_workers):
    path, name, args, what = data.source
    begin = (os.getpid(), list(sys.path), path, name, args, data.target_kind, data.num_classes, data.seed, what)
    return concurrent.futures.ProcessPoolExecutor(num_workers, multiprocessing.get_context("spawn"), begin_worker, begin)


def begin_worker(parent, path_list, path, name, args, targets, classes, seed, what):
    global worker_data
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    for folder in path_list:
        if folder not in sys.path:
            sys.path.append(folder)
    torch.set_num_threads(1)
    worker_data = DataSet(path, name, args, targets, classes, seed, what)


def end_with(parent):
    """A worker whose rank was killed ends too."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def read_in_worker(indices, epoch):
    """Bytes, not tensors: these would go through shared memory, of which a container may have little."""
    try:
        return [(bytes_of(t), t.dtype, list(t.shape)) for t in worker_data.read(indices, epoch)]
    except Fault as fault:
        return str(fault)


def read_samples_by_worker(pool, indices, epoch):
    try:
        parts = pool.submit(read_in_worker, indices.tolist(), epoch).result()
    except concurrent.futures.process.BrokenProcessPool as fault:
        raise Fault("a worker of the data set ended (killed, or its start failed: see above); start the run again, it goes "
                    "on from its last save") from fault
    if isinstance(parts, str):
        raise Fault(parts)
    return [torch.frombuffer(bytearray(data), dtype=dtype).view(shape) if data else torch.empty(shape, dtype=dtype)
            for data, dtype, shape in parts]


def end_workers(pool):
    pool.shutdown(wait=True, cancel_futures=True)
