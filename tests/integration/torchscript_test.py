"""Networks from TorchScript files: trained, pruned, stopped, exported; one network in three forms; invalid archives."""
import itertools
import json
import pathlib
import struct
import subprocess
import unittest
from random import Random

from harness import BUILD, DIGITS, SOURCE, LockstepTest
from soak import rounds
from stored import stored

FILES = pathlib.Path(__file__).parent / "programs" / "python"
GLUE = BUILD / "lib" / "lockstep"
PYTHON = SOURCE / ".venv" / "bin" / "python3"
PRUNING = f"recipe={pathlib.Path(__file__).parent}/programs/prune_90.md"


class TorchScript(LockstepTest):
    def script(self, *arguments):
        done = subprocess.run([PYTHON, FILES / "script.py", GLUE, *map(str, arguments)], capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def saved(self, name):
        """A network of Python as an archive, written once for all tests of this file."""
        file = self.shared_folder / f"{name}.pt"
        if not file.exists():
            self.script("save", name, file)
        return file

    def test_a_lenet_of_python_is_pruned_and_goes_back(self):
        sets = [f"model={{type: torchscript, path: {self.saved('LeNet')}}}", PRUNING, "optimizer={type: adam, learning_rate: 0.01}",
                "checkpoint.save_checkpoints_steps=30", "sync.replica_check_every=10", "eval.metrics=[confusion_matrix]", "eval.every_epochs=2"]
        unbroken = self.train(run="unbroken", sets=sets)
        self.assertGreater(unbroken.summary()["eval"]["accuracy"], 0.5)
        killed = self.start_faulty("kill", rank=1, step=50, run="killed", sets=sets).wait()
        self.assertIn(killed.code, (137, 69), killed.log)
        resumed = self.train(run="killed", sets=sets)
        self.assertEqual(resumed.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
        self.assertEqual(resumed.summary()["eval"], unbroken.summary()["eval"])
        evals = [(run.folder / "train" / "evals.csv").read_text() for run in (resumed, unbroken)]
        self.assertEqual(len(evals[0].splitlines()), 1 + 4 * 2)  # loss and accuracy of epochs 2, 4, 6 and 8
        self.assertEqual(*evals)
        exported, weights = self.folder / "lenet.pt", self.folder / "lenet.safetensors"
        self.tool("ckpt", "export", resumed.folder / "checkpoints", "--format", "torchscript", "-o", exported)
        self.tool("ckpt", "export", resumed.folder / "checkpoints", "-o", weights)
        back = json.loads(self.script("run", exported, "LeNet", SOURCE / "data" / "digits" / "digits.csv"))
        self.assertFalse(back["training"])
        self.assertLessEqual(back["difference"], 1e-6)  # from the class with these weights
        self.assertEqual(back["confusion_matrix"], resumed.summary()["eval"]["metrics"]["confusion_matrix"])
        self.assertAlmostEqual(back["loss"], resumed.summary()["eval"]["loss"], delta=1e-6)
        num_weights = 6 * 9 + 16 * 6 * 9 + 16 * 32 + 32 * 10
        self.assertAlmostEqual(back["zeros"], 0.9 * num_weights, delta=4)
        data = weights.read_bytes()
        end = 8 + struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:end]).items():
            if name != "__metadata__" and entry["dtype"] == "F32":
                values = struct.unpack(f"<{(entry['data_offsets'][1] - entry['data_offsets'][0]) // 4}f", data[end:][slice(*entry["data_offsets"])])
                self.assertEqual(list(values), back["weights"][name], name)

    def points(self):
        """A data set that needs no Python: three classes of points, as those of programs/python/sets.py."""
        random, count = Random(5), 200
        points = [[random.gauss(0, 1) for _ in range(4)] for _ in range(count)]
        data = struct.pack(f"<{4 * count}f", *itertools.chain(*points)) + struct.pack(f"<{count}q", *((x > 0) + (y > 0.5) for x, y, *_ in points))
        header = json.dumps({"x": {"dtype": "F32", "shape": [count, 4], "data_offsets": [0, 16 * count]},
                             "y": {"dtype": "I64", "shape": [count], "data_offsets": [16 * count, 24 * count]}}).encode()
        file = self.folder / "points.safetensors"
        file.write_bytes(struct.pack("<Q", len(header)) + header + data)
        return file

    @staticmethod
    def starts_of(forms):
        """Each form on 2 ranks, and one alone, which the others must equal."""
        starts = rounds([("cpp", 1), ("cpp", 2), ("python", 2), ("torchscript", 2)],
                        [(name, ranks) for name in forms for ranks in (1, 4) if (name, ranks) != ("cpp", 1)])
        return [(name, ranks, forms[name]) for name, ranks in starts]

    def test_one_network_in_three_forms_has_the_same_losses(self):
        config = self.folder / "run.yaml"
        config.write_text(f"""version: 1.0.0
run: {{name: three}}
model: {{type: mlp, layers: [4, 8, 3], activation: tanh}}
data:
  train: {{type: safetensors, path: {self.points()}, inputs: x, targets: y}}
  global_batch_size: 32
train: {{max_steps: 100}}
optimizer: {{type: momentum, learning_rate: 0.1}}
summary: {{log_every: 1}}
""")
        start = self.train(1, config=config, run="start", sets=["train.max_steps=1", "optimizer.learning_rate=1e-30"])
        warm = f"checkpoint.warm_start_ckpt={start.folder / 'checkpoints'}"
        forms = {"cpp": [], "python": [f"model={{type: python, path: {FILES}/nets.py, name: Layers}}"],
                 "torchscript": [f"model={{type: torchscript, path: {self.saved('Layers')}}}"]}
        losses = {(name, ranks): [step["loss"] for step in self.train(ranks, config=config, run=f"{name}{ranks}",
                                                                     sets=["checkpoint.save_at_end=false", warm, *sets]).steps()]
                  for name, ranks, sets in self.starts_of(forms)}
        first = losses["cpp", 1]
        self.assertLess(first[-1], 0.8 * first[0])
        for (name, ranks), all_losses in losses.items():
            self.assertEqual(len(all_losses), 100)
            for ours, theirs in zip(all_losses, first, strict=True):
                self.assertAlmostEqual(ours, theirs, delta=1e-6, msg=f"{name} on {ranks} ranks")

    def test_a_buffer_that_forward_replaces_is_saved_as_it_is(self):
        config = self.folder / "replaced.yaml"
        config.write_text(f"""version: 1.0.0
run: {{name: replaced}}
model: {{type: torchscript, path: {self.saved('Noisy')}}}
data:
  train: {{type: safetensors, path: {self.points()}, inputs: x, targets: y}}
  global_batch_size: 32
train: {{max_steps: 60}}
optimizer: {{type: sgd, learning_rate: 0.1}}
checkpoint: {{save_checkpoints_steps: 20}}
""")
        unbroken = self.train(config=config, run="unbroken")
        killed = self.start_faulty("kill", rank=1, step=45, config=config, run="killed").wait()
        self.assertIn(killed.code, (137, 69), killed.log)
        self.assertEqual(self.train(config=config, run="killed").summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
        exported = self.folder / "replaced.pt"
        self.tool("ckpt", "export", unbroken.folder / "checkpoints", "--format", "torchscript", "-o", exported)
        self.assertGreater(max(map(abs, json.loads(self.script("state", exported))["average"])), 0)

    def test_a_tied_weight_is_one_parameter(self):
        config = self.folder / "tied.yaml"
        config.write_text(f"""version: 1.0.0
run: {{name: tied}}
model: {{type: torchscript, path: {self.saved('Plain')}}}
data:
  train: {{type: safetensors, path: {self.points()}, inputs: x, targets: y}}
  global_batch_size: 32
train: {{max_steps: 40}}
optimizer: {{type: adamw, learning_rate: 0.01}}
sync: {{replica_check_every: 1}}
""")
        run = self.train(config=config, run="tied")
        exported = self.folder / "tied_back.pt"
        self.tool("ckpt", "export", run.folder / "checkpoints", "--format", "torchscript", "-o", exported)
        state = json.loads(self.script("state", exported))
        self.assertEqual(state["second.weight"], state["third.weight"])
        self.assertNotEqual(state["second.weight"], json.loads(self.script("state", self.saved("Plain")))["second.weight"])

    def test_a_checkpoint_answers_by_both_engines(self):
        points = f"{{type: safetensors, path: {self.points()}, inputs: x, targets: y}}"
        for name, data in (("LeNet", "{type: digits}"), ("Noisy", points), ("Plain", points)):
            with self.subTest(name):
                config = self.folder / f"{name}.yaml"
                config.write_text(f"version: 1.0.0\nrun: {{name: {name}}}\nmodel: {{type: torchscript, path: {self.saved(name)}}}\n"
                                  f"data: {{train: {data}, global_batch_size: 50}}\ntrain: {{max_steps: 5}}\n")
                run = self.train(1, config=config, run=name)
                logits = {}
                for engine in ("plain", "optimized"):
                    results = self.folder / f"{name}.{engine}"
                    config.write_text(f"run: {{name: x, threads: 1, device: cpu}}\ninferer: {{log_dir: {results}, engine: {engine}, "
                                      f"batch_size: 50, callbacks: {{tfrecords_saver: {{keys: [logits]}}}}}}\n")
                    log = self.tool("infer", "--checkpoint", run.folder / "checkpoints", "--config", config, "--feed", data)
                    self.assertIn(f"engine {engine}", log)
                    self.assertNotIn("cannot freeze", log)
                    logits[engine] = [value for values in stored(results, "logits") for value in values]
                self.assertGreater(len(logits["plain"]), 100)
                for ours, theirs in zip(logits["optimized"], logits["plain"], strict=True):
                    self.assertAlmostEqual(ours, theirs, delta=1e-4)

    def test_archives_that_are_none(self):
        cut = self.folder / "cut.pt"
        cut.write_bytes(self.saved("Layers").read_bytes()[:1000])
        for path, code, text in ((cut, 78, "cut.pt: LibTorch cannot load it as TorchScript: "),
                                 (DIGITS, 78, "digits.yaml: LibTorch cannot load it as TorchScript: "),
                                 ("/nowhere/net.pt", 66, "/nowhere/net.pt: no such file, which 'model.path' names"),
                                 (self.saved("Layers"), 78, "Layers.pt: its forward fails: ")):
            run = self.start(1, sets=[f"model={{type: torchscript, path: {path}}}", "checkpoint=off"]).wait()
            self.assertEqual(run.code, code, run.log)
            self.assertIn(text, run.log)


if __name__ == "__main__":
    unittest.main()
