"""The moving average of the weights (optimizer.ema_decay), and local steps with means (sync.sync_replicas: false)."""
import json
import re
import unittest

from exported import answers_of, require_torch
from harness import PRUNE_EARLY, SOURCE, LockstepTest, metric
from in_tensorflow import InTensorFlow
from soak import rounds

SETS = [PRUNE_EARLY, "train.max_steps=81", "checkpoint.save_checkpoints_steps=20", "eval.every_epochs=0"]
EMA = [*SETS, "optimizer.ema_decay=0.98"]
LOCAL = [*SETS, "sync.sync_replicas=false", "sync.sync_every=4"]
NOTHING = "version: 1.0.0\nmodifiers: []\n"

# TensorFlow's own average over the weights of every save, wired as its documentation does: the update counts, then the average follows.
FOLLOW = """
import json, sys
import numpy as np, tensorflow as tf
folder, decay, last = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
def saved(step, part):
    reader = tf.train.load_checkpoint(f"{folder}/model.ckpt-{step}")
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith(part + "/") and name.endswith(suffix)]
    return {name[len(part) + 1:-len(suffix)]: reader.get_tensor(name) for name in names}
names = sorted(saved(last, "ema"))
start = saved(0, "model")
weights = [tf.Variable(start[name]) for name in names]
step = tf.Variable(0, dtype=tf.int64)
average = tf.train.ExponentialMovingAverage(decay, num_updates=step)
optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
average.apply(weights)  # makes the averages, which begin as the weights
for t in range(1, last + 1):
    now = saved(t, "model")
    optimizer.apply_gradients([(w - now[name], w) for w, name in zip(weights, names)], global_step=step)
    for w, name in zip(weights, names):
        w.assign(now[name])
    average.apply(weights)
ours = saved(last, "ema")
worst = max(float(np.abs(average.average(w).numpy() - ours[name]).max()) for w, name in zip(weights, names))
moved = max(float(np.abs(w.numpy() - ours[name]).max()) for w, name in zip(weights, names))
print("JSON" + json.dumps({"names": len(names), "steps": int(step.numpy()), "worst": worst, "moved": moved}))
"""


