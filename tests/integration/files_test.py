"""Training on files: the same bits from every format and with any number of loader threads; a bad file ends all ranks."""
import sys
import unittest

from harness import SOURCE, LockstepTest, metric

sys.path.insert(0, str(SOURCE / "tests/support"))
import skips  # noqa: E402
from data_files import write_formats  # noqa: E402
from object_store import StoreProcess  # noqa: E402

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
    def write_formats(self):
        """Settings of data.train by format."""
        return write_formats(self.folder, SAMPLES, SIDE)

    def losses(self, name, settings, threads, ranks, expect=0, **kwargs):
        config = self.folder / "run.yaml"
        config.write_text(RUN)
        sets = [one if one.startswith("data.") else f"data.train.{one}" for one in settings] + [f"data.loader_threads={threads}"]
        run = self.train(ranks, config=config, run=f"{name}{threads}{ranks}", sets=sets, expect=expect, **kwargs)
        return run.log if expect else [step["loss"] for step in run.steps()]

    def test_every_format_and_any_number_of_threads_give_the_same_bits(self):
        formats = self.write_formats()
        expected = self.losses("idx", formats["idx"], 0, ranks=1)
        self.assertEqual(len(expected), 7)
        for i, (name, settings) in enumerate(formats.items()):
            threads = (1, 4, 0)[i % 3]
            with self.subTest(format=name, threads=threads):
                self.assertEqual(self.losses(name, settings, threads, ranks=1), expected)

    def test_files_of_a_store_train_as_those_of_a_disk(self):
        python = SOURCE / ".venv-test/bin/python"
        if not python.exists():
            skips.missing_tool("no .venv-test; `tools/setup test` makes it")
        formats = self.write_formats()
        store = StoreProcess(python)
        self.addCleanup(store.close)
        store.put_folder("bucket", self.folder)
        store.counts()
        remote = self.losses("remote", ["path=s3://bucket/set", "type=image_folder"], 2, 2, environment=store.variables)
        counts = store.counts()
        self.assertEqual(counts["LIST"], 3)  # pages, asked for by one rank
        self.assertLessEqual(counts["GET"], 24)  # of 36 reads: a rank keeps what it has read
        self.assertEqual(remote, self.losses("here", [*formats["folder"], "type=image_folder"], 0, 2))

    def test_paths_are_looked_for_beside_the_run_file_too(self):
        self.write_formats()
        self.assertEqual(self.losses("beside", ["path='s.tf*'"], 0, 1), self.losses("full", [f"path={self.folder}/s.tfrecord"], 0, 1))

    def test_a_bad_record_ends_all_ranks(self):
        formats = self.write_formats()
        path = self.folder / "s.tfrecord"
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
        log = self.losses("bad", formats["records"], 1, 2, expect=65)
        self.assertRegex(log, r"\[data\].*s\.tfrecord: offset \d+: the checksum of a record's data is wrong.*\(sample 11\)")

    def test_a_bad_record_is_skipped_where_that_is_asked_for(self):
        formats = self.write_formats()
        path = self.folder / "s.tfrecord"
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
        skip = [*formats["records"], "data.on_error=skip"]
        one = self.losses("skip", skip, 4, 1)
        two = self.losses("skip", skip, 0, 2)
        self.assertEqual([round(loss, 5) for loss in one], [round(loss, 5) for loss in two])
        pages = [(self.folder / f"skip02/logs/rank{rank}.prom").read_text() for rank in (0, 1)]
        self.assertEqual(sum(metric(page, "lockstep_skipped_samples_total") for page in pages), 3)  # in each epoch that began
        log = self.losses("bound", [*skip, "data.max_skipped=0"], 1, 2, expect=65)
        self.assertRegex(log, r"\[data\].*1 damaged samples in this epoch.*data\.max_skipped")
        self.assertEqual(log.count("skipped: "), 1)


if __name__ == "__main__":
    unittest.main()
