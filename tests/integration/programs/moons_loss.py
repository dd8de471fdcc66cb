"""The moons plug-in's loss of stored answers, as an evaluation computes it; and the outputs of Python's torch.jit.

usage: moons_loss.py STORED_FOLDER BATCH MODEL.pt X.npy    prints JSON: loss (exact), jit_difference (largest)
"""
import json
import pathlib
import sys

import numpy as np

for folder in ("..", "../../support"):
    sys.path.insert(0, str((pathlib.Path(__file__).resolve().parent / folder).resolve()))
from cpu_torch import torch  # noqa: E402
from stored import stored  # noqa: E402


def focal_sum(logits, moons):
    right = ((2 * moons - 1) * logits).sigmoid()
    return -((1 - right).square() * right.clamp_min(1e-7).log()).sum()


def main():
    folder, batch = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    logits = torch.tensor(stored(folder, "logits"), dtype=torch.float32)
    moons = torch.tensor(stored(folder, "targets"), dtype=torch.float32)
    total = sum(focal_sum(logits[i:i + batch], moons[i:i + batch]).item() for i in range(0, len(logits), batch))
    with torch.no_grad():
        answers = torch.jit.load(sys.argv[3])(torch.from_numpy(np.load(sys.argv[4])))
    print(json.dumps({"loss": total / len(logits), "jit_difference": (answers - logits).abs().max().item()}))


if __name__ == "__main__":
    main()
