"""Weights of other programs' files under a new head: loaded, trained and refused weights; docs/fine_tuning.md."""
import json
import pathlib
import re
import subprocess
import unittest

from harness import SOURCE, LockstepTest
from in_tensorflow import InTensorFlow

PYTHON = SOURCE / ".venv" / "bin" / "python3"
WRITE_TORCH = pathlib.Path(__file__).parent / "programs" / "python" / "mobilenet_weights.py"
PAGES = [(SOURCE / "docs" / f"{name}.md").read_text() for name in ("fine_tuning", "gpus")]
# For a page's section of a run file.
SMALL_RUN = """version: 1.0.0
run: {name: small}
model: {type: mlp, layers: [64, 10]}
data: {train: {type: random, shape: [64], classes: 10, samples: 64}, global_batch_size: 16}
optimizer: {learning_rate: 0.1}
train: {max_steps: 2}
"""
# For a page's modifiers.
SMALL_VIT = """version: 1.0.0
run: {name: vit}
model: {type: vit, patch_size: 2, num_layers: 1, num_heads: 2, hidden_dim: 16, mlp_dim: 32}
data: {train: {type: random, shape: [3, 8, 8], classes: 5, samples: 16}, global_batch_size: 16}
optimizer: {learning_rate: 0.1}
modifiers:
"""
RULES = [{"from": "features.0.0", "to": "Conv2d_0"}, {"from": "features.0.1", "to": "Conv2d_0.BatchNorm"},
         {"from": r"re:features\.(\d+)\.conv\.0\.0", "to": r"Conv2d_\1_depthwise"},
         {"from": r"re:features\.(\d+)\.conv\.0\.1", "to": r"Conv2d_\1_depthwise.BatchNorm"},
         {"from": r"re:features\.(\d+)\.conv\.1\.0", "to": r"Conv2d_\1_pointwise"},
         {"from": r"re:features\.(\d+)\.conv\.1\.1", "to": r"Conv2d_\1_pointwise.BatchNorm"},
         {"from": "classifier.1", "to": "Logits"}]
ENDINGS = {"running_mean": "moving_mean", "running_var": "moving_variance", "num_batches_tracked": "num_batches"}
CONFIG = """version: 1.0.0
run: {name: tuned, seed: 4}
model: {type: mobilenet_v1, width_multiplier: 0.25}
data: {train: {type: random, shape: [3, 32, 32], classes: 5, samples: 64}, global_batch_size: 16}
optimizer: {type: momentum, learning_rate: 0.05}
train: {max_steps: 6}
"""
# TF-slim's names and layouts of the same weights, in both formats of tf.train.Saver.
WRITE_SLIM = """
import sys
import numpy as np, tensorflow as tf
from safetensors_of import tensors_of
source, prefix, version = sys.argv[1:4]
tf1 = tf.compat.v1
def slim(name, value):
    if name.endswith("BatchNorm/num_batches"): return None
    if name.endswith("_depthwise/weight"): return name[:-6] + "depthwise_weights", value.transpose(2, 3, 0, 1)
    if name == "Logits/weight": return "Logits/Conv2d_1c_1x1/weights", value.T[None, None]
    if name == "Logits/bias": return "Logits/Conv2d_1c_1x1/biases", value
    if name.endswith("/weight"): return name + "s", value.transpose(2, 3, 1, 0)
    return name, value
with tf.Graph().as_default(), tf1.Session() as session:
    for name, value in tensors_of(source).items():
        renamed = slim(name, value)
        if renamed: tf1.get_variable("MobilenetV1/" + renamed[0], initializer=renamed[1])
    tf1.train.get_or_create_global_step()
    session.run(tf1.global_variables_initializer())
    print(tf1.train.Saver(write_version=int(version)).save(session, prefix, write_meta_graph=False))
"""


def ours(name):
    """Our name of a variable of the PyTorch network."""
    place = re.match(r"features\.(\d+)\.(?:conv\.([01])\.)?([01])\.(\w+)$", name)
    if not place:
        return "Logits/" + name.rsplit(".", 1)[1]
    block, half, is_norm, last = place.groups()
    layer = "Conv2d_0" if block == "0" else f"Conv2d_{block}_{'depthwise' if half == '0' else 'pointwise'}"
    if is_norm == "0":
        return f"{layer}/weight"
    return f"{layer}/BatchNorm/{ENDINGS.get(last, {'weight': 'gamma', 'bias': 'beta'}.get(last))}"


