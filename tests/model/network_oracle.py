"""PyTorch and torchvision as the judges of Lockstep's networks that have their names.

Each network gets random weights by name; outputs in evaluation and in training, the gradients of a step and the moving
statistics after it must be those of the original.

usage: network_oracle.py NETWORK_DRIVER [unittest arguments]
       network_oracle.py NETWORK_DRIVER --time    forward and backward on one thread, Lockstep and PyTorch in turns
"""
import math
import pathlib
import statistics
import subprocess
import sys
import time
import unittest

import numpy as np

for folder in ("tests/support", "bench/peers"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / folder))
from cpu_torch import torch
import torchvision
from networks import Gpt
nn, F = torch.nn, torch.nn.functional

DRIVER = sys.argv.pop(1)
DTYPES = {torch.float32: "float", torch.int64: "int64"}


class ThinMobileNet(nn.Module):
    """MobileNet 1.0 of arXiv 1704.04861 with another number of channels."""

    def __init__(self, width, classes):
        super().__init__()
        steps = [(1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512), *[(1, 512)] * 5, (2, 1024), (1, 1024)]
        before = self.add("Conv2d_0", 3, max(8, int(32 * width)), 3, 2)
        for i, (stride, channels) in enumerate(steps, 1):
            self.add(f"Conv2d_{i}_depthwise", before, before, 3, stride, before)
            before = self.add(f"Conv2d_{i}_pointwise", before, max(8, int(channels * width)), 1, 1)
        self.Logits = nn.Linear(before, classes)

    def add(self, name, inputs, outputs, kernel, stride, groups=1):
        self.add_module(name, nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False))
        self.get_submodule(name).BatchNorm = nn.BatchNorm2d(outputs)
        return outputs

    def forward(self, x):
        for name, module in self.named_children():
            if name != "Logits":
                x = F.relu(module.BatchNorm(module(x)))
        return self.Logits(x.mean([2, 3]))


TENSORFLOW_NAMES = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance",
                    "num_batches_tracked": "num_batches"}


def tensors_of(module):
    """state_dict in Lockstep's names, a tied weight once."""
    parameters = {name for name, _ in module.named_parameters()}
    buffers = {name for name, _ in module.named_buffers()}

    def renamed(name):
        first, last = name.rsplit(".", 1) if "." in name else ("", name)
        return f"{first}.{TENSORFLOW_NAMES[last]}" if first.endswith(".BatchNorm") else name
    return {renamed(name): tensor for name, tensor in module.state_dict(keep_vars=True).items() if name in parameters | buffers}


def stirred(module, seed=0):
    """Changes all values of the network, so that none is as at the start; signals neither fade nor grow."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in tensors_of(module).values():
            if not tensor.is_floating_point():
                tensor.fill_(3)
            elif tensor.dim() >= 2:
                tensor.normal_(0, math.sqrt(2 / tensor[0].numel()), generator=generator)
            else:
                tensor.add_(torch.rand(tensor.shape, generator=generator), alpha=0.1)
    return module


class Driver:
    """Lockstep's network, sent the module's tensors by name."""

    def __init__(self, section, module, inputs, factors, classes, *arguments):
        shape = ",".join(map(str, inputs.shape[1:]))
        self.process = subprocess.Popen([DRIVER, section, shape, str(classes), DTYPES[inputs.dtype], *arguments],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.shapes = {}
        for item in self.process.stdout.readline().decode().strip().split(";")[:-1]:
            name, *extents = item.split()
            self.shapes[name] = [int(extent) for extent in extents]
        tensors = tensors_of(module)
        assert set(self.shapes) == set(tensors), set(self.shapes) ^ set(tensors)
        assert all(self.shapes[name] == list(tensors[name].shape) for name in tensors)
        for name in self.shapes:
            self.write(tensors[name])
        self.write(torch.tensor(len(inputs)), inputs, torch.tensor(factors.numel()), factors)
        self.process.stdin.close()

    def write(self, *tensors):
        for tensor in tensors:
            self.process.stdin.write(tensor.detach().contiguous().numpy().data)

    def read(self, shape, dtype=np.float32):
        data = np.empty(shape, dtype)
        assert self.process.stdout.readinto(data.data.cast("B")) == data.nbytes, "the driver ended"
        return torch.from_numpy(data)

    def close(self):
        self.process.stdout.close()
        assert self.process.wait(timeout=60) == 0


def images(count, extent=32):
    return torch.randn([count, 3, extent, extent], generator=torch.Generator().manual_seed(1))


def tokens(count, length, vocabulary):
    return torch.randint(vocabulary, [count, length], generator=torch.Generator().manual_seed(1))


def thin_vgg(vgg, hidden):
    """A VGG with a smaller head, since the original's has 100 million weights."""
    for place, inputs in ((0, 512 * 7 * 7), (3, hidden), (6, hidden)):
        vgg.classifier[place] = nn.Linear(inputs, hidden if place < 6 else vgg.classifier[6].out_features)
    return vgg


def cifar_resnet(resnet):
    resnet.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    resnet.maxpool = nn.Identity()
    return resnet


def factors_like(outputs):
    """So that each output has a share of its own in the loss."""
    return torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))


