"""Saves of real runs in the hands of others: exported, compared, cleared."""
import json
import os
import random
import re
import signal
import struct
import subprocess
import unittest

from exported import PYTHON, answers_of, require_python, require_torch
from harness import ENDLESS, SOURCE, LockstepTest
from data_files import npy

NORMALISED = ["model.type=cnn", "model.channels=[6, 12]", "model.hidden=24", "model.batch_norm=true", "train.max_steps=60",
              "optimizer.learning_rate=0.1", "data.eval.type=digits", "data.eval.split=test"]
SHORT = ["train.max_steps=12", "optimizer.learning_rate=0.01", "data.global_batch_size=16", "data.eval.type=digits", "data.eval.split=test"]
BRANCHING = {"resnet18": "{type: resnet18, stem: cifar}",
             "vit": "{type: vit, patch_size: 2, num_layers: 2, num_heads: 2, hidden_dim: 16, mlp_dim: 24}"}


class Export(LockstepTest):
    def export(self, run, form, name):
        file = self.folder / name
        text = self.tool("ckpt", "export", run.folder / "checkpoints", "--format", form, "-o", file)
        return file, text, json.loads((self.folder / (name + ".json")).read_text())

    def check(self, run):
        """The file's answers and its manifest are the run's measurements."""
        summary = run.summary()
        for form, name in (("onnx", "model.onnx"), ("torchscript", "model.pt")):
            if form == "torchscript":
                require_torch()
            file, text, manifest = self.export(run, form, name)
            step = summary["steps"]
            self.assertIn(f"model.ckpt-{step}, step {step}", text)
            self.assertEqual(manifest["step"], step)
            for key in ("train_loss", "eval", "sparsity", "parameters_sha256"):
                self.assertEqual(manifest[key], summary[key], key)
            self.assertAlmostEqual(manifest["epoch"], summary["epochs"])
            answers = answers_of(file)
            print(form, answers, summary["eval"])
            self.assertEqual(answers["num_samples"], summary["eval"]["num_samples"])
            self.assertAlmostEqual(answers["accuracy"], summary["eval"]["accuracy"], delta=1e-12)
            self.assertAlmostEqual(answers["loss"], summary["eval"]["loss"], delta=1e-5)

    def test_a_pruned_network_answers_as_in_its_run(self):
        run = self.train(2, sets=["train.max_steps=120"])  # pruning begins at step 92
        self.assertGreater(run.summary()["sparsity"], 0)
        self.check(run)

    def test_a_network_with_batch_normalisation_answers_as_in_its_run(self):
        self.check(self.train(2, config=ENDLESS, sets=NORMALISED))

    def test_figures_of_another_step_are_not_borrowed(self):
        run = self.train(1, sets=["train.max_steps=40", "checkpoint.save_checkpoints_steps=20"])
        self.tool("ckpt", "export", run.folder / "checkpoints/model.ckpt-20", "--format", "onnx", "-o", self.folder / "early")
        manifest = json.loads((self.folder / "early.json").read_text())
        self.assertEqual((manifest["step"], manifest["eval"]), (20, None))
        self.assertEqual(manifest["train_loss"], run.steps()[19]["loss"])

    def test_a_run_goes_on_from_tensorflow_files_of_all(self):
        first = self.train(2, sets=["train.max_steps=40"])
        self.tool("ckpt", "export", first.folder / "checkpoints", "--format", "tensorflow", "--all", "-o", self.folder / "out" / "m")
        other = self.train(2, run="other", sets=["train.max_steps=50"], arguments=["--resume", self.folder / "out" / "m-40"])
        same = self.train(2, sets=["train.max_steps=50"])
        self.assertIn("resuming from step 40", other.log)
        self.assertEqual(other.summary()["parameters_sha256"], same.summary()["parameters_sha256"])

    def test_diff_answers_with_its_exit_code(self):
        saves = ["train.max_steps=40", "checkpoint.save_checkpoints_steps=20"]
        first, second = (self.train(ranks, run=f"run{ranks}", sets=saves).folder / "checkpoints" for ranks in (1, 2))
        self.assertIn(" same\n", self.tool("ckpt", "diff", first, first / "model.ckpt-40"))
        told = json.loads(self.tool("ckpt", "diff", first / "model.ckpt-20", first, "--json", expect=1))
        rows = {row["key"]: row for row in told["tensors"]}
        self.assertFalse(told["equal"])
        self.assertEqual(rows["model/classifier/weight"]["verdict"], "differs")
        self.assertGreater(rows["model/classifier/weight"]["max_difference"], 0)
        self.assertEqual(rows["_lockstep/settings"]["verdict"], "same")
        self.tool("ckpt", "diff", first, second, "--under", "_lockstep/sampler")
        self.tool("ckpt", "diff", first, self.folder / "nowhere", expect=66)

    def test_gc_waits_for_the_run_and_leaves_what_it_needs(self):
        saves = ["checkpoint.save_checkpoints_steps=20", "checkpoint.keep_checkpoint_max=-1", "summary.progress_secs=0"]
        run = self.start(2, config=ENDLESS, sets=saves)
        run.wait_for_commit(60)
        folder = run.folder / "checkpoints"
        refused = self.tool("ckpt", "gc", folder, "--keep", "1", expect=73)
        self.assertRegex(refused, r"nothing was removed.*\(pid \d+ on ")
        for pid in run.rank_pids().values():
            os.kill(pid, signal.SIGKILL)
        run.wait()
        (folder / "model.ckpt-7.data-00000-of-00002").write_text("left by a killed run")
        told = json.loads(self.tool("ckpt", "gc", folder, "--keep", "2", "--json"))
        self.assertIn("model.ckpt-7.data-00000-of-00002", [row["file"] for row in told["removed"]])
        self.assertGreater(told["bytes_freed"], 20)
        left = sorted(int(path.stem.rsplit("-", 1)[1]) for path in folder.glob("*.index"))
        self.assertEqual(len(left), 2)
        self.assertEqual({path.name.split(".data")[0] for path in folder.glob("*.data-*")}, {f"model.ckpt-{step}" for step in left})
        self.assertIn("sound", self.tool("ckpt", "verify", folder))
        again = self.train(2, config=ENDLESS, sets=[*saves, f"train.max_steps={left[-1] + 5}"])
        self.assertIn(f"resuming from step {left[-1]}", again.log)

    def test_networks_with_branches_answer_as_in_their_runs(self):
        for name, model in BRANCHING.items():
            with self.subTest(name):
                self.check(self.train(1, run=name, config=ENDLESS, sets=[f"model={model}", *SHORT]))

    def test_quantized_networks_with_branches_answer_as_in_their_runs(self):
        for name, model in BRANCHING.items():
            with self.subTest(name):
                config = self.folder / f"{name}.yaml"
                config.write_text(ENDLESS.read_text() + "modifiers: [!QuantizationModifier {start_epoch: 0.0}]\n")
                run = self.train(1, run=name, config=config, sets=[f"model={model}", *SHORT])
                for options in ([], ["--quantize"]):
                    file = self.folder / f"{name}.onnx"
                    text = self.tool("ckpt", "export", run.folder / "checkpoints", "--format", "onnx", *options, "-o", file)
                    self.assertRegex(text, r"\d+ quantized layers round their inputs")
                    answers, eval_ = answers_of(file), run.summary()["eval"]
                    print(name, options, answers, eval_)
                    # Values near the middle between two steps may be rounded to the other one.
                    self.assertAlmostEqual(answers["loss"], eval_["loss"], delta=2e-3)
                    self.assertAlmostEqual(answers["accuracy"], eval_["accuracy"], delta=0.01)

    def test_check_tells_the_formats_before_training(self):
        for model in ("{type: resnet50}", "{type: vit, patch_size: 2, num_layers: 1, num_heads: 1, hidden_dim: 4, mlp_dim: 4}"):
            self.assertIn("\n  exports: safetensors, torchscript, onnx, tensorflow, pretrained\n", self.tool("check", ENDLESS, "--set", f"model={model}"))
        network = f"model={{type: python, path: {SOURCE}/tests/integration/programs/python/nets.py, name: LeNet}}"
        self.assertIn("\n  exports: safetensors, onnx, pt2, tensorflow, pretrained (onnx and pt2 if torch.export can trace forward)\n",
                      self.tool("check", ENDLESS, "--set", network))


if __name__ == "__main__":
    unittest.main()
