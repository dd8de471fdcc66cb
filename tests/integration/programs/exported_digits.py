"""Exported networks' answers for the digits' test split.

usage: exported_digits.py DIGITS.csv    each line of the input names a MODEL, .onnx (onnxruntime) or .pt (PyTorch); prints a line of JSON
for it: num_samples, accuracy, loss
"""
import json
import pathlib
import sys

import numpy as np

from int8_digits import test_split

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))


def logits_of(path, inputs):
    if path.endswith(".onnx"):
        import onnxruntime
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(["logits"], {"inputs": inputs})[0]
    from cpu_torch import torch
    with torch.no_grad():
        return torch.jit.load(path)(torch.from_numpy(inputs)).numpy()


def answer(path, inputs, targets):
    logits = logits_of(path, inputs).astype(np.float64)
    likelihoods = np.exp(logits - logits.max(1, keepdims=True))
    likelihoods = likelihoods[np.arange(len(targets)), targets] / likelihoods.sum(1)
    return {"num_samples": len(targets), "accuracy": float((logits.argmax(1) == targets).mean()), "loss": float(-np.log(likelihoods).mean())}


def main():
    split = test_split(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(answer(line.rstrip("\n"), *split)), flush=True)


if __name__ == "__main__":
    main()
