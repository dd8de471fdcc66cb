"""What torch.export makes of networks: their own outputs in plain PyTorch and onnxruntime, or the line that it cannot trace. Folders of transformers
against its own reading."""
import collections
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "tests/support"), os.environ["LOCKSTEP_GLUE"]]
from cpu_torch import torch  # noqa: E402
import onnxruntime  # noqa: E402
import transformers  # noqa: E402
from lockstep_glue import export_program, read_pretrained, save_pretrained  # noqa: E402
from lockstep_glue.faults import Fault  # noqa: E402
from lockstep_glue.user_modules import import_file  # noqa: E402
from torch import nn  # noqa: E402

NETS = import_file(SOURCE / "tests/integration/programs/python/pretrained_nets.py")
# Opens programs without the modules' code and without transformers.
OPEN = f"""
import pathlib, sys
sys.path.insert(0, {str(SOURCE / "tests/support")!r})
from cpu_torch import torch
for program in pathlib.Path(sys.argv[1]).glob("*.pt2"):
    found = [torch.export.load(program).module()(inputs) for inputs in torch.load(program.with_suffix(".inputs"))]
    torch.save([list(one) if isinstance(one, (tuple, list)) else [one] for one in found], program.with_suffix(".outputs"))
assert "transformers" not in sys.modules
"""
Named = collections.namedtuple("Named", "hidden logits more")


class Ways(nn.Module):
    """A linear layer, used as `how` says. `seen` counts the calls, which an export must not add to."""

    def __init__(self, how):
        super().__init__()
        self.how, self.layer = how, nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        return getattr(self, self.how)(x)

    def counts(self, x):
        self.seen.add_(1)
        return self.layer(x) + self.seen

    def pair(self, x):
        return self.layer(x), x.mean(1)

    def named(self, x):
        return Named(x, self.layer(x), x)

    def mapping(self, x):
        return {"hidden": x, "logits": self.layer(x)}

    def rows(self, x):
        return self.layer(x).reshape(2, 3)  # not traced

    def values(self, x):
        return self.layer(x) if x.sum() > 0 else x[:, :3]  # not traced

    def items(self, x):
        return self.layer(x)[:int(x.abs().sum())]  # not traced

    def arrays(self, x):
        return self.layer(torch.from_numpy(x.numpy() + 1))  # not traced


SOUND = {**{how: (Ways(how), None) for how in ("counts", "pair", "named", "mapping")},
         **{name: (getattr(NETS, name)(), 30) for name in ("Gpt2", "Bert", "T5")}, "Vit": (NETS.Vit(), None),
         "plain class": (transformers.BertForMaskedLM(NETS.Bert().config), 30)}  # returns its own class, without a wrapper


def outputs_of(returned):
    if isinstance(returned, torch.Tensor):
        return [returned]
    return list(returned) if type(returned) is tuple else [returned["logits"] if isinstance(returned, dict) else returned.logits]


class Exports(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def inputs(self, samples, module, tokens):
        if tokens:
            return torch.randint(tokens, (samples, 8))
        return torch.rand(samples, 1, 8, 8) if isinstance(module, NETS.Vit) else torch.rand(samples, 4)

    def check_onnx(self, inputs, expected):
        session = onnxruntime.InferenceSession(self.folder / "onnx", providers=["CPUExecutionProvider"])
        for one, outputs in zip(inputs, expected, strict=True):
            torch.testing.assert_close([torch.from_numpy(each) for each in session.run(None, {"inputs": one.numpy()})], outputs, rtol=1e-5, atol=1e-5)

    def test_files_compute_what_the_networks_do(self):
        expected = {}
        for name, (module, tokens) in SOUND.items():
            with self.subTest(name):
                before = {key: tensor.clone() for key, tensor in module.eval().state_dict().items()}
                for form, file in (("pt2", f"{name}.pt2"), ("onnx", "onnx")):
                    export_program(types.SimpleNamespace(module=module), str(self.folder / file), form, self.inputs(2, module, tokens), {"step": "3"})
                for key, tensor in module.state_dict().items():
                    self.assertTrue(torch.equal(tensor, before[key]), key)
                inputs = [self.inputs(samples, module, tokens) for samples in (1, 5)]
                torch.save(inputs, self.folder / f"{name}.inputs")
                with torch.no_grad():
                    expected[name] = [outputs_of(torch.func.functional_call(module, {key: each.clone() for key, each in module.named_buffers()}, (one,)))
                                      for one in inputs]
                self.check_onnx(inputs, expected[name])
        done = subprocess.run([sys.executable, "-c", OPEN, self.folder], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(set(expected), set(SOUND))
        for name, outputs in expected.items():
            with self.subTest(name, form="pt2"):
                torch.testing.assert_close(torch.load(self.folder / f"{name}.outputs"), outputs, rtol=1e-5, atol=1e-5)

    def test_what_cannot_be_traced_has_its_line(self):
        lines = pathlib.Path(__file__).read_text().splitlines()
        ways = import_file(pathlib.Path(__file__))  # as a file of a user
        for how in ("rows", "values", "items", "arrays"):
            line = next(i for i, text in enumerate(lines, 1) if f"def {how}(" in text) + 1
            for form in ("pt2", "onnx"):
                with self.subTest(how, form=form), self.assertRaises(Fault) as raised:
                    export_program(types.SimpleNamespace(module=ways.Ways(how).eval()), str(self.folder / "out"), form, torch.zeros(2, 4), {})
                self.assertTrue(str(raised.exception).startswith(f"{pathlib.Path(__file__).resolve()}:{line}: "), raised.exception)
                self.assertIn("# not traced", str(raised.exception).splitlines()[1])

    def test_a_folder_is_read_as_it_was_written(self):
        for name in ("Gpt2", "Bert", "T5", "Mixtral", "Vit"):
            with self.subTest(name):
                written, other = (types.SimpleNamespace(module=getattr(NETS, name)()) for _ in range(2))
                folder = self.folder / name
                self.assertTrue(save_pretrained(written, str(folder), 3000))
                self.assertGreater(len(list(folder.glob("model-*.safetensors"))), 1)
                expected = written.module.state_dict()
                found = read_pretrained(other, str(folder))
                self.assertEqual(set(found), set(expected))
                for key, tensor in expected.items():
                    self.assertTrue(torch.equal(found[key], tensor), key)

    def test_a_folder_of_the_trunk_lacks_the_head(self):
        module = NETS.Vit()
        transformers.ViTModel(module.config).save_pretrained(self.folder / "trunk")
        found = read_pretrained(types.SimpleNamespace(module=module), str(self.folder / "trunk"))
        self.assertEqual(set(module.state_dict()) - set(found), {"classifier.weight", "classifier.bias"})

    def test_other_modules_write_no_weights_of_their_own(self):
        network = types.SimpleNamespace(module=nn.Linear(2, 2))
        self.assertFalse(save_pretrained(network, str(self.folder), 3000))
        self.assertIsNone(read_pretrained(network, str(self.folder)))
        network.module.config = NETS.Bert().config
        self.assertFalse(save_pretrained(network, str(self.folder), 3000))
        self.assertEqual([path.name for path in self.folder.iterdir()], ["config.json"])


if __name__ == "__main__":
    unittest.main()
