"""An exported network's answers for the digits' test split.

usage: exported_digits.py MODEL DIGITS.csv    MODEL ends in .onnx (onnxruntime) or .pt (PyTorch); prints JSON: accuracy, loss
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


def main():
    inputs, targets = test_split(sys.argv[2])
    logits = logits_of(sys.argv[1], inputs).astype(np.float64)
    likelihoods = np.exp(logits - logits.max(1, keepdims=True))
    likelihoods = likelihoods[np.arange(len(targets)), targets] / likelihoods.sum(1)
    print(json.dumps({"num_samples": len(targets), "accuracy": float((logits.argmax(1) == targets).mean()),
                      "loss": float(-np.log(likelihoods).mean())}))


if __name__ == "__main__":
    main()
