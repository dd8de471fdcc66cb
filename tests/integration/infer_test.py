"""`lockstep infer`: exports and saves answer without the code of their network; what is refused; how it ends."""
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import unittest

from exported import PYTHON, require_python, require_torch
from harness import ANSWER_S, BUILD, LOCKSTEP, MPIRUN, SOURCE, wait_for
from inference import DIGITS_RUN, InferTest
from stored import examples, stored

sys.path.insert(0, str(SOURCE / "tests/support"))
from data_files import npy  # noqa: E402

SAVER = "callbacks: {tfrecords_saver: {keys: [logits, targets]}}"
BATCH = 100
MOONS_RUN = """run: {name: moons}
data:
  train: {type: npy, path: FOLDER/x.npy, targets: FOLDER/y.npy}
  eval: {type: npy, path: FOLDER/held_x.npy, targets: FOLDER/held_y.npy}
  global_batch_size: 50
optimizer: {type: momentum, learning_rate: 0.5}
train: {max_steps: 80}
checkpoint: {save_checkpoints_steps: 40}
eval: {on_save: true, batch_size: 100}
export: {after_evaluation: true}
"""


def moons(count, seed):
    """Points of the plane, and on which of two half circles they lie."""
    draw, points, targets = random.Random(seed), [], []
    for i in range(count):
        angle, upper = math.pi * draw.random(), 1 - 2 * (i % 2)
        points += [upper * math.cos(angle) + (1 - upper) / 2 + 0.4 * (draw.random() - 0.5),
                   upper * math.sin(angle) + (1 - upper) / 4 + 0.4 * (draw.random() - 0.5)]
        targets.append(float(i % 2))
    return (npy("<f4", (count, 2), struct.pack(f"<{2 * count}f", *points)),
            npy("<f4", (count, 1), struct.pack(f"<{count}f", *targets)))


