"""The digits network in whole numbers, from an exported file: int8 weights, uint8 inputs, int32 sums, one scale at the end.

usage: int8_digits.py MODEL.safetensors DIGITS.csv    prints JSON: accuracy, loss and logits' distances over the test split
"""
import json
import math
import struct
import sys

import numpy as np

TYPES = {"F32": np.float32, "I8": np.int8, "U8": np.uint8}
STRIDES = {"blocks.0.conv": 1, "blocks.1.conv": 2, "blocks.2.conv": 2}
gelu = np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))), otypes=[np.float32])


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    header_end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:header_end])
    del header["__metadata__"]
    return {name: np.frombuffer(data[header_end:][slice(*entry["data_offsets"])], TYPES[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items()}


def test_split(path):
    """Every fifth line, pixels of 0 to 1."""
    rows = np.loadtxt(path, delimiter=",", dtype=np.int64)[4::5]
    return (rows[:, :64].reshape(-1, 1, 8, 8) / 16).astype(np.float32), rows[:, 64]


def patches(values, stride):
    """[B, I, H, W] -> [B, positions, I * 9] of a 3x3 convolution with a border of zeros."""
    padded = np.pad(values, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::stride, ::stride]
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(len(values), -1, values.shape[1] * 9)


class Layer:
    def __init__(self, tensors, name):
        self.name = name
        self.weight, self.bias = tensors[name + ".weight"], tensors[name + ".bias"]
        self.scales, self.input_scale = tensors[name + ".weight_scale"], tensors[name + ".input_scale"]
        self.zero_point = int(tensors[name + ".input_zero_point"])
        assert self.weight.dtype == np.int8 and self.weight.min() >= -127

    def arrange(self, values):
        return patches(values, STRIDES[self.name]) if self.name in STRIDES else values.reshape(len(values), 1, -1)

    def shape(self, sums_BPO):
        side = math.isqrt(sums_BPO.shape[1])
        return sums_BPO.transpose(0, 2, 1).reshape(len(sums_BPO), -1, side, side)

    def quantized(self, values):
        """Integers minus the zero point, so that 0 means zero."""
        steps = np.rint(values * (np.float32(1) / self.input_scale)).astype(np.int32) + self.zero_point
        return np.clip(steps, 0, 255) - self.zero_point

    def in_integers(self, values):
        rows = self.weight.reshape(len(self.weight), -1).astype(np.int32)
        sums = self.arrange(self.quantized(values)) @ rows.T
        assert sums.dtype == np.int32
        return self.shape(sums * (self.input_scale * self.scales) + self.bias)

    def imitated(self, values):
        """Computes as training does: in floats that int8 could represent."""
        rows = self.weight.reshape(len(self.weight), -1) * self.scales.reshape(-1, 1)
        return self.shape(self.arrange(self.quantized(values) * self.input_scale) @ rows.T + self.bias)


def logits(layers, values, compute):
    for layer in layers[:-1]:
        values = gelu(compute(layer, values))
    return compute(layers[-1], values).reshape(len(values), -1)


def main():
    tensors = read_safetensors(sys.argv[1])
    inputs, targets = test_split(sys.argv[2])
    layers = [Layer(tensors, name) for name in (*STRIDES, "classifier")]
    exact = logits(layers, inputs, Layer.in_integers)
    imitated = logits(layers, inputs, Layer.imitated)
    likelihoods = np.exp(exact.astype(np.float64) - exact.max(1, keepdims=True))
    likelihoods = likelihoods[np.arange(len(targets)), targets] / likelihoods.sum(1)
    print(json.dumps({"samples": len(targets), "accuracy": float((exact.argmax(1) == targets).mean()),
                      "loss": float(-np.log(likelihoods).mean()),
                      "logit_difference": float(np.abs(exact - imitated).max()),
                      "logit_step": float(layers[-1].input_scale * layers[-1].scales.max() * 127)}))


if __name__ == "__main__":
    main()
