"""The networks of bench/inference that Lockstep itself does not export as TorchScript, with random weights.

usage: infer_networks.py NAME FOLDER    writes FOLDER/model.pt, traced, and FOLDER/model.onnx: `inputs` to `logits`, of any batch
NAME: resnet18 (torchvision's), mobilenet_v1 (as in the tests)
"""
import pathlib
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "tests/support"), str(SOURCE / "tests/integration/programs/python")]
from cpu_torch import torch  # noqa: E402

NUM_CLASSES = 1000


def resnet18():
    import torchvision
    return torchvision.models.resnet18(num_classes=NUM_CLASSES)


def mobilenet_v1():
    from mobilenet_weights import MobileNetV1
    return MobileNetV1(1.0, NUM_CLASSES)


def with_statistics(network):
    """The network with statistics of a few random images, so that outputs neither fade nor grow without bound."""
    for part in network.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = None  # a plain mean
    with torch.no_grad():
        network.train()(torch.randn(16, 3, 96, 96))
    return network.eval()


def main():
    name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    torch.manual_seed(5)
    network = with_statistics({"resnet18": resnet18, "mobilenet_v1": mobilenet_v1}[name]())
    images = torch.zeros(2, 3, 224, 224)
    with torch.no_grad():
        torch.jit.trace(network, images).save(folder / "model.pt")
        torch.onnx.export(network, images, folder / "model.onnx", dynamo=False, input_names=["inputs"], output_names=["logits"],
                          dynamic_axes={"inputs": {0: "batch"}, "logits": {0: "batch"}})


if __name__ == "__main__":
    main()
