"""A 2-rank save, opened by TensorFlow itself."""
import hashlib
import json
import pathlib
import re
import subprocess
import unittest

from harness import SOURCE, LockstepTest

PYTHON = SOURCE / ".venv-test" / "bin" / "python"
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


class TensorFlow(LockstepTest):
    def test_every_tensor_is_readable_and_equal(self):
        run = self.train(2, sets=["train.max_steps=120", "checkpoint.save_checkpoints_steps=50"])  # pruned from step 92 on
        saves = run.folder / "checkpoints"
        done = subprocess.run([PYTHON, "-c", READ, saves], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        seen = json.loads(re.search(r"^JSON(.*)$", done.stdout, re.M)[1])
        self.assertEqual(pathlib.Path(seen["latest"]), saves / "model.ckpt-120")

        ours = json.loads(self.tool("ckpt", "show", saves, "--json"))
        tensors = {t["name"]: t for t in ours["tensors"]}
        self.assertEqual(set(seen["tensors"]), set(tensors))
        for name, theirs in seen["tensors"].items():
            self.assertEqual(theirs["shape"], tensors[name]["shape"], name)
            self.assertEqual(theirs["sha256"], tensors[name]["sha256"], name)
        self.assertIn("model/blocks/0/conv/weight/.ATTRIBUTES/VARIABLE_VALUE", tensors)
        self.assertIn("_CHECKPOINTABLE_OBJECT_GRAPH", tensors)
        self.assertIn("_lockstep/masks/blocks/0/conv/weight", tensors)
        self.assertEqual({t["shard"] for t in ours["tensors"]}, {0, 1})

    def test_each_rank_writes_its_own_shard(self):
        run = self.train(2, sets=["train.max_steps=10"])
        for rank in (0, 1):
            log = (run.folder / "logs" / f"rank{rank}.log").read_text()
            self.assertRegex(log, rf"wrote .*model\.ckpt-10\.data-0000{rank}-of-00002")
            self.assertNotIn(f"data-0000{1 - rank}-of-00002", log)


if __name__ == "__main__":
    unittest.main()
