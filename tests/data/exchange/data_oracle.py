#!/usr/bin/env python3
"""Differential test of every format of docs/data.md: data_oracle.py READ_SAMPLES

Each case writes files, reads them with the program that defines the format (TensorFlow, torchvision, PIL, numpy, safetensors,
Python's csv) and compares values and order. The naming of archives follows webdataset 1.0.2, whose two rules are below.
"""
import csv
import io
import pathlib
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zlib

import numpy as np
import tensorflow as tf
from PIL import Image
from safetensors.numpy import save_file

SOURCE = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCE / "tests/support"))
from cpu_torch import torch  # noqa: E402
import torchvision  # noqa: E402

READ_SAMPLES = sys.argv.pop()


def photo(height, width, channels=3, seed=0, noise=8):
    """Waves of several lengths with some noise: what a filter treats wrongly shows."""
    y, x = np.mgrid[:height, :width]
    planes = [128 + 60 * np.sin(x / (7 + c) + y / 11) + 40 * np.cos(y / (5 + c)) for c in range(channels)]
    noises = np.random.default_rng(seed).normal(0, noise, (height, width, channels))
    return np.clip(np.stack(planes, -1) + noises, 0, 255).astype(np.uint8)


def encoded(pixels, kind, **options):
    out = io.BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels.squeeze())).save(out, kind, **options)
    return out.getvalue()


def example(**features):
    def feature(value):
        if isinstance(value, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        if isinstance(value[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=value))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=value))
    named = {name.replace("__", "/"): feature(value) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=named)).SerializeToString()


def webdataset_fields(path):
    """The samples of an archive as webdataset's tar_file_iterator, base_plus_ext and group_by_keys give them."""
    samples = []
    with tarfile.open(path) as tar:
        for member in tar:
            name = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", member.name)
            if not member.isreg() or re.match(r"__[^/]*__($|/)", member.name) or name is None:
                continue
            key, field = name[1], name[2].lower()
            if not samples or samples[-1]["__key__"] != key:
                samples.append({"__key__": key})
            if field in samples[-1]:
                raise ValueError(f"duplicate file name in tar file {field}")
            samples[-1][field] = tar.extractfile(member).read()
    return samples


def write_tar(path, members):
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            facts = tarfile.TarInfo(name)
            facts.size = len(content)
            tar.addfile(facts, io.BytesIO(content))


def with_chunk(png, name, body):
    """A chunk behind the header of a PNG."""
    return png[:33] + struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) + png[33:]


def rgb(content):
    """[3, H, W], 0 to 255, as torchvision's default loader gives it."""
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).transpose(2, 0, 1)


