"""Windows of a file of tokens (uint16) as dicts: the data set of a network of transformers."""
import array
import pathlib

import torch


class Samples:
    """As token_data() of ddp.py: tokens, and for each the one after it."""

    def __init__(self, path, context, keywords):
        tokens = array.array("H")
        tokens.frombytes(pathlib.Path(path).read_bytes())
        self.tokens, self.context, self.keywords = torch.tensor(tokens, dtype=torch.int64), context, keywords

    def __len__(self):
        return (len(self.tokens) - 1) // self.context

    def __getitem__(self, index):
        begin = index * self.context
        windows = (self.tokens[place:place + self.context] for place in (begin, begin + 1))
        return dict(zip(self.keywords, windows))