class Infer(InferTest):
    def moons(self):
        """Trained by a copy of the plug-in, which is then removed."""
        folder = self.shared_folder
        if "moons" not in self.shared_runs:
            for name, count, seed in (("", 500, 1), ("held_", 250, 2)):
                points, targets = moons(count, seed)
                (folder / f"{name}x.npy").write_bytes(points)
                (folder / f"{name}y.npy").write_bytes(targets)
            shutil.copy(BUILD / "examples/estimator_plugin/libmoons.so", folder / "libcopy.so")
            path = folder / "moons.yaml"
            path.write_text(MOONS_RUN.replace("FOLDER", str(folder)))
            run = self.shared("moons", 1, config=path, sets=[f"estimator.path={folder}/libcopy.so", "run.device=cpu"])
            (folder / "libcopy.so").unlink()
            shutil.copytree(run.folder, folder / "elsewhere")
        return self.shared_runs["moons"]

    def moons_feed(self):
        return f"{{type: npy, path: {self.shared_folder}/held_x.npy, targets: {self.shared_folder}/held_y.npy}}"

    def judged(self, results, run):
        done = subprocess.run([PYTHON, SOURCE / "tests/integration/programs/moons_loss.py", results, str(BATCH),
                               run.folder / "saved_models/80/model.pt", self.shared_folder / "held_x.npy"],
                              capture_output=True, text=True, timeout=ANSWER_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_C3_N80_without_the_plugin_export_and_save_give_the_evaluations_bits(self):
        require_python()
        require_torch()
        run = self.moons()
        loss = run.summary()["eval"]["loss"]
        sources = {"export": ("--saved_model", run.folder / "saved_models/80"), "save": ("--checkpoint", run.folder / "checkpoints/model.ckpt-80")}
        for name, source in sources.items():
            config, results = self.config(f"engine: plain, batch_size: {BATCH}, {SAVER}", f"{name}.yaml")
            log = self.infer(*source, "--config", config, "--feed", self.moons_feed())
            self.assertIn("engine plain", log)
            self.assertIn("3 iteration(s), 250 sample(s)", log)
            if name == "save":
                self.assertIn("the network's code was not found", log)
            judged = self.judged(results, run)
            self.assertEqual(judged["loss"], loss)  # every bit
            self.assertLessEqual(judged["jit_difference"], 1e-5)
        config, results = self.config(f"batch_size: {BATCH}, {SAVER}", "optimized.yaml")
        self.assertIn("LibTorch's freeze and inference passes", self.infer(*sources["export"], "--config", config, "--feed", self.moons_feed()))
        judged = self.judged(results, run)
        self.assertAlmostEqual(judged["loss"], loss, delta=1e-5)
        self.assertLessEqual(judged["jit_difference"], 1e-5)

    def test_N71_N80_checkpoints_alone_answer_without_code_or_exports(self):
        require_python()
        run = self.moons()
        alone = self.folder / "alone"
        shutil.copytree(run.folder / "checkpoints", alone / "checkpoints")
        config, results = self.config(f"engine: plain, batch_size: {BATCH}, {SAVER}", "alone.yaml")
        log = self.infer("--checkpoint", alone / "checkpoints/model.ckpt-80", "--config", config, "--feed", self.moons_feed())
        self.assertIn("the network's code was not found; using the graph of " + str(alone / "checkpoints/inference_graph"), log)
        self.assertEqual(self.judged(results, run)["loss"], run.summary()["eval"]["loss"])  # every bit
        (alone / "checkpoints/inference_graph").unlink()
        refused = self.infer("--checkpoint", alone / "checkpoints/model.ckpt-80", "--config", config, "--feed", self.moons_feed(), expect=66)
        self.assertIn("has neither saved_models nor checkpoints/inference_graph", refused)

    def test_C26_an_earlier_save_answers_with_its_own_weights(self):
        require_python()
        require_torch()
        run = self.moons()
        first = json.loads((run.folder / "saved_models/40/losses.json").read_text())["eval"]
        config, results = self.config(f"engine: plain, batch_size: {BATCH}, {SAVER}")
        self.infer("--checkpoint", run.folder / "checkpoints/model.ckpt-40", "--config", config, "--feed", self.moons_feed())
        self.assertEqual(self.judged(results, run)["loss"], first)
        self.assertNotEqual(first, run.summary()["eval"]["loss"])

    def test_N87_staged_and_in_turn_store_the_same(self):
        run, found = self.digits(), {}
        for staged in ("true", "false"):
            config, results = self.config(f"batch_size: 50, run_config: {{use_multiprocessing: {staged}}}, {SAVER}", f"staged_{staged}.yaml")
            self.assertIn("8 iteration(s), 359 sample(s)",
                          self.infer("--saved_model", run.folder / "saved_models/46", "--config", config, "--feed", "{type: digits, split: test}"))
            found[staged] = self.stored_files(results)
        self.assertGreater(len(found["true"]), 0)
        self.assertEqual(found["true"], found["false"])

    def test_N84_four_feeds_in_a_list_store_what_one_stores(self):
        run = self.moons()
        points, targets = moons(40, 3)
        rows = [(points[-320:][8 * i:8 * i + 8], targets[-160:][4 * i:4 * i + 4]) for i in range(40)]

        def write(name, chosen):
            (self.folder / f"{name}_x.npy").write_bytes(npy("<f4", (len(chosen), 2), b"".join(x for x, _ in chosen)))
            (self.folder / f"{name}_y.npy").write_bytes(npy("<f4", (len(chosen), 1), b"".join(y for _, y in chosen)))
            return f"{{type: npy, path: {name}_x.npy, targets: {name}_y.npy}}"
        one = [write("all", rows)]
        four = [write(f"part{k}", [row for i, row in enumerate(rows) if i // 2 % 4 == k]) for k in range(4)]
        found = []
        for name, feeds, batch in (("one", one, 8), ("four", four, 2)):  # matrices of another height may give other bits
            config, results = self.config(f"engine: plain, batch_size: {batch}, tensorrt_config: {{max_batch_size: 2}}, {SAVER}", f"{name}.yaml")
            log = self.infer("--saved_model", run.folder / "saved_models/80", "--config", config, *(word for feed in feeds for word in ("--feed", feed)))
            self.assertIn("5 iteration(s), 40 sample(s)", log)
            found.append(self.stored_files(results))
        self.assertEqual(*found)

    def test_N85_nothing_is_stored_unless_a_callback_does(self):
        run = self.digits()
        before = sorted(str(path) for path in run.folder.rglob("*"))
        config, results = self.config("batch_size: 100", project=run.folder)
        for source in (("--saved_model", "latest"), ("--checkpoint", "latest")):
            log = self.infer(*source, "--config", config, "--feed", "{type: digits, split: test}")
            self.assertIn("step 46: 4 iteration(s), 359 sample(s)", log)
        self.assertEqual(sorted(str(path) for path in run.folder.rglob("*")), before)
        self.assertFalse(results.exists())

    def test_C61_N93_a_json_file_of_the_section_alone(self):
        run = self.digits()
        path = self.folder / "inferer.json"
        path.write_text(json.dumps({"project_dir": str(run.folder), "gpu": {"allow_growth": True}, "feed": {"type": "digits", "split": "test"},
                                    "run_config": {"use_multiprocessing": False}, "tensorrt_config": {"use_tensorrt": True, "max_batch_size": 64}}))
        log = self.infer("--saved_model", "latest", "--config", path)
        self.assertIn("2 iteration(s), 359 sample(s)", log)
        self.assertIn("no Torch-TensorRT: no GPU", log)

    def test_the_run_file_itself_feeds_its_evaluation_data(self):
        run = self.digits()
        path = self.folder / "run.yaml"
        path.write_text(DIGITS_RUN.replace("name: digits}", f"name: digits, project_dir: {run.folder}}}"))
        self.assertIn("359 sample(s)", self.infer("--saved_model", "latest", "--config", path))
        self.assertIn("1438 sample(s)", self.infer("--saved_model", "latest", "--config", path, "--feed", "train"))

    def test_an_empty_feed_ends_with_0(self):
        run = self.digits()
        config, _ = self.config("feed: []")
        self.assertIn("0 iteration(s), 0 sample(s)", self.infer("--saved_model", run.folder / "saved_models/46", "--config", config))

    def test_what_is_refused(self):
        run = self.digits()
        model, feed = run.folder / "saved_models/46", ("--feed", "{type: digits}")
        saved = ("--saved_model", model)
        for section, said in (("tensorrt_config: {max_batch_size: 0}", "max_batch_size"), ("tensorrt_config: {max_batch: 3}", "max_batch"),
                              ("engine: fast", "engine"), ("engines: plain", "did you mean 'engine'"), ("callbacks: {lgo: {}}", "lgo")):
            config, _ = self.config(section)
            self.assertIn(said, self.infer(*saved, "--config", config, *feed, expect=78))
        for arguments, code, said in (
                ((*saved, *feed, "--checkpoint", "latest"), 64, "exactly one of --saved_model and --checkpoint"),
                (feed, 64, "exactly one of --saved_model and --checkpoint"),
                (saved, 64, "no inputs are given"),
                ((*saved, "--feed", "{type: digit}"), 78, "did you mean 'digits'"),
                ((*saved, "--feed", "nowhere.npy"), 66, "nowhere.npy"),
                ((*saved, "--config", "nowhere.yaml"), 66, "nowhere.yaml"),
                (("--saved_model", "nowhere", *feed), 66, "no such folder"),
                (("--checkpoint", "nowhere", *feed), 66, "nowhere"),
                ((*saved, "--feed", "{type: random, shape: [3, 4], classes: 10, samples: 9}"), 65,
                 "'inputs' is float32 [any, 1, 8, 8], the feed has float32 [9, 3, 4]")):
            self.assertIn(said, self.infer(*arguments, expect=code))

    def test_exports_that_are_cut_without_manifest_or_newer(self):
        run = self.digits()
        feed = ("--feed", "{type: digits}")

        def broken(name, change):
            folder = self.folder / name
            shutil.copytree(run.folder / "saved_models/46", folder)
            change(folder)
            return self.infer("--saved_model", folder, *feed, expect=65)

        def newer(folder):
            manifest = json.loads((folder / "manifest.json").read_text())
            (folder / "manifest.json").write_text(json.dumps({**manifest, "lockstep": "99.0.0"}))
        self.assertIn("its manifest says", broken("cut", lambda folder: os.truncate(folder / "model.pt", 1000)))
        self.assertIn("contains no manifest.json", broken("bare", lambda folder: (folder / "manifest.json").unlink()))
        self.assertIn("was written by Lockstep 99.0.0", broken("newer", newer))
        shutil.copytree(run.folder / "saved_models/46", self.folder / "whole")  # elsewhere, without io_nodes.json
        self.assertIn("359 sample(s)", self.infer("--saved_model", self.folder / "whole", *feed))

    def test_N81_one_process_alone(self):
        run = self.digits()
        done = subprocess.run([MPIRUN, "2", LOCKSTEP, "infer", "--saved_model", run.folder / "saved_models/46", "--feed", "{type: digits}"],
                              capture_output=True, text=True, timeout=ANSWER_S)
        self.assertEqual(done.returncode, 64, done.stdout + done.stderr)
        self.assertIn("was started 2 times by mpirun: inference is one process on at most one device", done.stdout + done.stderr)

    def test_the_examples_of_the_page_run(self):
        page = (SOURCE / "docs/inference.md").read_text()
        commands, run_file, json_file = (re.search(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1] for kind in ("sh", "yaml", "json"))
        (self.folder / "run.yaml").write_text(run_file)
        (self.folder / "inferer.json").write_text(json_file)
        more = "lockstep infer --saved_model latest --config inferer.json\n"
        for line in (commands + more).splitlines():
            program, *words = shlex.split(line)
            done = subprocess.run([BUILD / "bin" / program, *words], capture_output=True, text=True, timeout=ANSWER_S, cwd=self.folder)
            self.assertEqual(done.returncode, 0, line + "\n" + done.stdout + done.stderr)
            if program == "lockstep":
                self.assertIn("step 46: ", done.stdout)
        self.assertEqual(len(stored(self.folder / "answers", "logits")), 359)

    def start_long(self, section="batch_size: 1"):
        """An inference of a million iterations, once it has begun to store."""
        run = self.digits()
        config, results = self.config(f"{section}, {SAVER.replace('targets]', 'targets], max_samples_per_file: 100')}")
        process = subprocess.Popen([LOCKSTEP, "infer", "--saved_model", run.folder / "saved_models/46", "--config", config, "--feed",
                                    "{type: random, shape: [1, 8, 8], classes: 10, samples: 1000000}"],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder)
        self.started.append(process)
        wait_for(lambda: len(list(results.rglob("*.tfrecord"))) > 2 or process.poll() is not None, "stored files")
        self.assertIsNone(process.poll(), process.poll() is not None and process.communicate()[0])
        return process, results

    def test_a_signal_ends_it_with_75_after_end(self):
        for staged in ("true", "false"):
            process, results = self.start_long(f"batch_size: 1, run_config: {{use_multiprocessing: {staged}}}")
            process.send_signal(signal.SIGTERM)
            log = process.communicate(timeout=ANSWER_S)[0]
            self.assertEqual(process.returncode, 75, log)
            self.assertIn("stopped on request", log)
            num_samples = int(log.split(" iteration(s), ")[1].split(" ")[0])
            self.assertEqual(len(stored(results, "logits")), num_samples)  # end() has published the last file too
            shutil.rmtree(results)

    def test_a_kill_leaves_whole_files_only(self):
        process, results = self.start_long()
        process.kill()
        process.communicate()
        for path in results.rglob("*.tfrecord"):
            self.assertEqual(len(examples(path)), 100)


if __name__ == "__main__":
    unittest.main()
