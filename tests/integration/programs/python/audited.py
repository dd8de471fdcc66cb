"""A network with everything that a forward pass may change or draw; and one that computes wrong on a rank, from a step on."""
import os

import torch


class Net(torch.nn.Module):
    def __init__(self, wrong_rank=-1, first_wrong=0):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        self.is_wrong = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)) == wrong_rank
        self.first_wrong, self.passes = first_wrong, 0

    def forward(self, inputs):
        hidden = inputs.flatten(1)
        if self.training:
            self.passes += 1
            if self.is_wrong and self.passes >= self.first_wrong:
                hidden = hidden * 1.001
        return self.layers(hidden)
