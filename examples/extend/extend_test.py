"""The example trains its own network on its own data under its own modifier; a second row of one name is refused."""
import json
import math
import pathlib
import re
import sys
import unittest

EXAMPLE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(EXAMPLE.parents[1] / "tests" / "integration"))
from callbacks_test import curves_of  # noqa: E402
from harness import BUILD, LockstepTest, metric  # noqa: E402

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
        """The modifier acts at its step, and not in a run that ends before it."""
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

    def test_the_metric_follows_the_loss_on_rank_0(self):
        run = self.train(2, program=EXTEND, config=RUN)
        pages = [run.last_page(rank) for rank in (0, 1)]
        self.assertAlmostEqual(metric(pages[0], "extend_train_perplexity"), math.exp(metric(pages[0], "lockstep_train_loss")))
        self.assertNotIn("extend_train_perplexity", pages[1])

    def test_ranks_find_the_metric_of_evaluations_together(self):
        """The more probable of two classes has at least 0.5; a trained network is surer than one that was hardly trained."""
        found = {}
        for ranks, steps in ((1, 128), (2, 128), (2, 1)):
            run = self.train(ranks, program=EXTEND, config=RUN, run=f"run{ranks}_{steps}", sets=[f"train.max_steps={steps}"])
            found[ranks, steps] = run.summary()["eval"]["metrics"]["confidence"]
        self.assertAlmostEqual(found[1, 128], found[2, 128], delta=1e-3)
        self.assertTrue(0.5 < found[2, 1] < 0.9 < found[2, 128] < 1, found)
        self.assertIn("confidence", self.train(1, config=RUN, run="lockstepd", expect=78).log)

    def test_the_callback_sees_every_step_that_its_section_asks_for(self):
        run = self.train(2, program=EXTEND, config=RUN, sets=["callbacks.lowest_loss.after_step=60"])
        losses = {line["step"]: line["loss"] for line in run.steps() if line["step"] > 60}
        lowest = min(losses, key=losses.get)
        told = re.findall(r"\[lowest_loss\] (\S+) at step (\d+)", run.log)
        self.assertEqual([(float(loss), int(step)) for loss, step in told], [(round(losses[lowest], 6), lowest)], run.log)
        self.assertNotIn("at step", self.train(2, program=EXTEND, config=RUN, run="without", sets=["callbacks={}"]).log)

    def test_summaries_of_its_code_stand_in_the_event_files(self):
        run = self.train(2, program=EXTEND, config=RUN)
        train, evaluation = (curves_of(run.folder / mode) for mode in ("train", "eval"))
        every_step = list(range(1, 129))
        self.assertEqual(list(train["network_seconds"]), every_step)
        self.assertTrue(all(0 < seconds < 10 for seconds in train["network_seconds"].values()))
        self.assertEqual(train["batch_size"], dict.fromkeys(every_step, 32))  # of rank 0
        self.assertEqual(set(evaluation["batch_size"].values()), {256})
        self.assertNotIn("network_seconds", evaluation)
        run = self.train(2, program=EXTEND, config=RUN, run="fewer", sets=["summary.record_policy=every_n_steps", "summary.save_summary_steps=50"])
        for tag in ("network_seconds", "batch_size"):
            self.assertEqual(list(curves_of(run.folder / "train")[tag]), [50, 100])

    def test_faults_of_a_callbacks_section_have_their_place(self):
        refused = self.train(1, program=EXTEND, config=RUN, expect=78, sets=["callbacks.lowest_loss.after_step=-1", "callbacks.lowest_los={}"])
        self.assertIn("callbacks.lowest_loss.after_step", refused.log)
        self.assertIn("lowest_los", refused.log)

    def test_lockstepd_itself_has_none_of_them(self):
        refused = self.train(1, config=RUN, expect=78)
        for word in ("residual_mlp", "half_planes", "ScaleModifier", "lowest_loss"):
            self.assertIn(word, refused.log)


if __name__ == "__main__":
    unittest.main()
