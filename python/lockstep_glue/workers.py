"""Processes that read whole batches, spawned: a process of MPI must not be forked."""
import concurrent.futures
import contextlib
import multiprocessing.context
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
import time

from .datasets import DataSet, bytes_of
from .faults import Fault, describe_fault
from .torch_import import torch

# What launchers send to a whole process group. The rank decides how a run ends; its workers read until then.
SIGNALS_OF_THE_RANK = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class WorkerContext(multiprocessing.context.SpawnContext):
    class Process(multiprocessing.context.SpawnProcess):
        """The executor terminates the others where one was killed: they take no SIGTERM."""

        def terminate(self):
            self.kill()


worker_data = None  # a text if begin_worker() failed: what is wrong


@contextlib.contextmanager
def signals_blocked():
    """A process that is started meanwhile takes none of these signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS_OF_THE_RANK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_workers(data, num_workers):
    with signals_blocked():
        multiprocessing.resource_tracker.ensure_running()  # else the first spawn does it, and opens SIGTERM and SIGINT
    return concurrent.futures.ProcessPoolExecutor(num_workers, WorkerContext(), begin_worker, (os.getpid(), list(sys.path), data.source))


def begin_worker(parent, path_list, source):
    global worker_data
    for one in SIGNALS_OF_THE_RANK:
        signal.signal(one, signal.SIG_IGN)
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    sys.path.extend(folder for folder in path_list if folder not in sys.path)
    torch.set_num_threads(1)
    try:
        worker_data = DataSet(*source)
    except Exception as fault:
        worker_data = describe_fault(type(fault), fault, fault.__traceback__)


def end_with(parent):
    """A worker whose rank was killed ends too."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def read_in_worker(indices, epoch):
    """Bytes, not tensors: these would go through shared memory, of which a container may have little."""
    if isinstance(worker_data, str):
        raise Fault(worker_data)
    inputs, targets, more, names = worker_data.read(indices, epoch)
    return [(bytes_of(t), t.dtype, list(t.shape)) for t in (inputs, targets, *more)], names


def read_samples_by_worker(pool, indices, epoch):
    """As read_samples(); None if a worker was killed."""
    try:
        with signals_blocked():
            reading = pool.submit(read_in_worker, indices.tolist(), epoch)
        parts, names = reading.result()
    except concurrent.futures.process.BrokenProcessPool:
        return None
    inputs, targets, *more = [torch.frombuffer(bytearray(data), dtype=dtype).view(shape) if data else torch.empty(shape, dtype=dtype)
                              for data, dtype, shape in parts]
    return [inputs, targets, more, names]


def end_workers(pool):
    pool.shutdown(wait=True, cancel_futures=True)
