"""Networks in Python as files of torch.export and ONNX: plain PyTorch and onnxruntime compute what the network itself does."""
import functools
import json
import os
import pathlib
import unittest
import unittest.mock

import warm
from exported import PYTHON, require_packages
from harness import SOURCE

FILES = pathlib.Path(__file__).parent / "programs" / "python"
CONFIG = """version: 1.0.0
run: {{name: exported, seed: 17}}
model: {{type: python, path: {files}/{module}.py, name: {net}}}
data:
  train: {{type: python, path: {files}/sets.py, name: {data}}}
  global_batch_size: 16
train: {{max_steps: 3}}
optimizer: {{type: sgd, learning_rate: 0.1}}
checkpoint: {{save_checkpoints_steps: 1000}}
"""
# Others of transformers: tests/python/exports_oracle.py.
NETWORKS = [("exported_nets", "Normed", "Points"), ("exported_nets", "Recurrent", "Points"), ("pretrained_nets", "Gpt2", "Tokens")]


@functools.cache
def interpreter():
    imports = "from cpu_torch import torch; import onnxruntime, pretrained_nets, torch.export, transformers; from safetensors.torch import load_file"
    return warm.Python(PYTHON, imports, [SOURCE / "tests/support", FILES])


class PythonExport(warm.WarmTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        require_packages("transformers", "onnxscript")

    def trained(self, module, net, data):
        config = self.folder / f"{net}.yaml"
        config.write_text(CONFIG.format(files=FILES, module=module, net=net, data=data))
        return self.train(1, config=config, run=net).folder / "checkpoints"

    def export(self, saves, form, name, expect=0):
        return self.tool("ckpt", "export", saves, "--format", form, "-o", self.folder / name, expect=expect)

    def test_both_files_compute_what_the_network_does(self):
        for module, net, data in NETWORKS:
            with self.subTest(net):
                saves = self.trained(module, net, data)
                for form, name in (("safetensors", "net.safetensors"), ("pt2", "net.pt2"), ("onnx", "net.onnx")):
                    self.export(saves, form, name)
                code, said, faults = interpreter().run(FILES / "programs_of_nets.py", FILES / f"{module}.py", net,
                                                       *(self.folder / name for name in ("net.safetensors", "net.pt2", "net.onnx")))
                self.assertEqual(code, 0, faults)
                found = json.loads(said.splitlines()[-1])
                print(net, found)
                for form, difference in found["differences"].items():
                    self.assertLess(difference, 1e-5, form)
                    self.assertEqual((found[form]["step"], found[form]["source"]), ("3", "model.ckpt-3"))
                manifest = json.loads((self.folder / "net.pt2.json").read_text())
                self.assertEqual((manifest["format"], manifest["step"], manifest["num_bytes"]), ("pt2", 3, (self.folder / "net.pt2").stat().st_size))

    def test_what_cannot_be_traced_names_the_line(self):
        lines = (FILES / "exported_nets.py").read_text().splitlines()
        for net, words in (("Branching", "if inputs.sum() > 0:"), ("Sized", ".reshape(")):
            saves = self.trained("exported_nets", net, "Points")
            line = next(i for i, text in enumerate(lines, 1) if words in text)
            for form in ("pt2", "onnx"):
                said = self.export(saves, form, "out", expect=78)
                self.assertIn(f"[python] {FILES}/exported_nets.py:{line}: ", said)
                self.assertIn(words, said)
                self.assertNotIn("def forward(self, arg0_1", said)  # graphs that torch.export prints
                self.assertEqual(list(self.folder.glob("out*")), [])

    def test_other_formats_name_the_way_out(self):
        saves = self.trained("exported_nets", "Normed", "Points")
        self.assertIn("use --format pt2 (torch.export) or onnx", self.export(saves, "torchscript", "out", expect=64))
        self.assertIn("no layer of it is quantized", self.tool("ckpt", "export", saves, "--format", "onnx", "--quantize", "-o", self.folder / "out", expect=64))
        self.assertIn("--set model.path=FILE", self.tool("ckpt", "export", saves, "--format", "pt2", "-o", self.folder / "out", "--set",
                                                         "model.path=moved.py", expect=66))
        self.assertEqual(list(self.folder.glob("out*")), [])

    def test_a_missing_package_is_named(self):
        saves = self.trained("exported_nets", "Normed", "Points")
        interpreter = SOURCE / ".venv/bin/python3"  # which has torch alone
        with unittest.mock.patch.dict(os.environ, PYTHONPATH=""):
            said = self.tool("ckpt", "export", saves, "--format", "onnx", "-o", self.folder / "out", "--set", f"model.python={interpreter}", expect=78)
        self.assertRegex(said, r"--format onnx of a network in Python needs .*onnxscript, which \S+ does not have: pip install .*onnxscript")


if __name__ == "__main__":
    unittest.main()
