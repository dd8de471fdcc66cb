"""The shipped configuration that prunes to 90 % and trains on for int8: accuracy, zeros, the same answers in whole numbers."""
import array
import json
import re
import struct
import subprocess
import unittest

from exported import answers_of, require_torch
from harness import SOURCE, LockstepTest

PYTHON = SOURCE / ".venv-test" / "bin" / "python"
CONFIG = SOURCE / "configs" / "digits_qat.yaml"
NUM_WEIGHTS = {"blocks.0.conv": 144, "blocks.1.conv": 4608, "blocks.2.conv": 18432, "classifier": 2560}


def rows_of(table):
    """Layer -> (stored as, weights, masked, not zero before, not zero after, rounded to zero)."""
    found = re.findall(r"^(\S+) +(int8|float32)((?: +\d+){5})$", table, re.M)
    return {layer: (stored, *map(int, counts.split())) for layer, stored, counts in found}


def int8_weights(file):
    """Layer -> flat list, out of a safetensors file."""
    data = file.read_bytes()
    header_end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:header_end])
    return {layer: array.array("b", data[header_end:][slice(*header[layer + ".weight"]["data_offsets"])]).tolist()
            for layer in NUM_WEIGHTS}


class Quantize(LockstepTest):
    def saved_values(self, run):
        shown = self.tool("ckpt", "show", run.folder / "checkpoints", "--json", "--values")
        return {tensor["key"]: tensor["values"] for tensor in json.loads(shown)["tensors"] if tensor["key"]}

    def check_zeros(self, run, file):
        """Checks zeros by the save's own masks and weights, not by the tool's output."""
        saved, converted = self.saved_values(run), int8_weights(file)
        for layer, num_weights in NUM_WEIGHTS.items():
            path = layer.replace(".", "/")
            weights, bits = saved[f"model/{path}/weight"], saved[f"_lockstep/masks/{path}/weight"]
            pruned = [i for i in range(num_weights) if not bits[i // 8] >> i % 8 & 1]
            self.assertAlmostEqual(len(pruned), 0.9 * num_weights, delta=0.5)
            self.assertEqual({weights[i] for i in pruned}, {0})
            self.assertEqual({converted[layer][i] for i in pruned}, {0})
            self.assertGreater(sum(value != 0 for value in converted[layer]), 0.05 * num_weights)

    def export(self, run, *arguments, expect=0):
        file = self.folder / "digits.safetensors"
        return file, self.tool("ckpt", "export", run.folder / "checkpoints", "-o", file, *arguments, expect=expect)

    def test_pruned_and_quantized_digits_keep_their_accuracy(self):
        run = self.train(2, config=CONFIG)
        summary = run.summary()
        self.assertGreaterEqual(summary["eval"]["accuracy"], 0.95)
        self.assertGreaterEqual(summary["sparsity"], 0.8999)
        file, table = self.export(run, "--quantize")
        print(table, end="")
        rows = rows_of(table)
        self.assertEqual({layer: row[1] for layer, row in rows.items()}, NUM_WEIGHTS)
        for layer, (stored, weights, masked, before, after, _) in rows.items():
            self.assertEqual(stored, "int8")
            self.assertAlmostEqual(masked, 0.9 * weights, delta=0.5)
            self.assertEqual((before, after), (0, 0), layer)
        self.check_zeros(run, file)
        self.assertLess(file.stat().st_size, 25_866 * 4 / 3)

        done = subprocess.run([PYTHON, SOURCE / "tests/integration/programs/int8_digits.py", file,
                               SOURCE / "data" / "digits" / "digits.csv"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        print(f"trained: {summary['eval']}\nin whole numbers: {done.stdout}", end="")
        whole_numbers = json.loads(done.stdout)
        self.assertEqual(whole_numbers["samples"], 359)
        self.assertAlmostEqual(whole_numbers["accuracy"], summary["eval"]["accuracy"], delta=1 / 359 + 1e-9)
        self.assertAlmostEqual(whole_numbers["loss"], summary["eval"]["loss"], delta=1e-4)
        self.assertLess(whole_numbers["logit_difference"], whole_numbers["logit_step"])
        self.check_other_formats(run)

    def check_other_formats(self, run):
        """Files with a forward pass round as evaluation did, and their manifests describe it."""
        measured = run.summary()["eval"]
        for form, name, flags, carries in (("onnx", "fake.onnx", [], "fake"), ("onnx", "int8.onnx", ["--quantize"], "int8"),
                                           ("torchscript", "fake.pt", [], "fake")):
            if form == "torchscript":
                require_torch()
            file = self.folder / name
            self.tool("ckpt", "export", run.folder / "checkpoints", "--format", form, "-o", file, *flags)
            manifest = json.loads((self.folder / (name + ".json")).read_text())
            answers = answers_of(file)
            print(name, answers, measured)
            self.assertEqual((manifest["eval"], manifest["quantization"]), (measured, carries), name)
            self.assertAlmostEqual(answers["accuracy"], measured["accuracy"], delta=1 / 359 + 1e-9, msg=name)
            self.assertAlmostEqual(answers["loss"], measured["loss"], delta=1e-3 if form == "onnx" else 1e-5, msg=name)
        sizes = [(self.folder / name).stat().st_size for name in ("fake.onnx", "int8.onnx")]
        self.assertLess(sizes[1], sizes[0] / 2)
        self.tool("ckpt", "export", run.folder / "checkpoints", "--format", "tensorflow", "-o", self.folder / "tf" / "m")
        manifest, = (json.loads(path.read_text()) for path in self.folder.glob("tf/m-*.json"))
        self.assertEqual((manifest["eval"], manifest["quantization"]), (None, "left out"))

    def test_a_network_in_python_is_exported_as_onnx(self):
        network = SOURCE / "tests/integration/programs/python/nets.py"
        sets = [f"model={{type: python, path: {network}, name: LeNet}}", "recipe=null", "train.max_steps=69", "eval.every_epochs=3"]
        measured, losses = {}, {}
        for name, more in (("quantized", ["modifiers=[!QuantizationModifier {start_epoch: 1}]"]), ("plain", [])):
            run = self.train(2, run=name, sets=[*sets, *more])
            measured[name] = run.summary()["eval"]
            self.assertGreater(measured[name]["accuracy"], 0.5)
            for flags in ([], ["--quantize"]) if more else ([],):
                file = self.folder / f"{name}{len(flags)}.onnx"
                self.tool("ckpt", "export", run.folder / "checkpoints", "--format", "onnx", "-o", file, *flags)
                answers = answers_of(file)
                self.assertAlmostEqual(answers["accuracy"], measured[name]["accuracy"], delta=1 / 359 + 1e-9)
                self.assertAlmostEqual(answers["loss"], measured[name]["loss"], delta=1e-3)
                losses[name, len(flags)] = answers["loss"]
        self.assertLess((self.folder / "quantized1.onnx").stat().st_size, (self.folder / "quantized0.onnx").stat().st_size)
        self.assertEqual(losses["quantized", 0], losses["quantized", 1])

    def test_a_resumed_run_takes_the_same_path(self):
        """Stopped within quantization: scales of the next step come from the save."""
        early = ["train.max_steps=120", "eval.every_epochs=0", "recipe=" + str(self.recipe())]
        whole = self.train(2, config=CONFIG, run="whole", sets=early)
        self.train(2, config=CONFIG, run="parts", sets=[*early, "train.max_steps=70"])
        parts = self.train(2, config=CONFIG, run="parts", sets=early)
        self.assertIn("resuming from step 70", parts.log)
        self.assertEqual(parts.summary()["parameters_sha256"], whole.summary()["parameters_sha256"])
        ranges = [{key: values for key, values in self.saved_values(run).items() if "/quantization/" in key}
                  for run in (whole, parts)]
        self.assertEqual(len(ranges[0]), 4 * 4)
        self.assertEqual(ranges[0]["_lockstep/quantization/classifier/observations"], [120 - 46])
        self.assertEqual(*ranges)

    def recipe(self):
        path = self.folder / "early.yaml"
        path.write_text("version: 1.0.0\nmodifiers:\n  - !QuantizationModifier {start_epoch: 2.0}\n")
        return path

    def test_a_save_without_quantization_is_refused(self):
        run = self.train(2, sets=["train.max_steps=20"])
        file, message = self.export(run, "--quantize", expect=64)
        self.assertIn("model.ckpt-20: no layer of it is quantized", message)
        self.assertFalse(file.exists())
        self.export(run)
        self.assertTrue(file.exists())


if __name__ == "__main__":
    unittest.main()
