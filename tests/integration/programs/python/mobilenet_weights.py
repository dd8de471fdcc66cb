"""MobileNet v1 as torchvision writes its networks (features, classifier), with its own weights and statistics, and files of them.

mobilenet_weights.py FOLDER: writes mobilenet.pt and files that hold the same in other ways, or more than weights; prints the
SHA-256 of each tensor's bytes by name.
"""
import hashlib
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "support"))
from cpu_torch import torch  # noqa: E402

STEPS = ((1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512), (1, 512), (1, 512), (1, 512), (1, 512), (1, 512), (2, 1024), (1, 1024))


def conv_norm_relu(inputs, outputs, kernel, stride=1, groups=1):
    return torch.nn.Sequential(torch.nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
                               torch.nn.BatchNorm2d(outputs), torch.nn.ReLU(inplace=True))


class Separable(torch.nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv = torch.nn.Sequential(conv_norm_relu(inputs, inputs, 3, stride, inputs), conv_norm_relu(inputs, outputs, 1))

    def forward(self, values):
        return self.conv(values)


class MobileNetV1(torch.nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        channels = [max(8, int(c * width)) for c in (32, *(c for _, c in STEPS))]
        layers = [conv_norm_relu(3, channels[0], 3, 2)]
        layers += [Separable(before, after, stride) for before, after, (stride, _) in zip(channels, channels[1:], STEPS)]
        self.features = torch.nn.Sequential(*layers)
        self.classifier = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(channels[-1], classes))

    def forward(self, images):
        return self.classifier(self.features(images).mean([2, 3]))


class RunsCode:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.manual_seed(3)
    network = MobileNetV1(0.25, 7)
    for part in network.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = 0.5
    for _ in range(8):  # statistics of images, so that what goes through the frozen network does not fade
        network(torch.rand(32, 3, 32, 32))
    weights = network.state_dict()
    torch.save(weights, folder / "mobilenet.pt")
    optimizer = {"state": {0: {"momentum_buffer": torch.ones(3), "step": 3}}, "param_groups": [{"lr": 0.1, "nesterov": False, "params": [0]}]}
    torch.save({"epoch": 3, "loss": 0.5, "model": dict(network.named_parameters()), "optimizer": optimizer}, folder / "parameters.pt")
    torch.save({f"module.{name}": tensor for name, tensor in weights.items()}, folder / "parallel.pt", pickle_protocol=4)
    torch.save({name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}, folder / "bfloat16.pth")
    torch.save(weights, folder / "old.pt", _use_new_zipfile_serialization=False)
    torch.save(network, folder / "network.pt")
    torch.save({"weights": weights, "more": RunsCode(folder / "ran")}, folder / "code.pt")
    torch.jit.save(torch.jit.script(network.eval()), folder / "script.pt")
    digests = {name: hashlib.sha256(bytes(tensor.reshape(-1).view(torch.uint8).tolist())).hexdigest() for name, tensor in weights.items()}
    print(json.dumps(digests))


if __name__ == "__main__":
    main()
