"""The networks of bench/inference that Lockstep itself does not export as TorchScript, with random weights.

usage: infer_networks.py NAME FOLDER    writes FOLDER/model.pt, traced, and FOLDER/model.onnx: `inputs` to `logits`, of any batch;
and FOLDER/kept: kept weights of its layers, and their multiply-adds for one sample
NAME: resnet18, resnet50 (torchvision's), mobilenet_v1 (as in the tests), mlp (784-4096-4096-10); with -90, that percentage of the weights
of each convolution and linear layer is pruned at random (resnet50: not the first; mobilenet_v1: of 1x1 convolutions only); with -95-int8, in blocks of
four inputs, model.onnx is quantized by onnxruntime, and FOLDER/float.onnx is not
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


def resnet50():
    import torchvision
    return torchvision.models.resnet50(num_classes=NUM_CLASSES)


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(784, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10))


def keep(weight, share, block):
    """A mask that keeps a share of the blocks of so many inputs."""
    outputs, inputs, *kernel = weight.shape
    return (torch.rand(outputs, -(-inputs // block), *kernel) < share).repeat_interleave(block, 1)[:, :inputs]


def prune(network, percent, only_1x1, block):
    for part in network.modules():
        weight = getattr(part, "weight", None)
        if weight is None or weight.dim() < 2 or weight.shape[1] <= 3 or (only_1x1 and weight.shape[2:] != (1, 1)):
            continue
        with torch.no_grad():
            weight.mul_(keep(weight, 1 - percent / 100, block)).mul_((1 - percent / 100) ** -0.5)


def kept_work(network, inputs):
    """Kept weights of convolutions and linear layers, and their multiply-adds for these inputs."""
    counts = [0, 0]

    def count(part, _, outputs):
        kept = int(part.weight.count_nonzero())
        counts[0] += kept
        counts[1] += kept * outputs.numel() // part.weight.shape[0]

    hooks = [part.register_forward_hook(count) for part in network.modules() if isinstance(part, (torch.nn.Conv2d, torch.nn.Linear))]
    with torch.no_grad():
        network(inputs)
    for hook in hooks:
        hook.remove()
    return counts


def with_statistics(network):
    """The network with statistics of a few random images, so that outputs neither fade nor grow without bound."""
    for part in network.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = None  # a plain mean
    with torch.no_grad():
        network.train()(torch.randn(16, 3, 96, 96) if any(isinstance(part, torch.nn.Conv2d) for part in network.modules()) else torch.randn(16, 784))
    return network.eval()


def quantize(file, quantized):
    """Writes a file with QuantizeLinear and DequantizeLinear, scales from random images, a scale for each output of a weight."""
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Images(quantization.CalibrationDataReader):
        left = 4

        def get_next(self):
            self.left -= 1
            return {"inputs": torch.randn(2, 3, 224, 224).numpy()} if self.left >= 0 else None

    prepared = file.with_suffix(".prepared.onnx")
    quant_pre_process(file, prepared)  # folds batch normalisation
    quantization.quantize_static(prepared, quantized, Images(), per_channel=True)
    model = onnx.load(quantized)
    del model.opset_import[1:]  # newer than some engines know, and unused
    onnx.save(model, quantized)


def main():
    name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    torch.manual_seed(5)
    kind, _, percent = name.partition("-")
    percent, _, int8 = percent.partition("-")
    network = {"resnet18": resnet18, "resnet50": resnet50, "mobilenet_v1": mobilenet_v1, "mlp": mlp}[kind]()
    prune(network, int(percent or 0), kind == "mobilenet_v1", 4 if int8 else 1)
    network = with_statistics(network)
    images = torch.zeros(2, 784) if kind == "mlp" else torch.zeros(2, 3, 224, 224)
    (folder / "kept").write_text("{} {}".format(*kept_work(network, images[:1])))
    with torch.no_grad():
        torch.jit.trace(network, images).save(folder / "model.pt")
        file = folder / ("float.onnx" if int8 else "model.onnx")
        torch.onnx.export(network, images, file, dynamo=False, opset_version=17, input_names=["inputs"], output_names=["logits"],
                          dynamic_axes={"inputs": {0: "batch"}, "logits": {0: "batch"}})
        if int8:
            quantize(file, folder / "model.onnx")


if __name__ == "__main__":
    main()
