"""Exported files in the hands of those they are for: PyTorch, onnx, onnxruntime, safetensors, TensorFlow.

usage: export_oracle.py torch|tensorflow EXPORT_DRIVER [unittest arguments]
The driver exports every type of network in every format, with the logits that the network itself computed. PyTorch and
TensorFlow do not fit into one process, so each has a run of its own.
"""
import functools
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

JUDGE, DRIVER = sys.argv.pop(1), sys.argv.pop(1)
TITLES = {"digits_net", "by_default", "mlp_gelu", "mlp_tanh", "mlp_deep", "cnn", "cnn_batch_norm", "mnist_net", "lenet", "mobilenet_v1", "branches",
          "resnet18", "resnet50", "vgg11", "vgg16", "vit", "gpt", "gpt_without_biases"}
QUANTIZED = {"digits_net_quantized", "digits_net_per_tensor", "mlp_quantized", "cnn_partly_quantized", "cnn_batch_norm_quantized",
             "mobilenet_v1_quantized", "branches_quantized", "resnet18_quantized", "resnet50_quantized", "vgg11_quantized", "vit_quantized", "gpt_quantized",
             "digits_net_weights_only"}
# Some of their many values lie so near the middle between two steps that QuantizeLinear, which divides, rounds to the other one than training,
# which multiplies. ONNX is then allowed 1 %, less than what rounding changes, and no other class.
TIES = {"branches_quantized", "resnet50_quantized", "vgg11_quantized"}
TOLERANCE = 1e-5  # relative to the largest logit

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
if JUDGE == "torch":
    from cpu_torch import torch
    import onnx
    import onnxruntime
    from safetensors.numpy import load_file
else:
    import os
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf
    from safetensors.numpy import load_file


@functools.cache
def exported():
    """Files that the driver wrote, once for all classes of this process."""
    folder = tempfile.TemporaryDirectory(prefix="lockstep-export-")
    unittest.addModuleCleanup(folder.cleanup)
    subprocess.run([DRIVER, folder.name], check=True, timeout=200)
    return pathlib.Path(folder.name)


class Exported:
    @classmethod
    def setUpClass(cls):
        cls.networks = {path.name: path for path in (exported() / "plain").iterdir()}
        cls.quantized = {path.name: path for path in (exported() / "quantized").iterdir()}

    def check_titles(self, found, titles, name):
        self.assertEqual(set(found), titles, f"titles of saved_networks.h: add to {name} of export_oracle.py {sorted(set(found) - titles)}, "
                         f"take away {sorted(titles - set(found))}")

    def for_each(self, check):
        """check(folder, answers) for every network, each in a subtest of its own: one that fails hides no other."""
        self.check_titles(self.networks, TITLES, "TITLES")
        for title, folder in sorted(self.networks.items()):
            with self.subTest(title):
                check(folder, load_file(folder / "answers.safetensors"))

    def test_the_answers_say_something_of_the_layers(self):
        """Logits depend on the layers. If signals fade or units die, logits are biases, and any network would pass."""
        def check(folder, answers):
            logits = answers["logits"]
            self.assertGreater(np.ptp(logits, axis=0).max() / np.abs(logits).max(), 0.2)
        self.for_each(check)

    def check_logits(self, logits, answers):
        self.assertEqual(logits.dtype, np.float32)
        self.assertEqual(logits.shape, answers["logits"].shape)
        error = np.abs(logits - answers["logits"]).max() / np.abs(answers["logits"]).max()
        self.assertLess(error, TOLERANCE)
        return error

    def tensors_of(self, answers):
        return {name.removeprefix("tensor."): values for name, values in answers.items() if name.startswith("tensor.")}


