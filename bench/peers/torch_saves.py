"""PyTorch's side of bench/checkpoint: commands on standard input, a line of numbers for each; bench/programs/saves.cpp says which.
LOCKSTEP_TORCH is the folder `torch` of the wheel.

durable and durable2 (two threads) are torch.distributed.checkpoint.save with files synced. Of async_save there are two:
blocked (as it comes: the call returns when all is copied) and blocked_stager (DefaultStager copies in a thread of its own; the
caller waits for staging_completion after the first round). cache_staged_state_dict wants pinned memory, so a GPU's driver.
"""
import pathlib
import sys
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
from cpu_torch import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

warnings.filterwarnings("ignore")
NUM_TENSORS, NUM_ELEMENTS, MATRIX, PRODUCTS = 32, 7_812_500, 2048, 10


def state():
    return {f"w{i}": torch.randn(NUM_ELEMENTS) for i in range(NUM_TENSORS)}


def seconds_of(call):
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def writer(folder, threads=1):
    return dcp.FileSystemWriter(folder, thread_count=threads, sync_files=True)


class Bench:
    def __init__(self):
        self.state = state()
        self.left, self.right = torch.randn(MATRIX, MATRIX), torch.randn(MATRIX, MATRIX)
        self.product = torch.zeros(MATRIX, MATRIX)

    def durable(self, folder, threads=1):
        return [seconds_of(lambda: dcp.save(self.state, storage_writer=writer(folder, threads), no_dist=True))[0]]

    def durable2(self, folder):
        return self.durable(folder, 2)

    def compute(self):
        for _ in range(PRODUCTS):
            torch.mm(self.left, self.right, out=self.product)

    def save_beside_rounds(self, save):
        before, _ = seconds_of(self.compute)
        start = time.perf_counter()
        inside, (staged, done) = seconds_of(save)
        rounds = 0
        while rounds == 0 or not done.done():
            self.compute()
            if rounds == 0 and staged is not None:
                inside += seconds_of(staged.result)[0]
            rounds += 1
        total = time.perf_counter() - start
        done.result()
        alone = (before + seconds_of(self.compute)[0]) / 2
        return [inside, total - rounds * alone, alone]

    def blocked(self, folder):
        return self.save_beside_rounds(
            lambda: (None, dcp.async_save(self.state, storage_writer=writer(folder), no_dist=True)))

    def blocked_stager(self, folder):
        # In 2.11 a stager serves one save, its second fails. Without a GPU it refuses pinned memory and copies that do not block.
        stager = DefaultStager(StagingOptions(use_pinned_memory=False, use_shared_memory=False, use_async_staging=True,
                                              use_non_blocking_copy=False))

        def save():
            begun = dcp.async_save(self.state, storage_writer=writer(folder), async_stager=stager, no_dist=True)
            return begun.staging_completion, begun.upload_completion
        found = self.save_beside_rounds(save)
        stager.close()
        return found

    def restore(self, folder):
        return [seconds_of(lambda: dcp.load(self.state, storage_reader=dcp.FileSystemReader(folder), no_dist=True))[0]]


def main():
    torch.set_num_threads(int(sys.argv[1]))
    bench = Bench()
    for line in sys.stdin:
        command, folder = line.split()
        print("result", *(f"{value:f}" for value in getattr(bench, command)(folder)), flush=True)


if __name__ == "__main__":
    main()
