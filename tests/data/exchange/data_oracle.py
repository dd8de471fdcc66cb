#!/usr/bin/env python3
"""TensorFlow, PIL, numpy and safetensors on the data that we read: data_oracle.py READ_SAMPLES"""
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import tensorflow as tf
from PIL import Image
from safetensors.numpy import save_file

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

    def read(self, section, target_type=np.int64):
        self.reader.stdin.write(f"{section}\n")
        self.reader.stdin.flush()
        self.assertEqual(self.reader.stdout.readline(), "done\n")
        folder = pathlib.Path(self.samples.name)
        shape = [int(size) for size in (folder / "shape.txt").read_text().split()]
        return np.fromfile(folder / "inputs.bin", np.float32).reshape(shape), np.fromfile(folder / "targets.bin", target_type)

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

    def test_an_archive_of_tars(self):
        import tarfile
        with tarfile.open(self.folder / "s.tar", "w", format=tarfile.PAX_FORMAT) as tar:
            for i in range(3):
                for name, content in ((f"{'deep/' * 30}{i}.png", encoded(photo(6, 6, seed=i), "PNG")), (f"{'deep/' * 30}{i}.cls", b"%d" % i)):
                    facts = tarfile.TarInfo(name)
                    facts.size = len(content)
                    tar.addfile(facts, io.BytesIO(content))
        ours, labels = self.read(f"{{type: files, path: '{self.folder}/s.tar'}}")
        self.assertEqual(labels.tolist(), [0, 1, 2])
        np.testing.assert_allclose(255 * ours[2], photo(6, 6, seed=2).transpose(2, 0, 1), atol=1e-4)


if __name__ == "__main__":
    unittest.main()
