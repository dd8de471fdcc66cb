"""The example trains its own network on its own data under its own modifier; a second row of one name is refused."""
import json
import pathlib
import sys
import unittest

EXAMPLE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(EXAMPLE.parents[1] / "tests" / "integration"))
from harness import BUILD, LockstepTest  # noqa: E402

EXTEND = BUILD / "examples" / "extend" / "extend"
RUN = EXAMPLE / "run.yaml"


class Extend(LockstepTest):
    def test_ranks_train_what_the_program_brings(self):
        run = self.train(2, program=EXTEND, config=RUN)
        self.assertEqual(run.summary()["steps"], 4 * 2048 // 64)
        self.assertGreater(run.summary()["eval"]["accuracy"], 0.95)
        alone = self.train(1, program=EXTEND, config=RUN, run="alone")
        self.assertGreater(alone.summary()["eval"]["accuracy"], 0.95)

    def test_the_modifier_halves_the_weights(self):
        """At its step, and not in a run that ends before it."""
        sets = ["optimizer.learning_rate=1e-30", "eval.every_epochs=0"]
        norms = []
        for steps in (31, 33):
            run = self.train(1, program=EXTEND, config=RUN, run=f"run{steps}", sets=[*sets, f"train.max_steps={steps}"])
            shown = self.tool("ckpt", "show", run.folder / "checkpoints", "--values", "--json")
            values, = [one["values"] for one in json.loads(shown)["tensors"] if one["key"] == "model/block/weight"]
            norms.append(sum(abs(value) for value in values))
        self.assertAlmostEqual(norms[1] / norms[0], 0.5, places=5)

    def test_stopped_runs_go_on_bit_for_bit(self):
        unbroken = self.train(2, program=EXTEND, config=RUN, run="unbroken")
        self.train(2, program=EXTEND, config=RUN, run="stopped", sets=["train.max_steps=50"])
        resumed = self.train(2, program=EXTEND, config=RUN, run="stopped")
        self.assertEqual(resumed.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])

    def test_lockstepd_itself_has_none_of_them(self):
        refused = self.train(1, config=RUN, expect=78)
        for word in ("residual_mlp", "half_planes", "ScaleModifier"):
            self.assertIn(word, refused.log)


if __name__ == "__main__":
    unittest.main()