class Averaging(InTensorFlow, LockstepTest):
    def shown(self, folder):
        tensors = json.loads(self.tool("ckpt", "show", folder / "checkpoints", "--json"))["tensors"]
        return {tensor["key"]: tensor for tensor in tensors if tensor["key"]}

    def assert_same_state(self, run, other):
        self.assertEqual(run.summary()["parameters_sha256"], other.summary()["parameters_sha256"])
        self.assertEqual(run.steps(), other.steps())
        ours, theirs = self.shown(run.folder), self.shown(other.folder)
        for key, tensor in theirs.items():
            if key.split("/")[0] in ("model", "ema", "optimizer") or "masks" in key:
                self.assertEqual(ours[key]["sha256"], tensor["sha256"], key)

    def with_ema(self):
        return self.shared("ema", 2, sets=EMA)

    def test_tensorflow_finds_the_same_average(self):
        steps, decay = 60, 0.8  # which (1 + step) / (10 + step) reaches at step 35
        sets = [self.recipe(NOTHING), f"optimizer.ema_decay={decay}", "eval.every_epochs=0", "checkpoint.keep_checkpoint_max=-1",
                "checkpoint.save_checkpoints_steps=1", "checkpoint.wait_for=commit"]
        self.train(2, sets=[*sets, "train.max_steps=0"])  # saves what training begins with
        run = self.train(2, sets=[*sets, f"train.max_steps={steps}"])
        seen = json.loads(re.search(r"^JSON(.*)$", self.run_tensorflow(FOLLOW, run.folder / "checkpoints", decay, steps), re.M)[1])
        print(seen)
        self.assertEqual((seen["names"], seen["steps"]), (8, steps))
        self.assertLess(seen["worst"], 1e-5)
        self.assertGreater(seen["moved"], 1e-3)

    def test_it_changes_no_weight_and_is_evaluated_and_exported(self):
        require_torch()
        run = self.with_ema()
        plain = self.train(2, run="plain", sets=SETS)
        weights = self.train(2, run="weights", sets=[*EMA, "eval.use_ema=false"])
        self.assertEqual(run.summary()["parameters_sha256"], plain.summary()["parameters_sha256"])
        self.assertEqual(weights.summary()["eval"], plain.summary()["eval"])
        self.assertNotEqual(run.summary()["eval"]["loss"], plain.summary()["eval"]["loss"])
        for arguments, expected, name in ((["--ema"], run, "ema"), ([], plain, "weights")):
            file = self.folder / f"{name}.pt"
            self.tool("ckpt", "export", run.folder / "checkpoints", *arguments, "--format", "torchscript", "-o", file)
            answers, found = answers_of(file), expected.summary()["eval"]
            self.assertEqual(answers["accuracy"], found["accuracy"])
            self.assertAlmostEqual(answers["loss"], found["loss"], 5)
            facts = json.loads((self.folder / f"{name}.pt.json").read_text())
            self.assertEqual(facts["ema"], name == "ema")
            self.assertEqual(facts["eval"] is not None, name == "ema")  # the run evaluated the average alone
            self.assertAlmostEqual(facts["sparsity"], run.summary()["sparsity"], 6)

    def test_tensorflow_files_hold_it_in_the_place_of_the_weights(self):
        run = self.with_ema()
        saved = self.shown(run.folder)
        self.tool("ckpt", "export", run.folder / "checkpoints", "--ema", "--format", "tensorflow", "-o", self.folder / "out/checkpoints/digits")
        written = self.shown(self.folder / "out")
        names = [key for key in written if key.startswith("model/")]
        self.assertEqual(len(names), 8)
        for key in names:
            self.assertEqual(written[key]["sha256"], saved["ema/" + key.removeprefix("model/")]["sha256"], key)
        self.assertFalse([key for key in written if key.startswith("ema/")])
        both = ["ckpt", "export", run.folder / "checkpoints", "--ema", "--all", "--format", "tensorflow", "-o", self.folder / "o"]
        self.assertIn("give one of them", self.tool(*both, expect=64))

    def test_a_stopped_run_goes_on_with_it(self):
        for sparse in rounds(["true"], ["false"]):
            sets = [*EMA, f"checkpoint.sparse={sparse}"]
            for step in sorted(rounds((12, 55), (30,))):
                killed = self.start_faulty("kill", rank=step % 2, step=step, run=f"killed_{sparse}", sets=sets).wait()
                self.assertIn(killed.code, (137, 69), killed.log)
            self.assert_same_state(self.train(2, run=f"killed_{sparse}", sets=sets), self.with_ema())

    def test_it_may_begin_and_end_between_two_starts(self):
        first = self.train(2, sets=[*SETS, "train.max_steps=30"])
        self.assertIn("remove --ema", self.tool("ckpt", "export", first.folder / "checkpoints", "--ema", "-o", self.folder / "f", expect=64))
        begun = self.train(2, sets=[*EMA, "train.max_steps=50"])
        self.assertIn("the checkpoint contains no moving average: it starts with the weights of the checkpoint", begun.log)
        self.assertIn("ema/classifier/weight", self.shown(begun.folder))
        self.assertNotIn("it starts with", self.train(2, sets=[*EMA, "train.max_steps=55"]).log)
        ended = self.train(2, sets=SETS)
        self.assertIn("value(s) that this run does not use", ended.log)
        self.assertNotIn("ema/classifier/weight", self.shown(ended.folder))

    def test_world_sizes_have_equal_averages_where_runs_are_elastic(self):
        sets = [*EMA, "run.deterministic=elastic", "train.max_steps=70", "data.global_batch_size=32"]
        runs = [self.train(ranks, run=f"elastic{ranks}", sets=sets) for ranks in rounds((1, 4), (2,))]
        for other in runs[1:]:
            self.assert_same_state(other, runs[0])

    def test_local_steps_train_prune_and_send_less(self):
        """A mean every 8 steps, and where an epoch of 23 steps ends or the recipe prunes."""
        reduced = {}
        for name, sets in {"every": [], "local": ["sync.sync_replicas=false", "sync.sync_every=8"]}.items():
            sgd = ["train.max_steps=184", "eval.every_epochs=0", self.recipe(NOTHING), "optimizer={type: sgd, learning_rate: 0.3}"]
            run = self.train(2, run=name, sets=[*sgd, *sets])
            reduced[name] = metric(run.last_page(0), "lockstep_allreduce_bytes_total")
            self.assertEqual(reduced[name], metric(run.last_page(1), "lockstep_allreduce_bytes_total"))
            losses = [step["loss"] for step in run.steps()]
            self.assertLess(sum(losses[-8:]), 0.5 * sum(losses[:8]))
            self.assertGreater(run.summary()["eval"]["accuracy"], 0.95)
        means = len({*range(8, 185, 8), *range(23, 185, 23)})  # 30 of 184
        print(reduced, reduced["every"] / reduced["local"])
        self.assertGreater(reduced["every"] / reduced["local"], 0.95 * 184 / means)
        pruned = self.train(2, run="pruned", sets=[*LOCAL, "train.max_steps=171", "sync.replica_check_every=30"])
        plain = self.train(2, run="plain", sets=[*SETS, "train.max_steps=171"])
        self.assertEqual(pruned.summary()["sparsity"], plain.summary()["sparsity"])
        self.assertEqual(metric(pruned.last_page(0), "lockstep_revived_weights_total"), 0)

    def test_local_steps_go_on_from_a_kill_and_a_stop(self):
        sets = [*LOCAL, "optimizer={type: adam, learning_rate: 0.001, ema_decay: 0.98}", "checkpoint.save_checkpoints_steps=10"]
        unbroken = self.train(2, run="unbroken", sets=sets)
        for action, step in rounds([("kill", 14), ("usr1", 18)], [("kill", 35), ("usr1", 61)]):
            ended = self.start_faulty(action, rank=step % 2, step=step, run="broken", sets=sets).wait()
            self.assertIn(ended.code, (137, 69) if action == "kill" else (75,), ended.log)
            if action == "usr1":
                stopped_at = int(re.search(r"stopped at step (\d+) on request", ended.log)[1])
                self.assertTrue(step < stopped_at <= step + 4, ended.log)
        self.assert_same_state(self.train(2, run="broken", sets=sets), unbroken)
        self.assertIn("saved step 12:", unbroken.log)  # the first mean at or after step 10

    def test_one_rank_alone_makes_the_steps_of_any_run(self):
        local, plain = (self.train(1, run=name, sets=sets) for name, sets in (("local", LOCAL), ("plain", SETS)))
        self.assertEqual(local.summary()["parameters_sha256"], plain.summary()["parameters_sha256"])
        self.assertEqual(local.steps(), plain.steps())

    def test_the_examples_of_the_page_train(self):
        examples = re.findall(r"```yaml\n(.*?)```", (SOURCE / "docs/averaging.md").read_text(), re.S)
        self.assertEqual(len(examples), 2)
        for number, text in enumerate(examples):
            file = self.folder / f"{number}.yaml"
            file.write_text(text)
            run = self.train(2, config=file, run=str(number))
            self.assertGreater(run.summary()["eval"]["accuracy"], 0.95)

    def test_what_cannot_be_is_refused(self):
        digits = SOURCE / "configs/digits.yaml"
        local = "sync.sync_replicas=false"
        for sets, expected in (
                (["optimizer.ema_decay=1"], "'optimizer.ema_decay' is 1, it must be"),
                (["optimizer.ema_decay=0"], "'optimizer.ema_decay' is 0, it must be"),
                (["eval.use_ema=true"], "'eval.use_ema: true' has nothing to evaluate: set optimizer.ema_decay"),
                (["sync.sync_every=4"], "'sync.sync_every' has no effect"),
                ([local, "sync.outer_optimizer=nesterov"], "'sync.outer_optimizer' is no longer supported"),
                ([local, "sync.sync_every=0"], "'sync.sync_every' is 0, it must be"),
                ([local, "sync.shard_optimizer=true"], "'sync.sync_replicas: false' (--set sync.sync_replicas) cannot be combined with "
                 "sync.shard_optimizer (--set sync.shard_optimizer)"),
                ([local, "sync.comm_dtype=bf16"], "cannot be combined with sync.comm_dtype"),
                ([local, "run.deterministic=elastic"], "cannot be combined with run.deterministic: elastic"),
                ([local, "train.batch_norm=sync"], "cannot be combined with train.batch_norm: sync"),
                ([local, "train.precision=fp16"], "cannot be combined with train.precision: fp16")):
            output = self.tool("check", digits, *[word for one in sets for word in ("--set", one)], expect=78)
            self.assertIn(expected, output)
        quantized = self.start(2, config=SOURCE / "configs/digits_qat.yaml", sets=[local]).wait()
        self.assertEqual(quantized.code, 78, quantized.log)
        self.assertIn("sync.sync_replicas: false cannot be combined with a recipe that quantizes", quantized.log)


if __name__ == "__main__":
    unittest.main()