@unittest.skipUnless(JUDGE == "torch", "another run's")
class TorchScript(Exported, unittest.TestCase):
    def test_logits_are_the_model_s_own(self):
        def check(folder, answers):
            module = torch.jit.load(folder / "model.torchscript")
            self.assertFalse(module.training)
            logits = module(torch.from_numpy(answers["inputs"])).detach().numpy()
            print(folder.name, "torchscript", self.check_logits(logits, answers))
            module.train()  # evaluation is all it can do
            self.assertTrue(np.array_equal(module(torch.from_numpy(answers["inputs"])).detach().numpy(), logits))
        self.for_each(check)

    def test_state_dict_has_the_model_s_names(self):
        def check(folder, answers):
            module = torch.jit.load(folder / "model.torchscript")
            expected = {name: values for name, values in self.tensors_of(answers).items() if ".num_batches" not in name}
            self.assertEqual({name: values.numpy().tolist() for name, values in module.state_dict().items()},
                             {name: values.tolist() for name, values in expected.items()})
            self.assertEqual({name for name, _ in module.named_buffers()}, {name for name in expected if ".moving_" in name or ".running_" in name})
        self.for_each(check)

    def test_facts_travel_in_the_archive(self):
        facts = {"source": "", "step": "", "producer": ""}
        torch.jit.load(self.networks["cnn"] / "model.torchscript", _extra_files=facts)
        self.assertEqual((facts["source"], facts["step"]), (b"m-30", b"30"))

    def test_it_can_be_frozen_and_saved_again(self):
        def check(folder, answers):
            frozen = torch.jit.freeze(torch.jit.load(folder / "model.torchscript"))
            frozen.save(folder / "again.pt")
            logits = torch.jit.load(folder / "again.pt")(torch.from_numpy(answers["inputs"]))
            self.check_logits(logits.detach().numpy(), answers)
        self.for_each(check)


@unittest.skipUnless(JUDGE == "torch", "another run's")
class Onnx(Exported, unittest.TestCase):
    def test_logits_are_the_model_s_own_for_any_batch(self):
        def check(folder, answers):
            session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
            logits = session.run(["logits"], {"inputs": answers["inputs"]})[0]
            print(folder.name, "onnx", self.check_logits(logits, answers))
            for batch in (0, 1, 3):
                if batch == 0 and folder.name == "branches":
                    continue  # onnxruntime merges a product with the transpositions of its operands, and then cannot compute an empty one
                part = session.run(None, {"inputs": answers["inputs"][:batch]})[0]
                self.assertEqual(part.shape, (batch, *logits.shape[1:]))
                self.assertTrue(np.allclose(part, logits[:batch], rtol=1e-5, atol=1e-6))
        self.for_each(check)

    def test_engine_sparse_computes_it(self):
        self.for_each(lambda folder, answers: self.check_logits(answers["model.onnx"], answers))

    def test_the_checker_passes_it(self):
        def check(folder, answers):
            model = onnx.load(folder / "model.onnx")
            onnx.checker.check_model(model, full_check=True)
            self.assertEqual([(one.domain, one.version) for one in model.opset_import], [("", 17)])
            inputs, = model.graph.input
            extents = [answers["inputs"].shape[1:], answers["logits"].shape[1:]]
            if folder.name.startswith("gpt"):
                extents = [["tokens"], ["tokens", 11]]
            for value, wanted in zip([inputs, *model.graph.output], extents):
                self.assertEqual([dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim], ["batch", *wanted])
            self.assertEqual({entry.key: entry.value for entry in model.metadata_props}["step"], "30")
            values = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
            for name, expected in self.tensors_of(answers).items():
                if ".num_batches" not in name:
                    self.assertTrue(np.array_equal(values[name], expected), name)
        self.for_each(check)

    def test_texts_of_any_length_are_answered(self):
        """A token sees earlier ones alone, so a shorter text has the first logits of a longer one."""
        for title in ("gpt", "gpt_without_biases"):
            answers = load_file(self.networks[title] / "answers.safetensors")
            session = onnxruntime.InferenceSession(self.networks[title] / "model.onnx", providers=["CPUExecutionProvider"])
            module = torch.jit.load(self.networks[title] / "model.torchscript")
            for tokens in (1, 2, 5):
                inputs = answers["inputs"][:, :tokens]
                for logits in (session.run(None, {"inputs": inputs})[0], module(torch.from_numpy(inputs)).detach().numpy()):
                    self.assertTrue(np.allclose(logits, answers["logits"][:, :tokens], rtol=1e-4, atol=1e-5), (title, tokens))


