"""Data sets of transformers_test.py: dicts, tuples, dataclasses, texts of different lengths, streams."""
import dataclasses

import torch

IGNORED = -100


def numbers(index, count, low, high):
    """Numbers of a sample, from its index alone."""
    return torch.randint(low, high, (count,), generator=torch.Generator().manual_seed(1000 + index))


def padded(rows, value):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


class Texts:
    """Token sequences of 3 to `longest` tokens. labels: `same` (causal), `masked` (a third counts), `class`, `none` (all ignored in some samples).

    `kind`: dict, dataclass or tuple of equally long samples; `ragged`: dicts, which collate_fn pads.
    """

    def __init__(self, samples=64, longest=12, vocabulary=64, labels="same", kind="ragged", extra="", without=""):
        self.samples, self.longest, self.vocabulary = samples, longest, vocabulary
        self.labels, self.kind, self.extra, self.without = labels, kind, extra, without
        if kind == "ragged":
            self.collate_fn = self.collate

    def __len__(self):
        return self.samples

    def tokens(self, index):
        length = 3 + index * 7 % (self.longest - 2) if self.kind == "ragged" else self.longest
        return numbers(index, length, 1, self.vocabulary)

    def labels_of(self, tokens, index):
        if self.labels == "class":
            return torch.tensor(index % 3)
        counts = torch.ones(len(tokens), dtype=torch.bool)
        if self.labels == "masked":
            counts = torch.arange(len(tokens)) % 3 == index % 3
        if self.labels == "none" and index % 8 < 4:
            counts[:] = False
        return torch.where(counts, tokens, IGNORED)

    def __getitem__(self, index):
        tokens = self.tokens(index)
        sample = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": self.labels_of(tokens, index)}
        if self.extra:
            sample[self.extra] = "text" if self.extra == "text" else torch.tensor(index)
        sample.pop(self.without, None)
        if self.kind == "dataclass":
            return Sample(**sample)
        return tuple(sample.values()) if self.kind == "tuple" else sample

    def collate(self, samples):
        batch = {key: padded([one[key] for one in samples], value) for key, value in
                 (("input_ids", 0), ("attention_mask", 0), ("labels", IGNORED)) if samples[0].get(key) is not None and samples[0][key].dim() > 0}
        return {**{key: torch.stack([one[key] for one in samples]) for key in samples[0] if key not in batch}, **batch}


@dataclasses.dataclass
class Sample:
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor
    token_type_ids: torch.Tensor = None


class Pixels:
    """Pictures of 8 x 8, for ViT."""

    num_classes = 3

    def __len__(self):
        return 48

    def __getitem__(self, index):
        pixels = torch.rand([3, 8, 8], generator=torch.Generator().manual_seed(index))
        return {"pixel_values": pixels, "labels": int(pixels.mean(dim=(1, 2)).argmax())}


class Stream(Texts):
    """The samples of Texts, iterated. `skips` counts in the log how often samples were skipped over."""

    __getitem__ = None

    def __init__(self, has_skip=False, ends_after=None, has_length=True, **args):
        super().__init__(**args)
        self.first, self.ends_after, self.has_length = 0, ends_after, has_length
        if has_skip:
            self.skip = self.skipped

    def __len__(self):
        if not self.has_length:
            raise TypeError("a stream without length")
        return self.samples

    def skipped(self, count):
        rest = Stream(samples=self.samples, longest=self.longest, vocabulary=self.vocabulary, labels=self.labels, kind=self.kind)
        rest.first = count
        print(f"stream skips {count}", flush=True)
        return rest

    def __iter__(self):
        for index in range(self.first, self.ends_after or self.samples):
            yield Texts.__getitem__(self, index)


class Endless(Stream):
    """A stream that does not know its length."""

    __len__ = None
