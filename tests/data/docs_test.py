"""Every run-file snippet of docs/data.md passes `lockstep check`, on small files of our own making."""
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/support"))
from data_files import idx, npy, png, record  # noqa: E402
from object_store import KEY, SECRET, StoreProcess  # noqa: E402

LOCKSTEP = pathlib.Path(os.environ["LOCKSTEP_BUILD"]).resolve() / "bin/lockstep"
RUN = "run: {name: docs}\noptimizer: {learning_rate: 0.1}\ntrain: {max_steps: 2}\nmodel: {type: mlp, layers: [%d, %d]}\n"


def write_files(folder):
    def write(name, data):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for part in ("train", "test"):
        for i in range(4):
            write(f"photos/{part}/{'cat' if i % 2 else 'dog'}/{i}.png", png())
    write("photos.csv", b"file,class\n" + b"photos/train/cat/1.png,0\nphotos/train/dog/0.png,1\n")
    for part in ("train", "t10k"):
        write(f"mnist/{part}-images-idx3-ubyte", idx((4, 4, 4), bytes(64)))
        write(f"mnist/{part}-labels-idx1-ubyte", idx((4,), bytes(range(4))))
    for name in ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"):
        write(f"cifar/{name}", 2 * (b"\x03" + bytes(3072)))
    for i in range(2):
        write(f"records/train-{i}", record(image__encoded=png(), image__class__label=i))
    write("records/raw.tfrecord", 2 * record(pixels=bytes(192), y=3))
    write("x.npy", npy("|u1", (4, 6, 6, 3), bytes(432)))
    write("y.npy", npy("|u1", (4,), bytes(range(4))))
    header = json.dumps({"x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                         "y": {"dtype": "U8", "shape": [2], "data_offsets": [24, 26]}}).encode()
    write("set.safetensors", struct.pack("<Q", len(header)) + header + bytes(24) + b"\0\1")
    write("text.bin", bytes(200))
    (folder / "archives").mkdir()
    (folder / "1.png").write_bytes(png())
    (folder / "1.cls").write_bytes(b"1")
    with tarfile.open(folder / "archives/a.tar", "w") as tar:
        for name in ("1.png", "1.cls"):
            tar.add(folder / name, name)


class Docs(unittest.TestCase):
    def store_of(self, folder):
        """The variables of a store that holds the folder; none without a Python that has moto."""
        python = SOURCE / ".venv-test/bin/python"
        if not python.exists():
            return None
        store = StoreProcess(python)
        self.addCleanup(store.close)
        store.put_folder("my-bucket", folder)
        return {**store.variables, "GS_ENDPOINT_URL": store.url, "GS_ACCESS_KEY_ID": KEY, "GS_SECRET_ACCESS_KEY": SECRET}

    def check(self, folder, text, variables):
        (folder / "run.yaml").write_text(text)
        done = subprocess.run([LOCKSTEP, "check", "run.yaml"], cwd=folder, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout

    def test_every_snippet_passes(self):
        snippets = re.findall(r"^```yaml\n(.*?)^```", (SOURCE / "docs/data.md").read_text(), re.MULTILINE | re.DOTALL)
        self.assertGreater(len(snippets), 9)
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        write_files(folder)
        store = self.store_of(folder)
        for number, snippet in enumerate(snippets):
            if store is None and "://" in snippet:
                continue
            with self.subTest(snippet=snippet):
                code, output = self.check(folder, RUN % (1, 1) + snippet, store or {})
                spec = re.search(r"the data has (?:inputs|tokens) \[([\d, ]+)\] and needs (\d+) outputs", output)
                self.assertTrue(spec, output)  # all data could be opened, and the network does not fit
                if number > 0:
                    continue
                num_inputs = 1
                for size in spec[1].split(","):
                    num_inputs *= int(size)
                code, output = self.check(folder, RUN % (num_inputs, int(spec[2])) + snippet, store or {})
                self.assertEqual(code, 0, output)

    def test_types_of_the_page_are_those_of_the_program(self):
        choices = re.search(r"`data.train.type` \| one of: ([\w, ]+) \|", (SOURCE / "docs/run_file.md").read_text())[1].split(", ")
        page = (SOURCE / "docs/data.md").read_text()
        for name in set(choices) - {"digits", "random", "files"}:
            self.assertRegex(page, rf"(?m)^\|.*`{name}`.*\|")


if __name__ == "__main__":
    unittest.main()