class Networks(unittest.TestCase):
    def check(self, section, module, inputs, classes):
        stirred(module)
        module.eval()
        with torch.no_grad():
            evaluated = module(inputs)
        spread = evaluated.flatten(0, -2).std(0).max() / evaluated.abs().max()
        self.assertGreater(spread, 0.02, "the outputs say little of the layers")
        driver = Driver(section, module, inputs, factors_like(evaluated), classes)
        worst = {"evaluation": self.near(driver.read(evaluated.shape), evaluated, 1e-5)}

        module.train()
        trained = module(inputs)
        (trained * factors_like(trained)).sum().backward()
        worst["training"] = self.near(driver.read(trained.shape), trained, 1e-5)
        tensors = tensors_of(module)
        for name, shape in driver.shapes.items():
            if not isinstance(tensors[name], nn.Parameter):
                continue
            worst["gradients"] = max(worst.get("gradients", 0), self.near(driver.read(shape), tensors[name].grad, 1e-4, name))
        for name, shape in driver.shapes.items():
            if isinstance(tensors[name], nn.Parameter):
                continue
            found = driver.read(shape, np.float32 if tensors[name].is_floating_point() else np.int64)
            worst["buffers"] = max(worst.get("buffers", 0), self.near(found, tensors[name], 1e-5, name))
        driver.close()
        print(f"{section}: largest differences: " + ", ".join(f"{kind} {value:.1e}" for kind, value in worst.items()))

    def near(self, found, wanted, tolerance, what="outputs"):
        error = ((found.double() - wanted.detach().double()).abs().max() / wanted.detach().abs().max().clamp_min(1e-30)).item()
        self.assertLessEqual(error, tolerance, what)
        return error

    def test_resnet18(self):
        self.check("{type: resnet18}", torchvision.models.resnet18(num_classes=7), images(6, 64), 7)

    def test_resnet18_for_small_images(self):
        self.check("{type: resnet18, stem: cifar}", cifar_resnet(torchvision.models.resnet18(num_classes=7)), images(4), 7)

    def test_resnet50(self):
        self.check("{type: resnet50}", torchvision.models.resnet50(num_classes=7), images(6, 64), 7)

    def test_vgg11(self):
        self.check("{type: vgg11, dropout: 0, hidden: 96}", thin_vgg(torchvision.models.vgg11(num_classes=7, dropout=0, init_weights=False), 96), images(4), 7)

    def test_vgg16(self):
        self.check("{type: vgg16, dropout: 0, hidden: 64}", thin_vgg(torchvision.models.vgg16(num_classes=7, dropout=0, init_weights=False), 64), images(2, 64), 7)

    def test_vit(self):
        vit = torchvision.models.VisionTransformer(image_size=32, patch_size=8, num_layers=3, num_heads=4, hidden_dim=48, mlp_dim=64,
                                                   num_classes=7)
        self.check("{type: vit, patch_size: 8, num_layers: 3, num_heads: 4, hidden_dim: 48, mlp_dim: 64}", vit, images(4), 7)

    def test_gpt(self):
        self.check("{type: gpt, layers: 3, heads: 4, width: 48}", Gpt(31, 16, 3, 4, 48), tokens(4, 16, 31), 31)

    def test_gpt_without_biases(self):
        self.check("{type: gpt, layers: 2, heads: 2, width: 32, bias: false}", Gpt(31, 16, 2, 2, 32, bias=False), tokens(4, 16, 31), 31)

    def test_mobilenet(self):
        self.check("{type: mobilenet_v1, width_multiplier: 0.25}", ThinMobileNet(0.25, 7), images(6, 64), 7)


def time_pairs(section, module, inputs, classes, pairs=5, passes=6):
    """Medians of as many processes on each side, in turns, in seconds of the processor, which other processes disturb
    less than the clock; the first two passes warm up."""
    module.train()
    factors = factors_like(module(inputs))

    def ours():
        driver = Driver(section, module, inputs, factors, classes, str(passes + 2))
        seconds = [driver.read([1], np.float64).item() for _ in range(passes + 2)]
        driver.close()
        return statistics.median(seconds[2:])

    def pytorchs():
        seconds = []
        for _ in range(passes + 2):
            begin = time.process_time()
            module.zero_grad()
            (module(inputs) * factors).sum().backward()
            seconds.append(time.process_time() - begin)
        return statistics.median(seconds[2:])

    found = [(ours(), pytorchs()) for _ in range(pairs)]
    lockstep, pytorch = (statistics.median(side) for side in zip(*found))
    ratios = sorted(b / a for a, b in found)
    print(f"{section}: Lockstep {lockstep * 1e3:.1f} ms, PyTorch {pytorch * 1e3:.1f} ms, PyTorch by Lockstep "
          f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--time"]:
        time_pairs("{type: gpt, layers: 6, heads: 6, width: 384}", Gpt(65, 64, 6, 6, 384), tokens(8, 64, 65), 65, passes=4)
        time_pairs("{type: resnet18}", torchvision.models.resnet18(num_classes=10), images(32), 10)
        time_pairs("{type: resnet18, stem: cifar}", cifar_resnet(torchvision.models.resnet18(num_classes=10)), images(32), 10, passes=1)
    else:
        unittest.main()
