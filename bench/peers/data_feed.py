"""Peers of bench/data: data_feed.py LIBRARY FOLDER answers lines "NAME N" with "result SECONDS" for N batches, on one thread, and
lines "show NAME I" with 97 numbers of sample I, [C, H, W], as "values ..." (as bench/programs/data_feed.cpp does).

After its first word, "ready", it lists what LIBRARY (torch, torchvision, pil, tensorflow) can do.
"""
import io
import itertools
import os
import pathlib
import sys
import time

BATCH, SIZE_CIFAR = 128, 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SOURCE = pathlib.Path(__file__).resolve().parents[2]


def forever(make):
    """Items of make() epoch after epoch."""
    while True:
        yield from make()


def nth(make):
    """Item I of make()."""
    return lambda i: next(itertools.islice(make(), i, None))


def import_torch():
    sys.path.insert(0, str(SOURCE / "tests/support"))
    from cpu_torch import torch
    torch.set_num_threads(1)
    return torch


def cifar_arrays(folder):
    import numpy as np
    return np.load(folder / "x.npy"), np.load(folder / "y.npy")


def torch_feeds(folder):
    torch = import_torch()
    x, y = (torch.from_numpy(array) for array in cifar_arrays(folder))
    y = y.long()
    mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]

    class PerSample(torch.utils.data.Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, i):
            return (x[i].float().div_(255) - mean) / std, y[i]

    def whole_batches():
        order = torch.randperm(len(x))
        for i in range(0, len(x) - BATCH + 1, BATCH):
            rows = order[i:i + BATCH]
            yield x[rows].float().div_(255).sub_(mean).div_(std), y[rows]

    loader = torch.utils.data.DataLoader(PerSample(), batch_size=BATCH, shuffle=True, drop_last=True)
    show = lambda i: PerSample()[i][0]  # noqa: E731
    return {"cifar per sample": (forever(lambda: loader), show), "cifar whole batch": (forever(whole_batches), show)}


def jpeg_files(folder):
    return sorted((folder / "jpeg").glob("*/*.jpg"))


def torchvision_feeds(folder):
    torch = import_torch()
    import torchvision
    from torchvision.transforms.v2 import functional
    files = [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) for path in jpeg_files(folder)]

    def images(size):
        for data in files:
            pixels = torchvision.io.decode_jpeg(data, mode=torchvision.io.ImageReadMode.RGB)
            small = functional.resize(pixels, [size, size], antialias=True)
            yield functional.normalize(functional.to_dtype(small, torch.float32, scale=True), MEAN, STD)

    def decoded():
        for data in files:
            yield torchvision.io.decode_jpeg(data, mode=torchvision.io.ImageReadMode.RGB)

    feeds = {f"jpeg {size}": (forever(lambda size=size: images(size)), nth(lambda size=size: images(size))) for size in (224, 96)}
    return {**feeds, "decode": (forever(decoded), nth(decoded))}


def pil_feeds(folder):
    import numpy as np
    from PIL import Image
    files = [path.read_bytes() for path in jpeg_files(folder)]
    mean, std = np.float32(MEAN), np.float32(STD)

    def images(size):
        for data in files:
            small = Image.open(io.BytesIO(data)).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            yield np.ascontiguousarray(((np.asarray(small, np.float32) / 255 - mean) / std).transpose(2, 0, 1))

    return {f"jpeg {size}": (forever(lambda size=size: images(size)), nth(lambda size=size: images(size))) for size in (224, 96)}


def tensorflow_feeds(folder):
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3")
    import tensorflow as tf
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    features = {"raw": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    mean, std = tf.constant(MEAN, shape=(3, 1, 1)), tf.constant(STD, shape=(3, 1, 1))

    def pixels(raw, shape):
        return (tf.reshape(tf.cast(tf.io.decode_raw(raw, tf.uint8), tf.float32), shape) / 255 - mean) / std

    def one(record):
        example = tf.io.parse_single_example(record, features)
        return pixels(example["raw"], (3, 32, 32)), example["label"]

    def many(records):
        examples = tf.io.parse_example(records, features)
        return pixels(examples["raw"], (-1, 3, 32, 32)), examples["label"]

    def in_order():
        return tf.data.TFRecordDataset(str(folder / "records.tfrecord"))

    def records():
        return in_order().repeat().shuffle(1000).with_options(options)

    def image(size):
        def read(data):
            decoded = tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE")
            small = tf.image.resize(decoded, (size, size), antialias=True)
            return tf.transpose((small / 255 - MEAN) / STD, (2, 0, 1))
        files = tf.data.Dataset.from_tensor_slices([path.read_bytes() for path in jpeg_files(folder)])
        return iter(files.repeat().map(read).with_options(options)), nth(lambda: files.map(read))

    show = nth(lambda: (pixels for pixels, _ in in_order().map(one)))
    return {"records one by one": (iter(records().map(one).batch(BATCH, drop_remainder=True)), show),
            "records by batch": (iter(records().batch(BATCH, drop_remainder=True).map(many)), show),
            "jpeg 224": image(224), "jpeg 96": image(96)}


def numbers(sample):
    """Numbers of a sample, picked as in bench/programs/data_feed.cpp."""
    values = sample.numpy().ravel() if hasattr(sample, "numpy") else sample.ravel()
    return " ".join(f"{float(values[i * (len(values) - 1) // 96]):.7g}" for i in range(97))


def main():
    library, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    feeds = globals()[f"{library}_feeds"](folder)
    print("ready " + "|".join(feeds), flush=True)
    for line in sys.stdin:
        name, count = line.rstrip("\n").rsplit(" ", 1)
        if name.startswith("show "):
            print("values " + numbers(feeds[name.removeprefix("show ")][1](int(count))), flush=True)
            continue
        feed, _ = feeds[name]
        begin = time.perf_counter()
        for _ in range(int(count)):
            next(feed)
        print(f"result {time.perf_counter() - begin:.9f}", flush=True)


if __name__ == "__main__":
    main()
