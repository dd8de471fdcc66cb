"""The form of PyTorch's tutorial "Getting Started with Distributed Data Parallel": torchrun ... ddp_tutorial.py BACKEND FOLDER"""
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import lockstep  # noqa: F401, which registers the backend


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1, self.norm, self.net2 = nn.Linear(10, 32), nn.BatchNorm1d(32), nn.Linear(32, 5)

    def forward(self, x):
        return self.net2(F.relu(self.norm(self.net1(x))))


def make_loader():
    data = TensorDataset(torch.randn(150, 10), torch.randn(150, 5))
    return DataLoader(data, batch_size=16, sampler=DistributedSampler(data))  # ranks pad the last batch to equal sizes


def train(model, loader, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            print(f"loss {loss.item()!r}")


def main(backend, folder):
    dist.init_process_group(backend)
    torch.manual_seed(0)
    model, checkpoint = DDP(ToyModel()), pathlib.Path(folder, "model.pt")
    loader = make_loader()
    train(model, loader, epochs=2)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), checkpoint)
    dist.barrier()  # no rank loads before rank 0 has saved
    model.load_state_dict(torch.load(checkpoint, weights_only=True))
    train(model, loader, epochs=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
