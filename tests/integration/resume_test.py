"""Kill, stop, resume: nothing committed is lost, and a resumed run ends bit for bit where an unbroken one does."""
import pathlib
import re
import shutil
import signal
import unittest

from harness import DIGITS, ENDLESS, PRUNE_EARLY, LockstepTest, metric
from in_tensorflow import InTensorFlow
from soak import rounds

SAVES = [PRUNE_EARLY, "checkpoint.save_checkpoints_steps=20", "train.max_steps=60", "eval.every_epochs=0"]  # from the second one on with masks


# The same save but for its masks, as checkpoint.include without modifiers left it.
WITHOUT_MASKS = """
import sys
import tensorflow as tf
from tensorflow.python.ops import gen_io_ops
reader = tf.train.load_checkpoint(sys.argv[1])
names = [name for name in reader.get_variable_to_shape_map() if "/masks/" not in name]
gen_io_ops.save_v2(sys.argv[2], names, [""] * len(names), [tf.constant(reader.get_tensor(name)) for name in names])
"""


class Resume(InTensorFlow, LockstepTest):
    def assert_same_weights(self, run, other):
        self.assertEqual(run.summary()["steps"], other.summary()["steps"])
        self.assertEqual(run.summary()["parameters_sha256"], other.summary()["parameters_sha256"])
        self.assertEqual(run.steps(), other.steps())

    def unbroken_60(self):
        return self.shared("unbroken_60", sets=SAVES)

    def after_5_steps(self):
        return self.copy_of_shared("5_steps", sets=["train.max_steps=5"])

    def resumed_from(self, run):
        found = re.search(r"resuming from step (\d+) ", run.log)
        return int(found[1]) if found else 0

    def killed_around_saves(self, name, kills, sets):
        """Runs killed at these steps, one after the other in one folder, each with the next one's log."""
        runs = [self.start_faulty("kill", rank=i % 2, step=step, run=name, sets=sets).wait() for i, step in enumerate(kills)]
        for killed in runs:
            self.assertIn(killed.code, (137, 69), killed.log)  # mpirun saw it first, or the other rank
        return list(zip(runs, [*runs[1:], self.train(run=name, sets=sets)]))

    def test_kill_9_around_saves(self):
        """One folder, killed again and again around the saves of steps 20 and 40, ends like an unbroken run."""
        sets = [*SAVES, "checkpoint.wait_for=commit"]
        goes_on_from = dict(rounds([(19, {0}), (20, {0, 20}), (21, {20})], [(39, {20}), (40, {20, 40}), (41, {40})]))
        pairs = self.killed_around_saves("killed", goes_on_from, sets)
        for (_, following), saves in zip(pairs, goes_on_from.values()):
            self.assertIn(self.resumed_from(following), saves, following.log)
        self.assert_same_weights(pairs[-1][1], self.unbroken_60())

    def test_kill_9_while_a_save_is_written(self):
        """Saves run during training: a kill may lose the one in progress, never one that was reported."""
        pairs = self.killed_around_saves("killed", sorted(rounds((21, 43), (20, 22, 28, 40, 41, 52))), SAVES)
        for killed, following in pairs:
            saved = max(map(int, re.findall(r"saved step (\d+):", killed.log)), default=0)
            self.assertGreaterEqual(self.resumed_from(following), max(saved, self.resumed_from(killed)), following.log)
        self.assert_same_weights(pairs[-1][1], self.unbroken_60())

    def test_every_modifier_survives_stops(self):
        """Stopped again and again, while weights are frozen, pruned, set and quantized: bit for bit the unbroken run."""
        recipe = pathlib.Path(__file__).parent / "programs/every_modifier.yaml"
        for optimizer in rounds(["{type: adam, learning_rate: 0.001}"], ["{type: momentum, learning_rate: 0.1}"]):
            sets = [f"recipe={recipe}", f"optimizer={optimizer}", "checkpoint.save_checkpoints_steps=1000", "eval.every_epochs=0"]
            name = re.search(r"type: (\w+)", optimizer)[1]
            unbroken = self.train(run=f"unbroken_{name}", sets=sets)
            for step in sorted(rounds((12, 27, 44, 63), (5, 20, 29, 36, 57))):
                stopped = self.start_faulty("usr1", rank=step % 2, step=step, run=name, sets=sets).wait()
                self.assertEqual(stopped.code, 75, stopped.log)
            resumed = self.train(run=name, sets=sets)
            self.assertEqual(resumed.summary()["resumed_from_step"], 64)
            self.assert_same_weights(resumed, unbroken)
            self.assertEqual(resumed.summary()["sparsity"], unbroken.summary()["sparsity"])

    def test_a_changed_recipe_is_refused_entry_by_entry(self):
        recipe = """version: 1.0.0
modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 2}
  - !SetLearningRateModifier {start_epoch: 1, learning_rate: 0.05}
"""
        sets = ["checkpoint.save_checkpoints_steps=10", "eval.every_epochs=0"]
        self.train(run="run", sets=[*sets, "train.max_steps=20", self.recipe(recipe)])
        changed = self.recipe(recipe.replace("0.05", "0.02"), "changed.yaml")
        refused = self.train(run="run", sets=[*sets, changed], expect=78)
        self.assertIn("the recipe's timeline has changed since the checkpoint", refused.log)
        self.assertIn("step 23: learning_rate of all groups: 0.05 in the checkpoint, 0.02 now", refused.log)
        self.assertIn("give --accept-recipe-change", refused.log)
        self.assertEqual(refused.log.count(" E rank"), 1)
        accepted = self.train(run="run", sets=[*sets, changed], arguments=["--accept-recipe-change"])
        self.assertIn("resuming from step 20", accepted.log)
        self.assertEqual(accepted.summary()["steps"], 46)
        self.assertEqual([line["learning_rate"] for line in accepted.steps()], [0.1] * 23 + [0.02] * 23)
        again = self.train(run="run", sets=[*sets, changed])  # the save holds the new one now
        self.assertIn("nothing to train", again.log)

    def test_usr1_on_one_rank_saves_stops_and_goes_on(self):
        for rank, step in ((0, 12), (1, 39)):  # 39: the save on request is the one that is due
            stopped = self.start_faulty("usr1", rank, step, run=f"stopped{rank}", sets=SAVES).wait()
            self.assertEqual(stopped.code, 75, stopped.log)
            self.assertEqual(stopped.summary()["exit_reason"], "stopped")
            self.assertEqual(stopped.summary()["exit_code"], 75)
            self.assertEqual(stopped.summary()["steps"], step + 1)
            self.assertIn(f"stopped at step {step + 1} on request", stopped.log)

            resumed = self.train(run=f"stopped{rank}", sets=SAVES)
            self.assertEqual(resumed.summary()["resumed_from_step"], step + 1)
            self.assert_same_weights(resumed, self.unbroken_60())

    def test_usr1_to_mpirun_reaches_the_ranks(self):
        long = ["checkpoint.save_checkpoints_steps=20"]
        stopped = self.start(run="stopped", config=ENDLESS, sets=long)
        stopped.rank_pids()
        stopped.wait_for_commit(20)
        stopped.process.send_signal(signal.SIGUSR1)  # mpirun passes it to every rank
        stopped.wait()
        self.assertEqual(stopped.code, 75, stopped.log)
        at_step = stopped.summary()["steps"]

        to_the_end = [*long, f"train.max_steps={at_step + 30}"]
        resumed = self.train(run="stopped", config=ENDLESS, sets=to_the_end)
        self.assertEqual(resumed.summary()["resumed_from_step"], at_step)
        self.assert_same_weights(resumed, self.train(run="unbroken", config=ENDLESS, sets=to_the_end))

    def test_term_saves_where_the_grace_allows(self):
        for grace_s, reason, goes_on_from in ((30, "stopped", 31), (0, "ended", 20)):
            sets = [*SAVES, f"preemption.grace_seconds={grace_s}"]
            run = self.start_faulty("term", rank=1, step=30, run=f"grace{grace_s}", sets=sets).wait()
            self.assertEqual(run.code, 75, run.log)
            self.assertEqual(run.summary()["exit_reason"], reason)
            resumed = self.train(run=f"grace{grace_s}", sets=[*sets, "train.max_steps=40"])
            self.assertEqual(resumed.summary()["resumed_from_step"], goes_on_from)

    def test_another_world_size_goes_on_with_the_same_samples(self):
        unbroken = self.train(1, run="unbroken", sets=[*SAVES, "train.max_steps=121"])
        for ranks, last_step in ((2, 31), (4, 91), (1, 121)):
            moved = self.train(ranks, run="moved", sets=[*SAVES, f"train.max_steps={last_step}"])
        losses = [[line["loss"] for line in run.steps()] for run in (moved, unbroken)]
        self.assertEqual(len(losses[0]), 121)
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses[0][:91], losses[1][:91]))
        self.assertLessEqual(worst, 1e-3)

    def test_damaged_saves_are_passed_over_and_never_started_over(self):
        saves = self.copy_of_shared("unbroken_60", sets=SAVES).folder / "checkpoints"
        shard = saves / "model.ckpt-60.data-00001-of-00002"
        shard.write_bytes(shard.read_bytes()[:-1])
        second = self.train(sets=SAVES)
        self.assertIn("resuming from step 40", second.log)
        self.assertIn("model.ckpt-60", second.log)
        self.assertEqual(metric(second.last_page(0), "lockstep_checkpoint_damaged_saves_total"), 1)

        for index in saves.glob("*.index"):
            index.write_bytes(b"not a table")
        lost = self.train(sets=[*SAVES, "train.max_steps=80"], expect=65)
        self.assertIn("model.ckpt-40", lost.log)

    def test_resume_never_refuses_a_folder_with_saves(self):
        self.after_5_steps()
        refused = self.train(sets=["train.max_steps=5"], arguments=["--resume", "never"], expect=78)
        self.assertIn("contains checkpoints", refused.log)
        self.train(run="fresh", sets=["train.max_steps=5"], arguments=["--resume", "never"])

    def test_resume_from_a_named_save(self):
        copy = self.folder / "elsewhere"
        shutil.copytree(self.unbroken_60().folder / "checkpoints", copy)
        second = self.train(run="other", sets=[*SAVES, "train.max_steps=50"], arguments=["--resume", copy / "model.ckpt-40"])
        self.assertEqual(second.summary()["resumed_from_step"], 40)
        self.train(run="absent", sets=SAVES, arguments=["--resume", copy / "model.ckpt-41"], expect=66)

    def test_masks_and_clock_are_saved_together(self):
        without = "checkpoint.include=[model, optimizer, clock, random]"
        self.assertIn("checkpoint.include lacks modifiers, but the recipe prunes", self.tool("check", DIGITS, "--set", without, expect=78))
        self.train(run="refused", sets=[*SAVES, without], expect=78)
        self.assertFalse((self.folder / "refused").exists())
        for include in ("[model]", "[model, modifiers, clock]"):  # nothing resumes from the first
            self.tool("check", DIGITS, "--set", f"checkpoint.include={include}")

    def test_a_save_without_masks_is_not_resumed_with_all_weights_kept(self):
        sets = [*SAVES, "checkpoint.sparse=false"]
        whole = self.train(run="whole", sets=[*sets, "train.max_steps=40"]).folder / "checkpoints/model.ckpt-40"
        run = self.folder / "run"
        (run / "checkpoints").mkdir(parents=True)
        self.run_tensorflow(WITHOUT_MASKS, whole, run / "checkpoints/model.ckpt-40")
        refused = self.train(sets=sets, expect=78)
        self.assertIn("model.ckpt-40 contains no masks, although its recipe prunes", refused.log)

    def test_what_a_save_lacks_begins_anew_with_a_warning(self):
        sets = [*SAVES, "checkpoint.include=[model, modifiers, clock]"]
        self.train(sets=[*sets, "train.max_steps=20"])
        again = self.train(sets=[*sets, "train.max_steps=40"])
        self.assertIn("checkpoint.include lacks optimizer: moments and update counts start at zero", again.log)

    def test_a_changed_run_may_not_go_on(self):
        self.after_5_steps()
        refused = self.train(sets=["train.max_steps=9", "run.seed=18"], expect=78)
        self.assertIn("run.seed was 17 and is now 18", refused.log)
        refused = self.train(sets=["train.max_steps=9", "data.global_batch_size=32"], expect=78)
        self.assertIn("the global batch was 64 and is now 32", refused.log)
        refused = self.train(sets=["train.max_steps=9", "optimizer={type: adam, learning_rate: 0.01}"], expect=78)
        self.assertIn("optimizer.type was momentum and is now adam", refused.log)


if __name__ == "__main__":
    unittest.main()
