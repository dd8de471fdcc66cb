"""A new run that begins with another's weights, or TensorFlow's; parts that are not loaded, parts that are not trained."""
import json
import pathlib
import re
import sys
import unittest

from harness import PRUNE_EARLY, SOURCE, LockstepTest
from in_tensorflow import InTensorFlow

sys.path.insert(0, str(SOURCE / "tests/support"))
import skips  # noqa: E402
from object_store import StoreProcess  # noqa: E402

SETS = ["eval.every_epochs=0", "checkpoint.save_checkpoints_steps=100"]
PLAIN = "version: 1.0.0\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: 1}\n"
# A checkpoint of three shards: two variables each, whose shard TensorFlow chooses by device.
WRITE = """
import sys
import numpy as np, tensorflow as tf
from tensorflow.python.ops import gen_io_ops
source, prefix, names = sys.argv[1], sys.argv[2], sys.argv[3]
reader = tf.train.load_checkpoint(source)
ending = "/.ATTRIBUTES/VARIABLE_VALUE"
model = {n[:-len(ending)]: reader.get_tensor(n) for n in reader.get_variable_to_shape_map() if n.startswith("model/")}
renamed = {(n if names == "model" else n[len("model/"):]) + (ending if names != "plain" else ""): v for n, v in model.items()}
parts = [f"{prefix}_part{i}" for i in range(3)]
for i, part in enumerate(parts):
    chosen = sorted(renamed)[i::3]
    gen_io_ops.save_v2(part, chosen, [""] * len(chosen), [tf.constant(renamed[n]) for n in chosen])
gen_io_ops.merge_v2_checkpoints(parts, prefix)
print(len(tf.io.gfile.glob(prefix + ".data-*")), "shards")
"""
# The same weights in a model of Keras, which lays them out and names them.
WRITE_KERAS = """
import sys
import keras, tensorflow as tf
reader = tf.train.load_checkpoint(sys.argv[1])
at = lambda name: reader.get_tensor(f"model/{name}/.ATTRIBUTES/VARIABLE_VALUE")
def layer(kind, name, *order):
    kernel = at(name + "/weight").transpose(order)
    made = kind(kernel.shape[-1]) if len(order) == 2 else kind(kernel.shape[-1], kernel.shape[:2])
    made.build((None, kernel.shape[0]) if len(order) == 2 else (None, 28, 28, kernel.shape[2]))
    made.set_weights([kernel, at(name + "/bias")])
    return made
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        for i in range(3):
            setattr(self, f"conv2d_{i}", layer(keras.layers.Conv2D, f"blocks/{i}/conv", 2, 3, 1, 0))
        self.dense = layer(keras.layers.Dense, "classifier", 1, 0)
print(tf.train.Checkpoint(net=Net()).write(sys.argv[2]))
"""
KERAS_NAMES = {**{f"net/conv2d_{i}": f"blocks/{i}/conv" for i in range(3)}, "net/dense": "classifier",
               **{f"net/conv2d_{i}/_kernel": f"blocks.{i}.conv.weight" for i in range(3)}, "net/dense/_kernel": "classifier/weight"}


