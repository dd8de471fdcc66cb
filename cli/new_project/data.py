"""The data: any object with __len__ and __getitem__ that gives (input, target)."""
import math

import torch


class Spirals:
    """Points on two spirals; which of the two is the class."""

    num_classes = 2

    def __init__(self, samples=4000, seed=0, noise=0.02):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 2, [samples], generator=generator)
        turn = 3 * math.pi * torch.rand(samples, generator=generator).sqrt()
        angle = turn + math.pi * self.labels
        self.points = torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / 10
        self.noise = noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        # Random numbers here are the same however many ranks or workers read: they are seeded for each sample.
        return self.points[index] + self.noise * torch.randn(2), self.labels[index]
