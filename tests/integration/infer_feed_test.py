"""`lockstep infer` is fed with files that have no targets."""
import json
import re
import shlex
import struct
import sys
import unittest

from harness import SOURCE
from inference import InferTest
from stored import stored

sys.path.insert(0, str(SOURCE / "tests/support"))
from data_files import npy, png  # noqa: E402

COUNT = 6


class InferFeed(InferTest):
    def write_files(self):
        (self.folder / "runs").mkdir()
        (self.folder / "runs/digits").symlink_to(self.digits().folder)
        (self.folder / "photos").mkdir()
        for i in range(COUNT):
            (self.folder / f"photos/{i}.png").write_bytes(png(side=16, shift=i))
        values = struct.pack(f"<{COUNT * 64}f", *(i / (COUNT * 64) for i in range(COUNT * 64)))
        (self.folder / "inputs.npy").write_bytes(npy("<f4", (COUNT, 1, 8, 8), values))
        header = json.dumps({"x": {"dtype": "F32", "shape": [COUNT, 1, 8, 8], "data_offsets": [0, len(values)]}}).encode()
        (self.folder / "inputs.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + values)

    def test_files_without_targets_as_the_page_says(self):
        self.write_files()
        page = (SOURCE / "docs/inference.md").read_text()
        commands = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1].splitlines()
        found = []
        for number, line in enumerate(commands):
            config, results = self.config("callbacks: {tfrecords_saver: {keys: [logits, _targets]}}", f"{number}.yaml")
            self.assertIn(f"1 iteration(s), {COUNT} sample(s)", self.infer(*shlex.split(line)[2:], "--config", config))
            found.append(stored(results, "logits"))
            with self.assertRaises(KeyError):
                stored(results, "targets")
        images, array, tensor = found
        self.assertEqual(array, tensor)
        self.assertEqual([len(images), len({str(one) for one in images})], [COUNT, COUNT])

    def test_what_reads_targets_is_told_that_there_are_none(self):
        self.write_files()
        config, _ = self.config("callbacks: {tfrecords_saver: {keys: [logits, targets]}}")
        source = ("--saved_model", "runs/digits/saved_models/46", "--config", config)
        self.assertIn("key 'targets' is not there; a callback that can do without it reads '_targets'",
                      self.infer(*source, "--feed", "inputs.npy", expect=65))
        self.assertIn("no file there ends in .jpg, .jpeg or .png",
                      self.infer(*source, "--feed", "{type: images, path: runs/digits/saved_models/46}", expect=66))


if __name__ == "__main__":
    unittest.main()