class FineTuning(InTensorFlow, LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        done = subprocess.run([PYTHON, WRITE_TORCH, cls.shared_folder], capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        cls.theirs = {ours(name): digest for name, digest in json.loads(done.stdout).items()}
        cls.config = cls.shared_folder / "tuned.yaml"
        cls.config.write_text(CONFIG)

    def weights(self, run):
        shown = json.loads(self.tool("ckpt", "show", run.folder / "checkpoints", "--json"))
        return {t["key"][len("model/"):]: t["sha256"] for t in shown["tensors"] if (t["key"] or "").startswith("model/")}

    def tune(self, file, *sets, ranks=1, rules=RULES, exclude="Logits", **more):
        named = [f"checkpoint.warm_start_ckpt={self.shared_folder / file}"]
        named += [f"checkpoint.warm_start_rename={json.dumps(rules)}"] if rules else []
        named += [f"checkpoint.checkpoint_exclude_scopes={exclude}"] if exclude else []
        return self.train(ranks, config=self.config, sets=[*named, *sets], **more)

    def assert_loaded(self, run, but=()):
        found = self.weights(run)
        for name, digest in self.theirs.items():
            if not name.startswith("Logits") and not name.endswith(tuple(but)):
                self.assertEqual(found[name], digest, name)
        return found

    def test_only_the_trainable_scopes_move_bit_for_bit(self):
        fresh = self.weights(self.tune("mobilenet.pt", "train.max_steps=0", run="fresh"))
        for ranks, scopes in ((1, "Logits"), (2, "[Logits, Conv2d_13]")):
            with self.subTest(ranks=ranks, scopes=scopes):
                sets = [f"train.trainable_scopes={scopes}", "sync.replica_check_every=2"]
                run = f"tuned{ranks}"
                self.tune("mobilenet.pt", *sets, "train.max_steps=3", ranks=ranks, run=run)
                tuned = self.tune("mobilenet.pt", *sets, ranks=ranks, run=run)
                self.assertIn("resuming from step 3", tuned.log)
                unbroken = self.tune("mobilenet.pt", *sets, ranks=ranks, run=f"unbroken{ranks}")
                found = self.weights(tuned)
                self.assertEqual(found, self.weights(unbroken))
                for name, digest in found.items():
                    is_trained = name.startswith(("Logits", "Conv2d_13")[:ranks])
                    self.assertEqual(digest != (fresh if name.startswith("Logits") else self.theirs)[name], is_trained, name)

    def test_without_scopes_all_moves_and_a_recipe_thaws(self):
        everything = self.weights(self.tune("mobilenet.pt", run="everything"))
        self.assertFalse([name for name, digest in self.theirs.items() if everything[name] == digest])
        thaw = self.recipe("version: 1.0.0\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: 2}\n"
                           "  - !TrainableParamsModifier {params: __ALL__, trainable: true, start_step: 3}\n")
        for steps in (3, 4):
            run = self.tune("mobilenet.pt", thaw, "train.trainable_scopes=Logits", f"train.max_steps={steps}", run=f"thawed{steps}")
            found = self.weights(run)
            moved = [name for name, digest in self.theirs.items() if not name.startswith("Logits") and found[name] != digest]
            self.assertEqual(len(moved), len(self.theirs) - 2 if steps == 4 else 0, moved)

    def test_state_dicts_in_other_forms(self):
        self.assert_loaded(self.tune("parallel.pt", "train.max_steps=0", run="parallel",
                                     rules=[{**rule, "from": re.sub("^(re:)?", r"\1module.", rule["from"])} for rule in RULES]))
        under = [{**rule, "from": re.sub("^(re:)?", r"\1model.", rule["from"])} for rule in RULES]
        refused = self.tune("parameters.pt", run="refused", rules=under, expect=78)
        self.assertIn("the checkpoint has no 'Conv2d_0.BatchNorm.moving_mean'", refused.log)
        bfloat16 = self.tune("bfloat16.pth", "train.max_steps=0", run="bfloat16")
        self.assertIn("variables loaded from", bfloat16.log)
        whole = self.tune("mobilenet.pt", run="head", exclude="", expect=78)
        self.assertIn("'classifier.1.weight' is float32 [7, 256] in the checkpoint, 'Logits.weight' is float32 [5, 256] in the model (nearest: ", whole.log)

    def test_nothing_of_a_file_is_run(self):
        for file, reason in (("code.pt", "it needs Python's 'posix.system'"), ("network.pt", "it needs Python's '__main__.MobileNetV1'"),
                             ("script.pt", "TorchScript archive"), ("old.pt", "before 1.6")):
            refused = self.tune(file, run="refused", expect=65)
            self.assertIn(reason, refused.log)
            self.assertFalse((refused.folder / "checkpoints").exists(), file)
        self.assertFalse((self.shared_folder / "ran").exists())

    def test_safetensors_and_both_formats_of_tensorflows_saver(self):
        source = self.tune("mobilenet.pt", "train.max_steps=0", run="source", exclude="Logits")
        file = self.shared_folder / "exported.safetensors"
        self.tool("ckpt", "export", source.folder / "checkpoints", "-o", file)
        self.assert_loaded(self.tune(file, "train.max_steps=0", run="safetensors", rules=None, exclude=""))

        helper = self.shared_folder / "safetensors_of.py"
        helper.write_text("import json, struct\nimport numpy as np\n"
                          "def tensors_of(path):\n"
                          "    data = open(path, 'rb').read()\n"
                          "    end = 8 + struct.unpack('<Q', data[:8])[0]\n"
                          "    types = {'F32': np.float32, 'I64': np.int64}\n"
                          "    return {name.replace('.', '/'): np.frombuffer(data[end:][slice(*entry['data_offsets'])], types[entry['dtype']]).reshape(entry['shape'])\n"
                          "            for name, entry in json.loads(data[8:end]).items() if name != '__metadata__'}\n")
        program = f"import sys\nsys.path.insert(0, {str(self.shared_folder)!r})\n" + WRITE_SLIM
        for version in (2, 1):
            prefix = self.shared_folder / f"slim_v{version}.ckpt"
            self.run_tensorflow(program, file, prefix, version)
            sets = ["train.max_steps=0"]
            rules = [{"from": "MobilenetV1/Logits/Conv2d_1c_1x1", "to": "Logits"}, {"from": "MobilenetV1", "to": ""}]
            if version == 1:
                refused = self.tune(prefix, *sets, run="v1", rules=rules, exclude="", expect=65)
                self.assertIn("first format of tf.train.Saver (V1)", refused.log)
                continue
            slim = self.tune(prefix, *sets, run="slim", rules=rules, exclude="")
            found = self.assert_loaded(slim, but=["num_batches"])
            self.assertEqual(found["Logits/weight"], self.weights(source)["Logits/weight"])
            self.assertIn("27 counters are missing", slim.log)

    def test_the_pages(self):
        snippets = [snippet for page in PAGES for snippet in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
        self.assertEqual(len(snippets), 4)
        for i, snippet in enumerate(snippets):
            config = self.folder / f"page{i}.yaml"
            config.write_text(snippet if snippet.startswith("version:") else (SMALL_VIT if snippet.startswith("- !") else SMALL_RUN) + snippet)
            file = re.search(r"warm_start_ckpt: (\S+)", snippet)
            said = self.tool("check", config, expect=66 if file else 0)
            if file:
                self.assertIn(file[1], said.splitlines()[0])  # the only fault
                self.assertEqual(said.count("["), 1, said)
        on_cpu = self.train(config=self.folder / "page2.yaml", run="gpu", sets=["run.device=cpu"])
        self.assertIn("the section gpu has no effect", on_cpu.log)
        self.config = self.folder / "page0.yaml"  # the first, with weights as the page's Python saves them
        run = self.tune("mobilenet.pt", "model.width_multiplier=0.25", run="page", rules=None, exclude="")
        self.assert_loaded(run)


if __name__ == "__main__":
    unittest.main()
