"""Lockstep's data, order of samples and initial weights for programs in Python, so that both sides train on the same numbers.

Data of `type: random` and the order of samples are pure functions (data/dataset_table.h, data/sampler.h), implemented here
a second time with the counter-based random numbers of base/random.h. Weights come from a checkpoint that
`lockstep ckpt export` wrote as safetensors.
"""
import json

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1
INPUTS, TARGETS, ORDER = 1, 2, 3  # streams


def mix(z):
    """The finalizer of SplitMix64, on uint64 arrays (whose products wrap)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def bits(key_parts, count):
    """The first `count` values of the stream with this key."""
    key = np.zeros(1, np.uint64)
    for part in key_parts:
        key = mix(key ^ mix(np.array([(part + GOLDEN) & WORD], np.uint64)))
    return mix(key + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN))


def below(values, bounds):
    """Each value as a number in [0, bound): the high word of the product."""
    return [(int(value) * int(bound)) >> 64 for value, bound in zip(values, bounds, strict=True)]


def random_dataset(shape, num_classes, num_samples, seed=0):
    """Inputs [S, *shape] in [-1, 1), targets [S]."""
    uniform = (bits((seed, INPUTS), num_samples * int(np.prod(shape))) >> np.uint64(11)) * 2.0**-53
    targets = below(bits((seed, TARGETS), num_samples), [num_classes] * num_samples)
    return (2 * uniform - 1).astype(np.float32).reshape(num_samples, *shape), np.array(targets, np.int64)


def order_of_epoch(num_samples, seed, epoch):
    """Fisher-Yates from the end."""
    order = list(range(num_samples))
    places = below(bits((seed, ORDER, epoch), num_samples), range(1, num_samples + 1))
    for i in range(num_samples - 1, 0, -1):
        order[i], order[places[i]] = order[places[i]], order[i]
    return order


def batches_of_rank(num_samples, batch, rank, num_ranks, seed, num_steps):
    """The samples of each step on one rank, a list of arrays [batch]. Whole global batches only."""
    whole = batch * num_ranks
    if num_samples % whole:
        raise ValueError(f"{num_samples} samples do not divide into global batches of {whole}")
    samples, epoch = [], 0
    while len(samples) < num_steps:
        order = np.array(order_of_epoch(num_samples, seed, epoch)).reshape(-1, num_ranks, batch)
        samples.extend(order[:, rank])
        epoch += 1
    return samples[:num_steps]


def read_safetensors(path):
    """Tensors by name, float32; but for counts of batches, which no training step reads, nothing else may be there."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if name.endswith("num_batches_tracked"):
            continue
        if entry["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is {entry['dtype']}, not F32")
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"]).copy()
    return tensors
