"""DistributedDataParallel over Lockstep: torchrun --nproc-per-node 2 train.py [BACKEND]

The name of the backend is all that differs from a script over gloo. Starts also with mpirun, srun, or as one process.
"""
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lockstep


def stripes(num_samples):
    """Points of a plane, whose stripe is their class."""
    points = torch.rand(num_samples, 2, generator=torch.Generator().manual_seed(1))
    return TensorDataset(2 * points - 1, (4 * (points[:, 0] + points[:, 1])).long() % 4)


def main(backend="lockstep"):
    dist.init_process_group(backend, **lockstep.launched())  # under torchrun the second argument may be left out
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(2, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 4))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    data = stripes(2048)
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
    for epoch in range(5):
        loader.sampler.set_epoch(epoch)
        begin, total = time.perf_counter(), torch.zeros(())
        for points, classes in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(points), classes)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            mean, step_s = total.item() / len(loader) / dist.get_world_size(), (time.perf_counter() - begin) / len(loader)
            print(f"epoch {epoch}: loss {mean:.6f}, {1e3 * step_s:.2f} ms a step over {backend}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
