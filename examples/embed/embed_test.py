"""The example prints one line a hundred steps, on rank 0 only, and the number is the norm of the weights."""
import json
import math
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "integration"))
from harness import BUILD, LockstepTest  # noqa: E402

EMBED = BUILD / "examples" / "embed" / "embed"


class Embed(LockstepTest):
    def test_twenty_steps_on_two_ranks(self):
        run = self.train(2, program=EMBED, sets=["train.max_steps=20"])
        lines = re.findall(r"^step (\d+): norm of blocks\.1\.conv\.weight (\S+)$", run.log, re.MULTILINE)
        self.assertEqual([step for step, _ in lines], ["0"], run.log)
        self.assertEqual(run.summary()["steps"], 20)
        self.assertAlmostEqual(float(lines[0][1]), self.initial_norm(), places=5)

    def initial_norm(self):
        """The same from lockstepd's own save before any step."""
        run = self.train(1, run="untrained", sets=["train.max_steps=0"])
        shown = json.loads(self.tool("ckpt", "show", run.folder / "checkpoints", "--json", "--values"))
        weights, = [tensor["values"] for tensor in shown["tensors"] if tensor["key"] == "model/blocks/1/conv/weight"]
        return math.sqrt(sum(weight * weight for weight in weights))


if __name__ == "__main__":
    unittest.main()
