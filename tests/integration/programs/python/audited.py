"""A network with everything that a forward pass may change or draw. On a rank it computes wrong from a pass on; or each pass gives another result."""
import os

import torch


class Net(torch.nn.Module):
    def __init__(self, wrong_rank=-1, first_wrong=0, counts=False):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        self.is_wrong = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)) == wrong_rank
        self.first_wrong, self.counts, self.passes = first_wrong, counts, 0

    def forward(self, inputs):
        hidden = inputs.flatten(1)
        if self.training:
            self.passes += 1
            if self.is_wrong and self.passes >= self.first_wrong:
                hidden = hidden * 1.001
            if self.counts:
                hidden = hidden * (1 + self.passes / 1000)
        return self.layers(hidden)
