"""A whole inference of images in Python: the peer of bench/programs/infer_stages.cpp.

usage: infer_images.py MODEL.pt FOLDER OUTPUTS SIZE BATCH WORKERS THREADS

A DataLoader with WORKERS processes (0: in this one) reads FOLDER/*/*.jpg in the order of their names, torchvision decodes and resizes;
torch.jit with optimize_for_inference computes on THREADS threads; each batch's outputs are appended to OUTPUTS as float32. Prints
seconds of an iteration, without the first ones.
"""
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/support"))
from cpu_torch import torch  # noqa: E402
import torchvision  # noqa: E402
from torchvision.transforms.v2 import functional  # noqa: E402

WARM = 5
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Images(torch.utils.data.Dataset):
    def __init__(self, folder, size):
        self.paths, self.size = sorted(folder.glob("*/*.jpg")), size

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        data = torchvision.io.read_file(str(self.paths[i]))
        pixels = torchvision.io.decode_jpeg(data, mode=torchvision.io.ImageReadMode.RGB)
        small = functional.resize(pixels, [self.size, self.size], antialias=True)
        return functional.normalize(functional.to_dtype(small, torch.float32, scale=True), MEAN, STD)


def main():
    model, folder, outputs, size, batch, workers, threads = sys.argv[1:]
    loader = torch.utils.data.DataLoader(Images(pathlib.Path(folder), int(size)), batch_size=int(batch), num_workers=int(workers))
    torch.set_num_threads(int(threads))
    torch.set_flush_denormal(True)
    torch.set_grad_enabled(False)
    module = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.load(model).eval()))
    begin, number = 0, -1
    with open(outputs, "wb") as file:
        for number, images in enumerate(loader):
            module(images).numpy().tofile(file)
            if number + 1 == WARM:
                begin = time.perf_counter()
    print(f"{(time.perf_counter() - begin) / max(1, number + 1 - WARM):.9f}")


if __name__ == "__main__":
    main()
