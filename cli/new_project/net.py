"""The network. Lockstep builds it on every rank from the same seed and trains it; `args` of run.yaml are its arguments."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=64, dropout=0.1):
        super().__init__()
        self.first = nn.Linear(2, width)
        self.norm = nn.BatchNorm1d(width)
        self.second = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, 2)

    def forward(self, points):
        values = torch.relu(self.norm(self.first(points)))
        values = self.dropout(torch.relu(self.second(values)))
        return self.classifier(values)  # one number a class; the loss is run.yaml's
