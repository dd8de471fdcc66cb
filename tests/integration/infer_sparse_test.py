"""`lockstep infer --engine sparse`: a pruned run's checkpoint and its ONNX export answer as the run evaluated; the table; refusals."""
import json
import re
import shutil
import subprocess
import unittest

from harness import ANSWER_S, LOCKSTEP
from inference import DIGITS_RUN, InferTest
from stored import stored

RECIPE = """version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.0, final_sparsity: 0.9, start_step: 10, end_step: 30, update_frequency_steps: 5}
"""
SAVER = "callbacks: {tfrecords_saver: {keys: [logits]}}"
FEED = "{type: digits, split: test}"


class InferSparse(InferTest):
    def pruned(self):
        """A run of digits at 90 %, and its ONNX file."""
        folder = self.shared_folder
        (folder / "recipe.yaml").write_text(RECIPE)
        path = folder / "pruned.yaml"
        path.write_text(DIGITS_RUN.replace("name: digits", "name: pruned") + f"recipe: {folder}/recipe.yaml\n")
        run = self.shared("pruned", 1, config=path, sets=["run.device=cpu", "export.at_end=true", "export.onnx=true"])
        file = folder / "pruned.onnx"
        if not file.exists():
            done = subprocess.run([LOCKSTEP, "ckpt", "export", run.folder / "checkpoints", "--format", "onnx", "-o", file],
                                  capture_output=True, text=True, timeout=ANSWER_S)
            self.assertEqual(done.returncode, 0, done.stderr)
        return run, file

    def published(self, run):
        return max((run.folder / "saved_models").iterdir(), key=lambda folder: int(folder.name))

    def answers(self, *network, name):
        config, results = self.config(SAVER, name=f"{name}.yaml")
        told = self.infer(*network, "--config", config, "--feed", FEED)
        return [value for answer in stored(results, "logits") for value in answer], told

    def test_checkpoint_and_onnx_file_answer_as_the_plain_network(self):
        run, file = self.pruned()
        expected, _ = self.answers("--checkpoint", run.folder / "checkpoints", "--engine", "plain", name="plain")
        for name, network in (("checkpoint", ("--checkpoint", run.folder / "checkpoints")), ("file", ("--saved_model", file)),
                              ("published", ("--saved_model", self.published(run)))):
            with self.subTest(name):
                answers, told = self.answers(*network, "--engine", "sparse", "--explain", name=name)
                self.assertEqual(len(answers), len(expected))
                self.assertLess(max(abs(a - b) for a, b in zip(answers, expected)), 1e-4)
                self.assertIn("engine sparse: only kept weights where that is faster", told)
                kept = [float(share) for share in re.findall(r" ([\d.]+)% +(?:dense|sparse) ", told)]
                self.assertLess(min(kept), 15, told)
                self.assertRegex(told, r"whole network, 8 sample\(s\): dense [\d.]+ us, with the layers chosen [\d.]+ us: (dense|sparse)\n")
        answers, told = self.answers("--saved_model", file, "--explain", name="optimized")
        self.assertLess(max(abs(a - b) for a, b in zip(answers, expected)), 1e-4)
        self.assertNotIn("whole network", told)

    def test_an_export_without_onnx_is_refused_with_a_way_out(self):
        run = self.digits()
        text = self.infer("--saved_model", run.folder / "saved_models/46", "--feed", FEED, "--engine", "sparse", expect=64)
        self.assertIn("engine sparse needs the network as ONNX: give --checkpoint", text)

    def test_a_changed_file_of_a_published_export_is_damage(self):
        run, _ = self.pruned()
        export = self.folder / "export"
        shutil.copytree(self.published(run), export)
        self.assertEqual({"model.pt", "model.onnx", "losses.json", "kpi.json"}, set(json.loads((export / "manifest.json").read_text())["files"]))
        file = export / "model.onnx"
        file.write_bytes(file.read_bytes()[:-1] + b"?")
        text = self.infer("--saved_model", export, "--feed", FEED, "--engine", "sparse", expect=65)
        self.assertIn("model.onnx: is not the file listed in its manifest", text)
        self.infer("--saved_model", export, "--feed", FEED)

    def test_a_truncated_file_is_damage_and_a_missing_one_is_named(self):
        _, file = self.pruned()
        damaged = self.folder / "damaged.onnx"
        damaged.write_bytes(file.read_bytes()[:-1000])
        self.assertIn("damaged.onnx: is not an ONNX file, or is damaged", self.infer("--saved_model", damaged, "--feed", FEED, "--engine", "sparse", expect=65))
        self.assertIn("nowhere.onnx: no such file", self.infer("--saved_model", "nowhere.onnx", "--feed", FEED, expect=66))
        shutil.copy(file, self.folder / "other.onnx")
        text = self.infer("--saved_model", self.folder / "other.onnx", "--feed", "{type: random, shape: [3, 8, 8], classes: 10, samples: 8}", expect=65)
        self.assertIn("[any, 1, 8, 8]", text)


if __name__ == "__main__":
    unittest.main()
