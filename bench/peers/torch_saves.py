"""PyTorch's side of bench/checkpoint: commands on standard input, a line of seconds for each; bench/saves.cpp says which.
LOCKSTEP_TORCH is the folder `torch` of the wheel.

durable and durable2 (two threads) are torch.distributed.checkpoint.save with files synced, blocked is async_save.
"""
import pathlib
import sys
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
from cpu_torch import torch
import torch.distributed.checkpoint as dcp

warnings.filterwarnings("ignore")
NUM_TENSORS, NUM_ELEMENTS, MATRIX, PRODUCTS = 32, 7_812_500, 2048, 10


def state():
    return {f"w{i}": torch.randn(NUM_ELEMENTS) for i in range(NUM_TENSORS)}


def seconds_of(call):
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


class Bench:
    def __init__(self):
        self.state = state()
        self.left, self.right = torch.randn(MATRIX, MATRIX), torch.randn(MATRIX, MATRIX)
        self.product = torch.zeros(MATRIX, MATRIX)

    def writer(self, folder, threads):
        return dcp.FileSystemWriter(folder, thread_count=threads, sync_files=True)

    def durable(self, folder, threads=1):
        return [seconds_of(lambda: dcp.save(self.state, storage_writer=self.writer(folder, threads), no_dist=True))[0]]

    def durable2(self, folder):
        return self.durable(folder, 2)

    def compute(self):
        for _ in range(PRODUCTS):
            torch.mm(self.left, self.right, out=self.product)

    def blocked(self, folder):
        alone, _ = seconds_of(self.compute)
        start = time.perf_counter()
        blocked, response = seconds_of(lambda: dcp.async_save(self.state, storage_writer=self.writer(folder, 1), no_dist=True))
        self.compute()
        round_s = time.perf_counter() - start
        response.result()
        return [blocked, round_s, alone]

    def restore(self, folder):
        return [seconds_of(lambda: dcp.load(self.state, storage_reader=dcp.FileSystemReader(folder), no_dist=True))[0]]


def main():
    torch.set_num_threads(1)
    bench = Bench()
    for line in sys.stdin:
        command, folder = line.split()
        print("result", *(f"{value:f}" for value in getattr(bench, command)(folder)), flush=True)


if __name__ == "__main__":
    main()
