"""A training loop of one's own with the engine of Lockstep: torchrun --nproc-per-node 2 train.py [EPOCHS] [FOLDER]

A recipe prunes and sets rates, and each epoch ends with a checkpoint. The same command continues from the newest one, at any number of ranks.
Starts also with mpirun, srun, or as one process: python train.py.
"""
import pathlib
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import lockstep

RECIPE = pathlib.Path(__file__).with_name("recipe.yaml")
GLOBAL_BATCH = 32


def rings(num_samples):
    """Points of a plane, whose ring is their class."""
    points = torch.randn(num_samples, 2, generator=torch.Generator().manual_seed(1))
    return TensorDataset(points, (2 * points.norm(dim=1)).long().clamp(max=3))


def main(num_epochs=10, folder="saves"):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(2, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    data = rings(2000)
    sampler = lockstep.DistributedSampler(data, GLOBAL_BATCH)
    loader = DataLoader(data, batch_size=sampler.batch_size, sampler=sampler)

    model = lockstep.DataParallel(network, optimizer, recipe=RECIPE, sampler=sampler)
    found = lockstep.restore(model, folder)
    for epoch in range(found.epoch if found else 0, int(num_epochs)):
        sampler.set_epoch(epoch)
        for points, classes in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(points), classes)
            loss.backward()
            optimizer.step()
        lockstep.save(model, folder)
        if model.rank == 0:
            print(f"epoch {epoch}: step {model.step}, loss {loss.item():.6f}, sparsity {model.sparsity:.3f}", flush=True)
    model.finish()
    lockstep.save(model, folder, wait=True)


if __name__ == "__main__":
    with lockstep.exit_codes():
        main(*sys.argv[1:])