class DataOracle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.samples = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.samples.cleanup)
        cls.reader = subprocess.Popen([READ_SAMPLES, cls.samples.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls.reader.communicate)  # ends its input

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def read(self, section, target_type=np.int64, input_type=np.float32):
        self.reader.stdin.write(f"{section}\n")
        self.reader.stdin.flush()
        self.assertEqual(self.reader.stdout.readline(), "done\n")
        folder = pathlib.Path(self.samples.name)
        shape = [int(size) for size in (folder / "shape.txt").read_text().split()]
        return np.fromfile(folder / "inputs.bin", input_type).reshape(shape), np.fromfile(folder / "targets.bin", target_type)

    def classes(self):
        return (pathlib.Path(self.samples.name) / "classes.txt").read_text().split("\n")

    def fault(self, section):
        """Exit code and message of a section that is refused."""
        self.reader.stdin.write(f"{section}\n")
        self.reader.stdin.flush()
        answer = self.reader.stdout.readline()
        self.assertNotEqual(answer, "done\n")
        return answer

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def image(self, name, content, options=""):
        """The pixels of one image, 0 to 255, [H, W, C]."""
        folder = self.folder / "set" / "only"
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        (folder / name).write_bytes(content)
        inputs, _ = self.read(f"{{type: files, path: '{folder.parent}'{options}}}")
        return 255 * inputs[0].transpose(1, 2, 0)

    def close(self, ours, theirs, most, mean=None):
        difference = np.abs(ours - np.asarray(theirs, np.float64).reshape(ours.shape))
        self.assertLessEqual(difference.max(), most)
        self.assertLessEqual(difference.mean(), mean if mean is not None else most)

    def test_resize_as_pil_does(self):
        for height, width, size in ((375, 500, 224), (375, 500, 96), (40, 60, 64), (33, 17, 16), (100, 100, 99)):
            pixels = photo(height, width)
            theirs = Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR)
            with self.subTest(size=(height, width, size)):
                self.close(self.image("a.png", encoded(pixels, "PNG"), f", image_size: {size}"), theirs, 1.01, 0.35)
        grey = photo(50, 70, 1)
        theirs = Image.fromarray(grey[..., 0]).resize((31, 21), Image.Resampling.BILINEAR)
        self.close(self.image("a.png", encoded(grey, "PNG"), ", image_size: [21, 31], channels: 1"), theirs, 1.01, 0.35)

    def test_the_middle_is_cut_out(self):
        pixels = photo(60, 100)
        theirs = Image.fromarray(pixels).resize((30, 30), Image.Resampling.BILINEAR, box=(20, 0, 80, 60))
        self.close(self.image("a.png", encoded(pixels, "PNG"), ", image_size: 30, fit: crop"), theirs, 1.01)

    def test_jpeg_as_pil_decodes_it(self):
        pixels = photo(61, 83)
        for options in ({}, {"subsampling": 0}, {"progressive": True}, {"quality": 30}):
            content = encoded(pixels, "JPEG", **options)
            with self.subTest(options=options):
                self.close(self.image("a.jpg", content), Image.open(io.BytesIO(content)), 4, 0.1)  # codecs differ by a little
        grey = encoded(photo(20, 30, 1), "JPEG")
        self.close(self.image("a.jpg", grey), Image.open(io.BytesIO(grey)).convert("RGB"), 2, 0.1)
        content = encoded(pixels, "JPEG", quality=95)
        self.close(self.image("a.jpg", content, ", channels: 1"), Image.open(io.BytesIO(content)).convert("L"), 4, 0.6)

    def test_jpeg_of_inks(self):
        content = encoded(Image.fromarray(photo(24, 24)).convert("CMYK"), "JPEG", quality=95)
        self.close(self.image("a.jpg", content), Image.open(io.BytesIO(content)).convert("RGB"), 6, 0.7)

    def test_a_jpeg_that_shrinks_by_half_and_more(self):
        content = encoded(photo(375, 500, noise=0), "JPEG", quality=92)
        theirs = Image.open(io.BytesIO(content)).resize((96, 96), Image.Resampling.BILINEAR)
        self.close(self.image("a.jpg", content, ", image_size: 96"), theirs, 5, 0.7)  # half of it inside the codec

    def test_png_of_every_kind(self):
        pixels = photo(30, 40)
        alpha = np.dstack([pixels, photo(30, 40, 1, seed=3)])
        palette = Image.fromarray(pixels).quantize(64)
        self.close(self.image("a.png", encoded(alpha, "PNG")), pixels, 0.01)
        self.close(self.image("a.png", encoded(palette, "PNG")), palette.convert("RGB"), 0.01)
        self.close(self.image("a.png", encoded(Image.fromarray(pixels[..., 0] > 128), "PNG"), ", channels: 1"),
                   255 * (pixels[..., 0] > 128), 0.01)
        deep = (pixels[..., 0].astype(np.uint16) << 8) | 0x40
        self.close(self.image("a.png", encoded(Image.fromarray(deep), "PNG"), ", channels: 1"), np.round(deep / 257), 0.01)
        self.close(self.image("a.png", encoded(pixels, "PNG"), ", channels: 1"), Image.fromarray(pixels).convert("L"), 1.01)
        plain = tf.io.encode_png(pixels).numpy()
        self.close(self.image("a.png", plain), pixels, 0.01)

    def test_normalised_as_defined(self):
        pixels = photo(8, 8)
        ours = self.image("a.png", encoded(pixels, "PNG"), ", mean: [0.5, 0.4, 0.3], std: [0.2, 0.3, 0.4]") / 255
        np.testing.assert_allclose(ours, (pixels / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.4], atol=2e-6)

    def test_records_that_tensorflow_writes(self):
        path = self.folder / "r.tfrecord"
        images = [photo(20, 24, seed=i) for i in range(3)]
        with tf.io.TFRecordWriter(str(path)) as writer:
            for i, pixels in enumerate(images):
                writer.write(example(image__encoded=tf.io.encode_png(pixels).numpy(), image__class__label=[i * 4],
                                     raw=pixels.tobytes(), numbers=[0.5 * i, 2.0, -1.0], other=[1, 2, 3]))
        ours, labels = self.read(f"{{type: files, path: '{path}', num_classes: 9}}")
        self.assertEqual(labels.tolist(), [0, 4, 8])
        theirs = np.stack(images).transpose(0, 3, 1, 2)
        np.testing.assert_allclose(255 * ours, theirs, atol=1e-4)
        ours, labels = self.read(f"{{type: tfrecord, path: '{path}', image_feature: raw, record_shape: [3, 20, 24], num_classes: 9}}")
        np.testing.assert_allclose(255 * ours, theirs, atol=1e-4)
        ours, _ = self.read(f"{{type: tfrecord, path: '{path}', image_feature: numbers, num_classes: 9}}")
        np.testing.assert_array_equal(ours, np.float32([[0, 2, -1], [0.5, 2, -1], [1, 2, -1]]))
        _, values = self.read(f"{{type: tfrecord, path: '{path}', label_feature: numbers}}", np.float32)
        np.testing.assert_array_equal(values, np.float32([0, 2, -1, 0.5, 2, -1, 1, 2, -1]))

    def test_records_of_ours(self):
        path = self.folder / "ours.tfrecord"
        subprocess.run([READ_SAMPLES, "--write-tfrecord", path], check=True)
        features = {"raw": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([2], tf.int64),
                    "values": tf.io.FixedLenFeature([1], tf.float32)}
        read = [tf.io.parse_single_example(record, features) for record in tf.data.TFRecordDataset(str(path))]
        self.assertEqual(len(read), 20)
        for i, one in enumerate(read):
            self.assertEqual((one["raw"].numpy(), one["label"].numpy().tolist(), one["values"].numpy()[0]), (b"x" * i, [i, -i], i / 2))

    def test_arrays_of_every_type(self):
        labels = np.arange(4) % 3
        np.save(self.folder / "y.npy", labels)
        for kind in ("float16", "float32", "float64"):
            values = np.random.default_rng(1).normal(size=(4, 2, 3)).astype(kind)
            np.save(self.folder / "x.npy", values)
            ours, targets = self.read(f"{{type: npy, path: '{self.folder}/x.npy', targets: '{self.folder}/y.npy'}}")
            np.testing.assert_array_equal(ours, values.astype(np.float32))
            self.assertEqual(targets.tolist(), labels.tolist())
            save_file({"in": values, "out": labels.astype(np.int32)}, self.folder / "s.safetensors")
            ours, targets = self.read(f"{{type: files, path: '{self.folder}/s.safetensors', inputs: in, targets: out}}")
            np.testing.assert_array_equal(ours, values.astype(np.float32))
            self.assertEqual(targets.tolist(), labels.tolist())
        pixels = np.stack([photo(5, 6, seed=i) for i in range(4)])
        np.save(self.folder / "x.npy", pixels)
        ours, _ = self.read(f"{{type: npy, path: '{self.folder}/x.npy', targets: '{self.folder}/y.npy', layout: hwc}}")
        np.testing.assert_allclose(255 * ours, pixels.transpose(0, 3, 1, 2), atol=1e-4)

    def test_arrays_of_truths_and_tokens(self):
        truths = np.random.default_rng(2).integers(0, 2, (3, 4, 5)).astype(bool)
        labels = np.array([True, False, True])
        np.save(self.folder / "x.npy", truths)
        np.save(self.folder / "y.npy", labels)
        files = f"path: '{self.folder}/x.npy', targets: '{self.folder}/y.npy'"
        ours, targets = self.read(f"{{type: npy, {files}}}")
        np.testing.assert_array_equal(ours, truths.astype(np.float32))
        self.assertEqual(targets.tolist(), [1, 0, 1])
        for kind in ("int8", "int16", "uint16", "int32", "uint32", "int64"):
            tokens = np.random.default_rng(3).integers(0, 50, (3, 7)).astype(kind)
            targets = np.roll(tokens.astype(np.int64), -1, 1)
            targets[:, 4:] = -100  # padding, as a collator of transformers writes it
            np.save(self.folder / "x.npy", tokens)
            np.save(self.folder / "y.npy", targets)
            with self.subTest(kind=kind):
                ours, read = self.read(f"{{type: npy, {files}, num_classes: 50}}", input_type=np.int64)
                np.testing.assert_array_equal(ours, tokens)
                np.testing.assert_array_equal(read.reshape(3, 7), targets)
        for wrong, row, place in ((50, 1, 2), (-1, 2, 0), (-101, 0, 6)):
            for name, values in (("x.npy", tokens), ("y.npy", targets)):
                np.save(self.folder / "x.npy", tokens)
                np.save(self.folder / "y.npy", targets)
                changed = values.astype(np.int64)
                changed[row, place] = wrong
                np.save(self.folder / name, changed)
                with self.subTest(wrong=wrong, name=name):
                    fault = self.fault(f"{{type: npy, {files}, num_classes: 50}}")
                    self.assertRegex(fault, rf"^65 .*{name}: row {row}: sample {row}: .* token {wrong} at place {place} is out of range")

    def test_windows_of_tokens(self):
        for kind, most in (("uint16", 65000), ("uint32", 70000)):
            tokens = np.random.default_rng(4).integers(0, most, 101).astype(kind)
            tokens.tofile(self.folder / "t.bin")
            ours, targets = self.read(f"{{type: tokens, path: '{self.folder}/t.bin', context: 10, token_type: {kind}}}", input_type=np.int64)
            np.testing.assert_array_equal(ours, tokens[:100].reshape(10, 10))
            np.testing.assert_array_equal(targets, tokens[1:101])

    def test_idx_and_cifar(self):
        images = np.random.default_rng(5).integers(0, 256, (4, 6, 7), np.uint8)
        labels = np.array([3, 0, 9, 1], np.uint8)
        self.write("a-images-idx3-ubyte", struct.pack(">BBBBIII", 0, 0, 8, 3, *images.shape) + images.tobytes())
        self.write("a-labels-idx1-ubyte", struct.pack(">BBBBI", 0, 0, 8, 1, 4) + labels.tobytes())
        read = torchvision.datasets.mnist.read_sn3_pascalvincent_tensor
        ours, targets = self.read(f"{{type: files, path: '{self.folder}/a-images-idx3-ubyte'}}")
        np.testing.assert_allclose(255 * ours[:, 0], read(str(self.folder / "a-images-idx3-ubyte")).numpy(), atol=1e-4)
        np.testing.assert_array_equal(targets, read(str(self.folder / "a-labels-idx1-ubyte")).numpy())
        rows = np.random.default_rng(6).integers(0, 256, (5, 3074), np.uint8)
        rows[:, 0] %= 20
        rows[:, 1] %= 100
        self.write("train.bin", rows.tobytes())
        ours, targets = self.read(f"{{type: files, path: '{self.folder}/train.bin'}}")
        np.testing.assert_array_equal(targets, rows[:, 1])  # the fine label
        np.testing.assert_allclose(255 * ours, rows[:, 2:].reshape(5, 3, 32, 32), atol=1e-4)

    def test_csv_as_python_reads_it(self):
        lines = [["a, b.png", 2], ['say "x".png', 0], ["deep/c.png", 1]]
        for i, (name, _) in enumerate(lines):
            self.write(name, encoded(photo(4, 4, seed=i), "PNG"))
        with open(self.folder / "s.csv", "w", newline="", encoding="utf-8-sig") as file:
            csv.writer(file).writerows([["file", "class"], *lines])
        with open(self.folder / "s.csv", newline="", encoding="utf-8-sig") as file:
            theirs = list(csv.reader(file))[1:]
        ours, labels = self.read(f"{{type: files, path: '{self.folder}/s.csv'}}")
        self.assertEqual(labels.tolist(), [int(label) for _, label in theirs])
        np.testing.assert_allclose(255 * ours, np.stack([rgb((self.folder / name).read_bytes()) for name, _ in theirs]), atol=1e-4)

    def write_classes(self, folder, names, endings=("png", "PNG", "jpeg", "png")):
        for number, name in enumerate(names):
            for i, ending in enumerate(endings):
                kind = "JPEG" if ending.lower().startswith("jp") else "PNG"
                image = Image.fromarray(photo(6, 7, seed=10 * number + i))
                if i == 3:
                    image = image.quantize(8)
                self.write(f"{folder}/{name}/{i} x.{ending}", encoded(image, kind))

    def same_folder(self, path, ours, labels):
        theirs = torchvision.datasets.ImageFolder(str(path))
        self.assertEqual(self.classes(), theirs.classes)
        self.assertEqual(labels.tolist(), theirs.targets)
        for row, (image, _) in zip(ours, theirs, strict=True):
            self.close(255 * row, np.asarray(image).transpose(2, 0, 1), 4, 0.2)

    def test_folders_as_torchvision_reads_them(self):
        self.write_classes("set", ["zebra", "Ant", "ant", "b-c", "b c", "été"])
        self.write("set/ant/notes.txt", b"no image")
        self.write("set/readme.md", b"no class")
        section = f"{{type: files, path: '{self.folder}/set'}}"
        self.same_folder(self.folder / "set", *self.read(section))
        for hidden in ("ant/._0 x.png", "ant/.ipynb_checkpoints/0 x.png", ".trash/0.png"):
            self.write(f"set/{hidden}", b"\0")  # those torchvision reads, and fails
        _, labels = self.read(section)
        self.assertEqual(len(labels), 24)
        for name in ("a.webp", "b.webp"):
            self.write(f"set/none/{name}", encoded(photo(6, 7), "WEBP"))
        self.assertRegex(self.fault(section), r"^66 .*'none' has no \.jpg, \.jpeg or \.png file, but 2 \.webp")
        self.write("set/none/c.png", encoded(photo(6, 7), "PNG"))
        self.assertEqual(len(self.read(section)[1]), 25)
        (self.folder / "set/void").mkdir()
        self.assertRaises(FileNotFoundError, torchvision.datasets.ImageFolder, str(self.folder / "set"))
        self.assertRegex(self.fault(section), r"^66 .*'void' has no .*but is empty")

    def test_names_give_an_evaluation_the_numbers_of_training(self):
        self.write_classes("train", ["a", "b", "c"])
        self.write_classes("some", ["c", "b"])
        self.write_classes("other", ["b", "d", "e"])
        numbers = torchvision.datasets.ImageFolder(str(self.folder / "train")).class_to_idx
        train = f"{{type: image_folder, path: '{self.folder}/train'}}"
        for mode in ("eval", "infer"):
            self.read(train)
            _, labels = self.read(f"{mode} {{type: image_folder, path: '{self.folder}/some'}}")
            self.assertEqual(labels.tolist(), 4 * [numbers["b"]] + 4 * [numbers["c"]])
            self.assertEqual(self.classes(), ["a", "b", "c"])
        self.read(train)
        self.assertRegex(self.fault(f"eval {{type: image_folder, path: '{self.folder}/other'}}"),
                         r"^78 .*other/d/0 x\.png: contains folders of the classes d, e; data\.train has the classes a, b, c")
        self.read(train)
        _, labels = self.read(f"infer {{type: image_folder, path: '{self.folder}/other'}}")
        self.assertEqual(len(labels), 0)  # images to be answered

    def test_archives_as_webdataset_groups_them(self):
        images = [encoded(photo(6, 6, seed=i), "PNG") for i in range(6)]
        path = self.folder / "s.tar"
        write_tar(path, [("__meta__/9.png", images[5]), ("readme", b"x"), (f"{'deep/' * 30}0.png", images[0]), (f"{'deep/' * 30}0.cls", b"4"),
                         ("1.seg.png", images[5]), ("1.PNG", images[1]), ("1.json", b"{}"), ("1.Cls", b"0\n"),
                         ("a.b/2.cls", b"2"), ("a.b/2.png", images[2]), ("a.b/2.mask.jpg", images[5]),
                         ("only.json", b"{}"), ("._3.png", b"x"), ("3.png", images[3]), ("3.cls", b" 1\t\n")])
        theirs = [sample for sample in webdataset_fields(path) if "cls" in sample]
        ours, labels = self.read(f"{{type: files, path: '{path}'}}")
        self.assertEqual(labels.tolist(), [int(sample["cls"]) for sample in theirs])
        np.testing.assert_allclose(255 * ours, np.stack([rgb(sample["png"]) for sample in theirs]), atol=1e-4)
        for twice in (("1.png", "1.PNG"), ("1.cls", "1.CLS")):
            members = [("1.png", images[0]), ("1.cls", b"0"), *((name, b"0") for name in twice[1:])]
            write_tar(path, members)
            self.assertRaises(ValueError, webdataset_fields, path)
            self.assertRegex(self.fault(f"{{type: webdataset, path: '{path}'}}"), r"^65 .*offset \d+.*the sample '1' has another .* at offset \d+")
        write_tar(path, [("1.png", images[0]), ("1.cls", b"0"), ("1.jpg", images[0])])
        self.assertRegex(self.fault(f"{{type: webdataset, path: '{path}'}}"), r"^65 .*1\.jpg: the sample '1' has another image at offset \d+: 1\.png")
        write_tar(path, [(f"img.{i:03}.{ending}", content) for i in range(4) for ending, content in (("png", images[i]), ("cls", b"1"))])
        self.assertEqual([sorted(sample) for sample in webdataset_fields(path)],
                         [sorted(["__key__", *(f"{i:03}.{ending}" for i in range(4) for ending in ("png", "cls"))])])
        self.assertRegex(self.fault(f"{{type: webdataset, path: '{path}'}}"), r"^65 .*img\.000\.png: is the field '000\.png' of the sample 'img'")

    def test_png_with_a_gamma(self):
        pixels = photo(9, 9)
        plain = encoded(pixels, "PNG")
        theirs = Image.fromarray(pixels).convert("L")
        for gamma in (45455, 100000, 22727):
            content = with_chunk(plain, b"gAMA", struct.pack(">I", gamma))
            self.close(self.image("a.png", content, ", channels: 1"), theirs, 0.01)
            self.close(self.image("a.png", content), pixels, 0.01)

    def test_jpeg_with_odd_bytes_between_its_segments(self):
        plain = encoded(photo(16, 16, noise=0), "JPEG", quality=90)
        for marker in (b"\xff\xdb", b"\xff\xc0", b"\xff\xc4", b"\xff\xda"):
            for odd in (b"\x01\x02\x03", b"\xff", b"\xff\x00\x07", b"\x00"):
                at = plain.index(marker)
                content = plain[:at] + odd + plain[at:]
                with self.subTest(marker=marker, odd=odd):
                    theirs = tf.io.decode_jpeg(content, dct_method="INTEGER_ACCURATE").numpy()
                    self.close(self.image("a.jpg", content), theirs, 4, 0.2)


if __name__ == "__main__":
    unittest.main()
