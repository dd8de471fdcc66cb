"""Training on files: the same bits from every format and with any number of loader threads; a bad file ends all ranks."""
import io
import sys
import tarfile
import unittest

from harness import SOURCE, LockstepTest

sys.path.insert(0, str(SOURCE / "tests/support"))
from data_files import idx, npy, png, record  # noqa: E402

SAMPLES, SIDE = 12, 8
RUN = f"""run: {{name: files, seed: 3}}
model: {{type: mlp, layers: [{3 * SIDE * SIDE}, 3]}}
optimizer: {{learning_rate: 0.1}}
train: {{max_steps: 7}}
checkpoint: off
data:
  global_batch_size: 5
  train: {{type: files, num_classes: 3, augment: {{horizontal_flip: 0.5, random_crop: 1}}}}
"""


class Files(LockstepTest):
    def write(self, name, data):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def write_formats(self):
        """Settings of data.train by format."""
        images = [png(SIDE, 5 * i) for i in range(SAMPLES)]
        rows = [bytes((x + 5 * i) % 256 for x in range(3 * SIDE)) * SIDE for i in range(SAMPLES)]  # [H, W, C]
        labels = [i // 4 for i in range(SAMPLES)]
        csv, archive = "", io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for i, (image, label) in enumerate(zip(images, labels)):
                self.write(f"set/{label}/{i:02}.png", image)
                csv += f"set/{label}/{i:02}.png,{label}\n"
                for ending, data in (("png", image), ("cls", b"%d" % label)):
                    facts = tarfile.TarInfo(f"{i:02}.{ending}")
                    facts.size = len(data)
                    tar.addfile(facts, io.BytesIO(data))
        planes = b"".join(bytes(row[c::3]) for row in rows for c in range(3))
        self.write("labels", idx((SAMPLES,), bytes(labels)))
        self.write("y.npy", npy("|u1", (SAMPLES,), bytes(labels)))
        return {
            "idx": [f"path={self.write('images', idx((SAMPLES, 3, SIDE, SIDE), planes))}"],
            "folder": [f"path={self.folder / 'set'}"],
            "csv": [f"path={self.write('s.csv', csv.encode())}"],
            "archive": [f"path={self.write('s.tar', archive.getvalue())}"],
            "records": [f"path={self.write('s.tfrecord', b''.join(record(image__encoded=i, image__class__label=n) for i, n in zip(images, labels)))}"],
            "npy": [f"path={self.write('x.npy', npy('|u1', (SAMPLES, SIDE, SIDE, 3), b''.join(rows)))}",
                    f"targets={self.folder / 'y.npy'}", "layout=hwc"],
        }

    def losses(self, name, settings, threads, ranks, expect=0):
        config = self.write("run.yaml", RUN.encode())
        sets = [f"data.train.{one}" for one in settings] + [f"data.loader_threads={threads}"]
        run = self.train(ranks, config=config, run=f"{name}{threads}{ranks}", sets=sets, expect=expect)
        return run.log if expect else [step["loss"] for step in run.steps()]

    def test_every_format_and_any_number_of_threads_give_the_same_bits(self):
        formats = self.write_formats()
        expected = self.losses("idx", formats["idx"], 0, ranks=1)
        self.assertEqual(len(expected), 7)
        for i, (name, settings) in enumerate(formats.items()):
            threads = (1, 4, 0)[i % 3]
            with self.subTest(format=name, threads=threads):
                self.assertEqual(self.losses(name, settings, threads, ranks=1), expected)

    def test_a_bad_record_ends_all_ranks(self):
        formats = self.write_formats()
        path = self.folder / "s.tfrecord"
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
        log = self.losses("bad", formats["records"], 1, 2, expect=65)
        self.assertRegex(log, r"\[data\].*s\.tfrecord: offset \d+: the checksum of a record's data is wrong.*\(sample 11\)")


if __name__ == "__main__":
    unittest.main()