class WarmStart(InTensorFlow, LockstepTest):
    def weights(self, run, name="model"):
        """SHA-256 by key of the newest save."""
        shown = json.loads(self.tool("ckpt", "show", run.folder / "checkpoints", "--json"))
        return {t["key"]: t["sha256"] for t in shown["tensors"] if (t["key"] or "").startswith(name + "/")}

    def source(self):
        return self.shared("source", sets=[*SETS, "train.max_steps=30", "run.seed=5"])

    def fresh(self):
        return self.shared("fresh", sets=[*SETS, "train.max_steps=0"])

    def started_from(self, what, *sets, run="warm", steps=0, **more):
        return self.train(run=run, sets=[*SETS, f"train.max_steps={steps}", f"checkpoint.warm_start_ckpt={what}", *sets], **more)

    def test_weights_only_from_a_save_a_folder_or_a_run(self):
        source = self.source()
        expected = self.weights(source)
        for i, what in enumerate((source.folder / "checkpoints" / "model.ckpt-30", source.folder / "checkpoints", source.folder)):
            warm = self.started_from(what, run=f"warm{i}")
            self.assertEqual(self.weights(warm), expected)
            self.assertEqual(warm.summary()["steps"], 0)
            self.assertIn(f"{len(expected)} of {len(expected)} variables loaded from", warm.log)
            self.assertNotEqual(self.weights(warm, "optimizer"), self.weights(source, "optimizer"))

    def test_a_resume_wins(self):
        source = self.source()
        self.started_from(source.folder, steps=10)
        again = self.started_from(source.folder, steps=20)
        self.assertIn("resuming from step 10", again.log)
        self.assertIn("is not read", again.log)
        unbroken = self.started_from(source.folder, run="unbroken", steps=20)
        self.assertEqual(again.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])

    def test_zeros_that_nothing_keeps_are_told(self):
        pruned = self.train(run="pruned", sets=[*SETS, PRUNE_EARLY, "train.max_steps=60"])
        keep = PLAIN + "  - !ConstantPruningModifier {params: __ALL_PRUNABLE__, start_epoch: 0, end_epoch: 1}\n"
        for name, text, is_told in (("plain", PLAIN, True), ("keep", keep, False)):
            warm = self.started_from(pruned.folder, self.recipe(text), run=name)
            self.assertEqual("prunable weights are 0, and the recipe keeps no zeros" in warm.log, is_told, warm.log)

    def test_restore_scopes_first_then_exclude_wins(self):
        source = self.source()
        expected, fresh = self.weights(source), self.weights(self.fresh())
        warm = self.started_from(source.folder, "checkpoint.checkpoint_restore_scopes='blocks/0,blocks.1'",
                                 "checkpoint.checkpoint_exclude_scopes=[model/blocks/1/conv/bias]")
        mixed = self.weights(warm)
        for key in expected:
            loaded = key.startswith(("model/blocks/0/", "model/blocks/1/")) and key != "model/blocks/1/conv/bias"
            self.assertEqual(mixed[key], (expected if loaded else fresh)[key], key)
        self.assertIn("not filled, by the scopes: blocks.1.conv.bias", warm.log)

        refused = self.started_from(source.folder, "checkpoint.checkpoint_exclude_scopes=[blocks/0/covn]", run="typo", expect=78)
        self.assertIn("no variable's name begins with 'blocks/0/covn' (nearest: blocks/0/conv, ", refused.log)
        self.assertEqual(refused.log.count(" E rank"), 1)

    def test_a_renamed_value_is_that_of_no_other_variable(self):
        source = self.source()
        rules = "checkpoint.warm_start_rename=[{from: classifier, to: head}]"
        refused = self.started_from(source.folder, rules, expect=78)
        self.assertIn("the checkpoint has no 'classifier.weight'", refused.log)
        refused = self.train(run="fresh", sets=[*SETS, "train.max_steps=0", rules], expect=78)
        self.assertIn("'warm_start_rename' need 'checkpoint.warm_start_ckpt'", refused.log)

    def test_another_shape_is_an_error_that_names_both_and_the_way_out(self):
        other = self.train(run="other", sets=[*SETS, "train.max_steps=0", self.recipe(PLAIN), "model={type: mlp, layers: [64, 32, 10]}"])
        mlp = [self.recipe(PLAIN), "model={type: mlp, layers: [64, 48, 10]}"]
        refused = self.started_from(other.folder, *mlp, expect=78)
        self.assertRegex(refused.log, r"is float32 \[32, 64\] in the checkpoint, '[\w.]+' is float32 \[48, 64\] in the model \(nearest: (?:[\w/]+, ){3}")
        self.assertIn("checkpoint.checkpoint_exclude_scopes", refused.log)
        self.assertFalse((refused.folder / "summary.json").exists())
        names = sorted(re.findall(r"in the checkpoint, '([\w./]+)' is float32", refused.log))
        accepted = self.started_from(other.folder, *mlp, f"checkpoint.checkpoint_exclude_scopes=[{', '.join(names)}]")
        self.assertIn("1 of 4 variables loaded", accepted.log)

    def test_no_such_checkpoint(self):
        source = self.source()
        prefix = source.folder / "checkpoints" / "model.ckpt"
        for what, code, hint in ((f"{prefix}-30.index", 64, "checkpoint without '.index'"), (prefix, 66, "its number is missing"),
                                 (f"{prefix}-7", 66, "model.ckpt-30"), (self.folder / "nowhere", 66, "not found")):
            refused = self.started_from(what, run="refused", ranks=1, expect=code)
            self.assertIn(hint, refused.log)
        (self.folder / "empty").mkdir()
        refused = self.started_from(self.folder / "empty", run="refused", ranks=1, expect=66)
        self.assertIn("no checkpoints in", refused.log)

    def test_three_shards_of_tensorflow(self):
        source = self.source()
        save = source.folder / "checkpoints" / "model.ckpt-30"
        for names in ("model", "bare", "plain"):
            prefix = self.folder / "theirs" / f"{names}.ckpt"
            prefix.parent.mkdir(exist_ok=True)
            self.assertIn("3 shards", self.run_tensorflow(WRITE, save, prefix, names))
            warm = self.started_from(prefix, run=f"warm_{names}")
            self.assertEqual(self.weights(warm), self.weights(source))

    def test_saves_in_a_store(self):
        python = SOURCE / ".venv-test/bin/python"
        if not python.exists():
            skips.missing_tool("no .venv-test; `tools/setup test` makes it")
        source = self.source()
        store = StoreProcess(python)
        self.addCleanup(store.close)
        store.put_folder("bucket", source.folder)
        for i, what in enumerate(("s3://bucket/checkpoints/model.ckpt-30", "s3://bucket/checkpoints", "s3://bucket")):
            warm = self.started_from(what, run=f"warm{i}", environment=store.variables)
            self.assertEqual(self.weights(warm), self.weights(source), what)
        for what in ("s3://bucket/checkpoints/model.ckpt-31", "s3://bucket/nowhere", "s3://none/model.ckpt-30"):
            refused = self.started_from(what, run="refused", environment=store.variables, expect=66)
            self.assertIn(what.split("/")[2], refused.log)

    def test_kernels_and_names_of_keras(self):
        source = self.source()
        prefix = self.folder / "keras.ckpt"
        self.run_tensorflow(WRITE_KERAS, source.folder / "checkpoints" / "model.ckpt-30", prefix)
        names = f"checkpoint.warm_start_rename={json.dumps(KERAS_NAMES)}"
        for i, kernels in enumerate(("auto", "tensorflow")):
            warm = self.started_from(prefix, names, f"checkpoint.warm_start_kernels={kernels}", run=f"warm{i}")
            self.assertEqual(self.weights(warm), self.weights(source))
            self.assertIn("4 kernels transposed from TensorFlow's dimension order: blocks.0.conv.weight, ", warm.log)
        unnamed = self.started_from(prefix, run="unnamed", expect=78)
        self.assertIn("the checkpoint has no 'blocks.0.conv.weight'", unnamed.log)
        unturned = self.started_from(prefix, names, "checkpoint.warm_start_kernels=lockstep", run="unturned", expect=78)
        self.assertIn("'net/dense/_kernel' is float32 [256, 10] in the checkpoint, 'classifier.weight' is float32 [10, 256] in the model", unturned.log)
        swapped = {**KERAS_NAMES, "net/dense": KERAS_NAMES["net/conv2d_1"], "net/conv2d_1": "classifier",
                   "net/dense/_kernel": "blocks.1.conv.weight", "net/conv2d_1/_kernel": "classifier/weight"}
        refused = self.started_from(prefix, f"checkpoint.warm_start_rename={json.dumps(swapped)}", "checkpoint.warm_start_kernels=tensorflow",
                                    run="swapped", expect=78)
        self.assertRegex(refused.log, r"'net/conv2d_1/_kernel' is float32 \[.*\] in the checkpoint, 'classifier.weight' is float32 \[10, 256\] in the model, "
                                      r"which would be float32 \[256, 10\] in the checkpoint")

    def test_trainable_scopes_freeze_the_rest_for_the_whole_run(self):
        start = self.weights(self.fresh())
        sets = [*SETS, self.recipe(PLAIN), "train.max_steps=20", "train.trainable_scopes=[classifier, blocks/0]"]
        run = self.train(2, run="run", sets=sets)
        for key, value in self.weights(run).items():
            frozen = not key.startswith(("model/classifier/", "model/blocks/0/"))
            self.assertEqual(value == start[key], frozen, key)
        refused = self.train(run="run", sets=[*sets, "train.trainable_scopes=[classifier]"], expect=78)
        self.assertIn("frozen at start", refused.log)
        typo = self.train(run="typo", sets=[*sets, "train.trainable_scopes=[clasifier]"], expect=78)
        self.assertIn("train.trainable_scopes: no variable's name begins with 'clasifier' (nearest: classifier, ", typo.log)


if __name__ == "__main__":
    unittest.main()