@unittest.skipUnless(JUDGE == "torch", "another run's")
class Quantized(Exported, unittest.TestCase):
    """Files of networks that round their inputs and weights: the rounding is in them, by the operators that runtimes look for."""

    def for_each(self, check):
        self.check_titles(self.quantized, QUANTIZED, "QUANTIZED")
        for title, folder in sorted(self.quantized.items()):
            with self.subTest(title):
                check(folder, load_file(folder / "answers.safetensors"))

    def check_rounded(self, logits, answers, title=""):
        shows = np.abs(answers["plain_logits"] - answers["logits"]).max() / np.abs(answers["logits"]).max()
        self.assertGreater(shows, 20 * TOLERANCE)
        if title not in TIES:
            return self.check_logits(logits, answers)
        error = np.abs(logits - answers["logits"]).max() / np.abs(answers["logits"]).max()
        print(title, "with values rounded to the other step", error, "of", shows)
        self.assertLess(error, min(shows, 0.01))
        self.assertTrue(np.array_equal(logits.argmax(-1), answers["logits"].argmax(-1)))

    def onnx_logits(self, file, answers, optimized=False):
        options = onnxruntime.SessionOptions()
        if not optimized:  # each operator as it is written
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        return session.run(["logits"], {"inputs": answers["inputs"]})[0]

    def counts(self, file):
        model = onnx.load(file)
        onnx.checker.check_model(model, full_check=True)
        ops = [node.op_type for node in model.graph.node]
        return ops.count("QuantizeLinear"), ops.count("DequantizeLinear"), sum(ops.count(op) for op in ("Conv", "Gemm", "MatMul"))

    def test_onnx_rounds_as_evaluation_did(self):
        def check(folder, answers):
            self.check_rounded(self.onnx_logits(folder / "model.onnx", answers), answers, folder.name)
            layers = sum(name.endswith(".weight_scale") for name in load_file(folder / "model.safetensors"))
            inputs = 0 if folder.name == "digits_net_weights_only" else layers
            quantize, dequantize, computing = self.counts(folder / "model.onnx")
            self.assertEqual((quantize, dequantize), (layers + inputs, layers + inputs))
            self.assertLessEqual(layers, computing)
        self.for_each(check)

    def test_int8_onnx_computes_the_same(self):
        def check(folder, answers):
            file = folder / "int8.onnx"
            if folder.name == "digits_net_weights_only":
                return self.assertFalse(file.exists())
            self.check_rounded(self.onnx_logits(file, answers), answers, folder.name)
            stored = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(file).graph.initializer}
            expected = load_file(folder / "int8.safetensors")
            layers = 0
            for name, values in expected.items():
                if name.endswith(".weight"):
                    self.assertEqual(stored[name].dtype, values.dtype)
                    self.assertTrue(np.array_equal(stored[name], values), name)
                    layers += values.dtype == np.int8
            self.assertGreater(layers, 0)
            self.assertEqual(self.counts(file)[:2], (layers, 2 * layers))
        self.for_each(check)

    def test_engine_sparse_computes_both(self):
        def check(folder, answers):
            for name in ("model.onnx", "int8.onnx"):
                self.assertEqual(name in answers, (folder / name).exists())
                if name in answers:
                    self.check_rounded(answers[name], answers, folder.name)
        self.for_each(check)

    def test_what_a_runtime_fuses_stays_near(self):
        """onnxruntime's own choice of int8 kernels; they may saturate or round a step otherwise."""
        looked_at = set()
        def check(folder, answers):
            for name in ("model.onnx", "int8.onnx"):
                if (folder / name).exists():
                    looked_at.add(name)
                    logits = self.onnx_logits(folder / name, answers, optimized=True)
                    error = np.abs(logits - answers["logits"]).max() / np.abs(answers["logits"]).max()
                    print(folder.name, name, "optimized", error)
                    self.assertLess(error, 0.1)
        self.for_each(check)
        self.assertEqual(looked_at, {"model.onnx", "int8.onnx"})

    def test_torchscript_rounds_by_pytorch_s_operators(self):
        def check(folder, answers):
            module = torch.jit.load(folder / "model.torchscript")
            self.check_rounded(module(torch.from_numpy(answers["inputs"])).detach().numpy(), answers, folder.name)
            expected = load_file(folder / "model.safetensors")
            scales = [name for name in expected if name.endswith(".weight_scale")]
            for name in scales:
                self.assertTrue(np.array_equal(module.state_dict()[name].numpy(), expected[name]), name)
            graph = str(module.inlined_graph)
            self.assertGreaterEqual(graph.count("aten::fake_quantize_per_"), len(scales))
        self.for_each(check)

    def test_weights_are_rounded_as_pytorch_rounds_them(self):
        """PyTorch's own operator on the saved weights, with the file's scales, against the int8 file."""
        def check(folder, answers):
            plain = load_file(folder / "model.safetensors")
            if not (folder / "int8.safetensors").exists():
                return
            whole = load_file(folder / "int8.safetensors")
            for name in (name.removesuffix("_scale") for name in plain if name.endswith(".weight_scale")):
                weight, scale = torch.from_numpy(plain[name]), torch.from_numpy(plain[name + "_scale"])
                rounded = (torch.fake_quantize_per_channel_affine(weight, scale, torch.zeros(len(scale), dtype=torch.int32), 0, -127, 127)
                           if len(scale) == len(weight) else
                           torch.fake_quantize_per_tensor_affine(weight, float(scale), 0, -127, 127))
                shape = [-1] + [1] * (weight.dim() - 1)
                self.assertTrue(torch.equal(rounded, torch.from_numpy(whole[name]).float() * scale.view(shape)), name)
        self.for_each(check)


