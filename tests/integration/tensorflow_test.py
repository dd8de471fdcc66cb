"""A 2-rank save, opened by TensorFlow itself."""
import hashlib
import json
import pathlib
import re
import struct
import unittest

from harness import LockstepTest
from in_tensorflow import InTensorFlow

READ = """
import hashlib, json, sys
import numpy as np, tensorflow as tf
folder = sys.argv[1]
latest = tf.train.latest_checkpoint(folder)
reader = tf.train.load_checkpoint(latest)
tensors = {}
for name, shape in tf.train.list_variables(latest):
    value = reader.get_tensor(name)
    raw = value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()
    tensors[name] = {"shape": shape, "sha256": hashlib.sha256(raw).hexdigest()}
print("JSON" + json.dumps({"latest": latest, "tensors": tensors}))
"""

# Objects as the graph of the save nests them, with variables of other values; every value must find its variable.
RESTORE = """
import hashlib, json, sys
import numpy as np, tensorflow as tf
latest, suffix = tf.train.latest_checkpoint(sys.argv[1]), "/.ATTRIBUTES/VARIABLE_VALUE"
class Folder(tf.Module):
    pass
root, variables = Folder(), {}
reader = tf.train.load_checkpoint(latest)
for name, shape in tf.train.list_variables(latest):
    if not name.endswith(suffix) or name == "save_counter" + suffix:
        continue
    *folders, leaf = name.removesuffix(suffix).split("/")
    place = root
    for folder in folders:
        if not hasattr(place, folder):
            setattr(place, folder, Folder())
        place = getattr(place, folder)
    variables[name] = tf.Variable(tf.zeros(shape, reader.get_variable_to_dtype_map()[name]))
    setattr(place, leaf, variables[name])
top = {part: getattr(root, part) for part in vars(root) if isinstance(getattr(root, part), Folder)}
tf.train.Checkpoint(**top).restore(latest).assert_consumed()
digests = {name: hashlib.sha256(np.ascontiguousarray(v.numpy()).tobytes()).hexdigest() for name, v in variables.items()}
print("JSON" + json.dumps(digests))
"""


def read_safetensors(file):
    """{name: (shape, bytes)}"""
    data = file.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    header.pop("__metadata__", None)
    return {name: (entry["shape"], data[end:][slice(*entry["data_offsets"])]) for name, entry in header.items()}


class TensorFlow(InTensorFlow, LockstepTest):
    def tensorflow(self, program, folder):
        return json.loads(re.search(r"^JSON(.*)$", self.run_tensorflow(program, folder), re.M)[1])

    def shown(self, folder):
        return {tensor["name"]: tensor for tensor in json.loads(self.tool("ckpt", "show", folder, "--json"))["tensors"]}

    def pruned(self):
        return self.shared("pruned", 2, sets=["train.max_steps=120", "checkpoint.save_checkpoints_steps=50"])  # from step 92 on

    def test_every_tensor_is_readable_and_equal(self):
        run = self.pruned()
        saves = run.folder / "checkpoints"
        seen = self.tensorflow(READ, saves)
        self.assertEqual(pathlib.Path(seen["latest"]), saves / "model.ckpt-120")

        tensors = self.shown(saves)
        self.assertEqual(set(seen["tensors"]), set(tensors))
        for name, theirs in seen["tensors"].items():
            self.assertEqual(theirs["shape"], tensors[name]["shape"], name)
            self.assertEqual(theirs["sha256"], tensors[name]["sha256"], name)
        self.assertIn("model/blocks/0/conv/weight/.ATTRIBUTES/VARIABLE_VALUE", tensors)
        self.assertIn("_CHECKPOINTABLE_OBJECT_GRAPH", tensors)
        self.assertIn("_lockstep/masks/blocks/0/conv/weight", tensors)
        self.assertEqual({tensor["shard"] for tensor in tensors.values()}, {0, 1})

    def test_slices_of_a_divided_optimizer_restore_into_variables(self):
        """Weights larger than 1 MiB are cut between the two shards, moments where the ranks' shares meet."""
        run = self.train(2, sets=["train.max_steps=20", "eval.every_epochs=0", "sync.shard_optimizer=true",
                                  "optimizer={type: adam, learning_rate: 0.001}",
                                  "model={type: mlp, layers: [64, 700, 700, 10]}"])
        tensors = self.shown(run.folder / "checkpoints")
        sliced = [name for name, tensor in tensors.items() if tensor.get("slices")]
        self.assertTrue(any(name.startswith("model/") for name in sliced), sliced)
        self.assertTrue(any(name.startswith("optimizer/") for name in sliced), sliced)
        restored = self.tensorflow(RESTORE, run.folder / "checkpoints")
        self.assertGreaterEqual(set(restored), set(sliced))
        for name, digest in restored.items():
            self.assertEqual(digest, tensors[name]["sha256"], name)

    def test_a_network_in_python_is_saved_under_its_names(self):
        """The values are bit for bit those of the exported file, which PyTorch's load_state_dict accepts (python_test)."""
        files = pathlib.Path(__file__).parent / "programs" / "python"
        run = self.train(2, sets=[f"model={{type: python, path: {files}/nets.py, name: LeNet}}", "train.max_steps=120",
                                  f"recipe={files.parent}/prune_90.md", "eval.every_epochs=0"])
        seen = self.tensorflow(READ, run.folder / "checkpoints")["tensors"]
        file = self.folder / "net.safetensors"
        self.tool("ckpt", "export", run.folder / "checkpoints", "-o", file)
        tensors = read_safetensors(file)
        self.assertIn("norm.running_var", tensors)
        self.assertEqual(len(tensors), sum(name.startswith("model/") for name in seen))
        for name, (shape, values) in tensors.items():
            theirs = seen[f"model/{name.replace('.', '/')}/.ATTRIBUTES/VARIABLE_VALUE"]
            self.assertEqual((theirs["shape"], theirs["sha256"]), (shape, hashlib.sha256(values).hexdigest()), name)

    def test_each_rank_writes_its_own_shard(self):
        run = self.pruned()
        for rank in (0, 1):
            log = (run.folder / "logs" / f"rank{rank}.log").read_text()
            self.assertRegex(log, rf"wrote .*model\.ckpt-120\.data-0000{rank}-of-00002")
            self.assertNotIn(f"data-0000{1 - rank}-of-00002", log)


if __name__ == "__main__":
    unittest.main()
