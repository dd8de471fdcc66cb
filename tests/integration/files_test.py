"""Training on files: the same bits from every format and with any number of loader threads; a bad file ends all ranks."""
import json
import math
import struct
import subprocess
import sys
import unittest

from harness import ANSWER_S, LOCKSTEP, SOURCE, LockstepTest, metric

sys.path.insert(0, str(SOURCE / "tests/support"))
import skips  # noqa: E402
from data_files import npy, png, write_formats  # noqa: E402
from object_store import StoreProcess  # noqa: E402

SAMPLES, SIDE = 12, 8
CLASSES = {"a": 0, "b": 80, "c": 160}  # how far the pattern of their images is moved
CLASSES_RUN = f"""run: {{name: classes}}
model: {{type: mlp, layers: [{3 * SIDE * SIDE}, 3]}}
data: {{train: {{type: image_folder, path: FOLDER/train}}, eval: {{type: image_folder, path: FOLDER/eval}}, global_batch_size: 4}}
optimizer: {{learning_rate: 0.1}}
train: {{max_steps: 60}}
eval: {{every_epochs: 0}}
callbacks: {{confusion: {{num_classes: 3}}}}
export: {{after_evaluation: true}}
"""
TOKENS_RUN = """run: {name: tokens}
model: {type: gpt, layers: 1, heads: 2, width: 16}
data: {train: {type: npy, path: x.npy, targets: y.npy, num_classes: 50}, eval: {type: npy, path: x.npy, targets: y.npy, num_classes: 50}, global_batch_size: 4}
optimizer: {type: adam, learning_rate: 0.001}
train: {max_steps: 4}
checkpoint: off
"""
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


class Classes(LockstepTest):
    def setUp(self):
        super().setUp()
        for name in CLASSES:
            self.write_class("train", name)
        (self.folder / "run.yaml").write_text(CLASSES_RUN.replace("FOLDER", str(self.folder)))

    def write_class(self, set_name, name, shift=None):
        folder = self.folder / set_name / name
        folder.mkdir(parents=True)
        for i in range(4):
            (folder / f"{i}.png").write_bytes(png(SIDE, (CLASSES[name] if shift is None else shift) + i))

    def tool(self, *words, expect=0):
        done = subprocess.run([LOCKSTEP, *map(str, words)], capture_output=True, text=True, timeout=ANSWER_S, cwd=self.folder)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_an_evaluation_counts_by_the_names_of_training(self):
        for name in ("b", "c"):
            self.write_class("eval", name)
        run = self.train(2, config=self.folder / "run.yaml")
        self.assertEqual(run.summary()["eval"]["accuracy"], 1)
        [table] = (run.folder / "callbacks/eval").rglob("confusion.csv")
        right = ",a,b,c\na,0,0,0\nb,0,4,0\nc,0,0,4\n"
        self.assertEqual(table.read_text(), right)
        [manifest] = (run.folder / "saved_models").glob("[0-9]*/manifest.json")
        self.assertEqual(json.loads(manifest.read_text())["class_names"], ["a", "b", "c"])
        there = (self.folder / "run.yaml", "--set", f"run.project_dir={run.folder}")
        self.assertIn("accuracy 1.0000", self.tool("eval", *there))
        (self.folder / "train/a").rename(self.folder / "train/z")
        self.assertIn("data.train has the classes b/c/z and the checkpoint was trained with a/b/c", self.tool("eval", *there, expect=78))
        (self.folder / "train").rename(self.folder / "gone")
        self.assertIn("accuracy 1.0000", self.tool("eval", *there))  # by the names in the save
        infer = self.folder / "infer.yaml"
        infer.write_text(f"run: {{name: x}}\ninferer: {{log_dir: {self.folder / 'answers'}, callbacks: {{confusion: {{num_classes: 3, modes: [infer]}}}}}}\n")
        feed = f"{{type: image_folder, path: {self.folder / 'eval'}}}"
        for source in (("--checkpoint", run.folder / "checkpoints"), ("--saved_model", manifest.parent)):
            self.tool("infer", *source, "--config", infer, "--feed", feed)
            self.assertEqual((self.folder / "answers/confusion.csv").read_text(), right)
            (self.folder / "answers/confusion.csv").unlink()

    def test_a_class_that_training_lacks_is_refused(self):
        self.write_class("eval", "b")
        self.write_class("eval", "d", shift=240)
        run = ("check", self.folder / "run.yaml")
        self.assertRegex(self.tool(*run, expect=78), r"eval.*folders of the classes d; data\.train has the classes a, b, c")
        (self.folder / "eval/d").rename(self.folder / "eval/c")
        (self.folder / "eval/c/4.webp").write_bytes(b"")
        self.assertRegex(self.tool(*run), r"skipped images: 1 \.webp; only \.jpg, \.jpeg and \.png files are read")
        (self.folder / "train/void").mkdir()
        self.assertRegex(self.tool(*run, expect=66), r"the class 'void' has no \.jpg, \.jpeg or \.png file, but is empty")


class Tokens(LockstepTest):
    def write_tokens(self, targets):
        inputs = [(7 * i + i * i) % 50 for i in range(len(targets))]
        for name, values in (("x.npy", inputs), ("y.npy", targets)):
            (self.folder / name).write_bytes(npy("<i8", (8, len(values) // 8), struct.pack(f"<{len(values)}q", *values)))
        (self.folder / "run.yaml").write_text(TOKENS_RUN)

    def test_ignored_targets_count_nowhere(self):
        targets = [(3 * i) % 50 if i % 3 else -100 for i in range(64)]
        self.write_tokens(targets)
        losses = []
        for ranks in (1, 2):
            run = self.train(ranks, config=self.folder / "run.yaml", run=f"run{ranks}")
            losses.append([step["loss"] for step in run.steps()])
            found = run.summary()["eval"]
            self.assertAlmostEqual(found["metrics"]["perplexity"], math.exp(found["loss"]), places=3)
        self.assertTrue(all(abs(one - two) < 1e-5 for one, two in zip(*losses, strict=True)), losses)
        self.assertAlmostEqual(losses[0][0], math.log(50), delta=0.1)  # of a network that has learnt nothing

    def test_a_token_out_of_range_ends_the_run_with_its_place(self):
        self.write_tokens([999 if i == 13 else i % 50 for i in range(64)])
        log = self.train(2, config=self.folder / "run.yaml", expect=65).log
        self.assertRegex(log, r"y\.npy: row 1: sample 1: target token 999 at place 5 is out of range; there are 50 tokens, from 0 \(-100 is ignored\)")


if __name__ == "__main__":
    unittest.main()