@unittest.skipUnless(JUDGE == "torch", "another run's")
class Safetensors(Exported, unittest.TestCase):
    def test_every_tensor_is_there(self):
        def check(folder, answers):
            found = load_file(folder / "model.safetensors")
            expected = self.tensors_of(answers)
            self.assertEqual(set(found), set(expected))
            whole = load_file(folder / "model.pretrained" / "model.safetensors")
            self.assertEqual({name: values.tobytes() for name, values in whole.items()}, {name: values.tobytes() for name, values in expected.items()})
            for name, values in expected.items():
                self.assertEqual(found[name].dtype, values.dtype)
                self.assertTrue(np.array_equal(found[name], values), name)
        self.for_each(check)

    def test_the_manifest_lists_them(self):
        def check(folder, answers):
            manifest = json.loads((folder / "model.safetensors.json").read_text())
            self.assertEqual({one["name"]: one["shape"] for one in manifest["tensors"]},
                             {name: list(values.shape) for name, values in self.tensors_of(answers).items()})
        self.for_each(check)


@unittest.skipUnless(JUDGE == "tensorflow", "another run's")
class TensorFlow(Exported, unittest.TestCase):
    def objects(self, tensors):
        """Nested objects whose variables have these dotted names, filled with zeros."""
        root = tf.Module()
        variables = {}
        for name, values in tensors.items():
            at = root
            *parts, last = name.split(".")
            for part in parts:
                if not hasattr(at, part):
                    setattr(at, part, tf.Module())
                at = getattr(at, part)
            variables[name] = tf.Variable(tf.zeros(values.shape, values.dtype))
            setattr(at, last, variables[name])
        return root, variables

    def test_checkpoint_restores_every_variable(self):
        def check(folder, answers):
            expected = self.tensors_of(answers)
            model, variables = self.objects(expected)
            prefix = tf.train.latest_checkpoint(folder)
            self.assertEqual(pathlib.Path(prefix), folder / "model.tensorflow-30")
            checkpoint = tf.train.Checkpoint(model=model)
            checkpoint.restore(prefix).assert_consumed()
            self.assertEqual(int(checkpoint.save_counter), 30)
            for name, values in expected.items():
                self.assertTrue(np.array_equal(variables[name].numpy(), values), name)
        self.for_each(check)

    def test_tensors_are_whole(self):
        def check(folder, answers):
            listed = dict(tf.train.list_variables(folder))
            for name, values in self.tensors_of(answers).items():
                key = f"model/{name.replace('.', '/')}/.ATTRIBUTES/VARIABLE_VALUE"
                self.assertEqual(listed[key], list(values.shape))
        self.for_each(check)


if __name__ == "__main__":
    unittest.main()
