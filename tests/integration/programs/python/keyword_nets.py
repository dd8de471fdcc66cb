"""Networks that take several tensors, by position or by keyword."""
import torch
from torch import nn


class Tuples(nn.Module):
    """Takes (tokens, mask, labels) by position, returns (loss, logits)."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)

    def forward(self, tokens, mask, labels=None):
        logits = self.head(self.embedding(tokens) * mask.unsqueeze(-1))
        if labels is None:
            return (logits,)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


class Needs(nn.Module):
    """A forward with keywords that have no default."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, input_ids, pixel_values, labels=None):
        return {"logits": self.head(pixel_values)}


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 16), nn.LazyLinear(3)

    def forward(self, input_ids, attention_mask):
        return {"hidden": None, "logits": self.head((self.embedding(input_ids) * attention_mask.unsqueeze(-1)).flatten(1)), "ids": torch.zeros(1)}


class Shifts(nn.Module):
    """A language model that shifts its labels: the first one of each row counts in no loss."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)

    def forward(self, input_ids, labels):
        logits = self.head(self.embedding(input_ids))
        return {"loss": nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), "logits": logits}
