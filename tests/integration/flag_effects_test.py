"""Effect of each flag of the Estimator framework on a run."""
import csv
import json
import pathlib
import re
import signal
import unittest

from flag_runs import NETWORK, SIDE, FlagRuns

# A flag of an optimizer's own numbers: with which optimizer, and another value than its default.
NUMBERS = {
    "adadelta_rho": ("adadelta", 0.5), "adagrad_initial_accumulator_value": ("adagrad", 0.5), "adam_beta1": ("adam", 0.5),
    "adam_beta2": ("adam", 0.5), "opt_epsilon": ("adam", 0.5), "ftrl_learning_rate_power": ("ftrl", -0.25),
    "ftrl_initial_accumulator_value": ("ftrl", 0.5), "ftrl_l1": ("ftrl", 0.25), "ftrl_l2": ("ftrl", 0.25),
    "momentum": ("momentum", 0.5), "rmsprop_momentum": ("rmsprop", 0.5), "rmsprop_decay": ("rmsprop", 0.5),
}


class FlagEffects(FlagRuns):
    def weights(self, run):
        return run.summary()["parameters_sha256"]

    def saves(self, run):
        return sorted(int(path.stem.rsplit("-", 1)[1]) for path in run.folder.glob("checkpoints/model.ckpt-*.index"))

    def tensors(self, run, step=None):
        """SHA-256 by parameter of a save."""
        where = run.folder / "checkpoints" / ("" if step is None else f"model.ckpt-{step}")
        shown = json.loads(self.tool("ckpt", "show", where, "--json"))
        return {t["key"][6:]: t["sha256"] for t in shown["tensors"] if (t["key"] or "").startswith("model/")}

    def evaluations(self, run):
        with open(run.folder / "train/evals.csv") as file:
            return [row for row in csv.DictReader(file) if row["name"] == "loss"]

    def test_no_flag_is_left_out_below(self):
        tests = pathlib.Path(__file__).read_text()
        flags = re.findall(r"^\| `--(\w+)`", self.tool("reference", "--flags"), re.MULTILINE)
        self.assertEqual(len(flags), 42)
        self.assertEqual([flag for flag in flags if not re.search(rf"\b{flag}\b", tests)], [])

    def test_standard_flags(self):
        usual = self.run_with()
        self.assertEqual(usual.summary()["steps"], 6)
        self.assertRegex(usual.log, r"run (run\d+): mlp .* 12 training samples, 3 steps an epoch, 6 steps in all")
        self.assertTrue((usual.folder / "checkpoints").is_dir())  # model_dir
        self.assertEqual(self.run_with(train_steps=4).summary()["steps"], 4)
        self.assertIn(" 2 steps an epoch", self.run_with(batch_size=6).log)
        self.assertIn(" 1 steps an epoch", self.run_with(batch_size=6, ranks=2).log)  # of each rank
        self.assertIn(" 6 training samples", self.run_with(train_metadata=self.data / "train-1.csv").log)
        self.assertIn("accuracy", usual.summary()["eval"])
        self.assertFalse(self.run_with(eval_metadata=None).summary().get("eval"))
        large = self.run_with(image_size=2 * SIDE, network=["--model", "mlp", "--set", f"model.layers=[{12 * SIDE * SIDE}, 3]", "--set", "eval.batch_size=4"])
        self.assertIn("accuracy", large.summary()["eval"])  # both data sets are of that size
        plain = self.run_with("--set", "data.shuffle=false")
        self.assertNotEqual(self.weights(usual), self.weights(plain))
        for words in ({"debug": "true"}, {"debug": "on"}):
            self.assertEqual(self.weights(self.run_with(**words)), self.weights(plain))
        self.assertEqual(self.weights(self.run_with("--nodebug")), self.weights(usual))

    def test_gpu_flags(self):
        run = self.run_with("--noallow_growth", "--per_process_gpu_memory_fraction=0.5", "--memory_policy=all")
        self.assertRegex(run.log, r"gpu: allow_growth=false, memory_policy=all, per_process_gpu_memory_fraction=0.5")
        refused = self.run_with("--allow_growth", "--memory_policy=all", expect=78)
        self.assertIn("'gpu.allow_growth: true' allocates memory as needed, 'gpu.memory_policy: all' at the start: remove one", refused.log)

    def test_evaluation_flags(self):
        few = ["--set", "eval.batch_size=2"]
        losses = [float(self.evaluations(self.run_with(*few, eval_freq=batches))[-1]["value"]) for batches in (1, 6)]
        self.assertNotEqual(*losses)
        self.assertEqual(self.evaluations(self.run_with(*few, eval_freq=6)), self.evaluations(self.run_with(*few, eval_freq=None, eval_batches=6)))
        often = {"save_checkpoints_steps": 1, "train_steps": 4}
        self.assertGreater(len(self.evaluations(self.run_with(eval_throttle_secs=0, **often))),
                           len(self.evaluations(self.run_with(eval_throttle_secs=1000, **often))))

    def test_optimizer_flags(self):
        found = {name: self.weights(self.run_with(optimizer=name))
                 for name in ("adadelta", "adagrad", "adam", "ftrl", "momentum", "sgd", "rmsprop")}
        self.assertEqual(len(set(found.values())), len(found))  # each takes another way
        for flag, (optimizer, value) in NUMBERS.items():
            with self.subTest(flag):
                changed = self.run_with(optimizer=optimizer, **{flag: value})
                self.assertNotEqual(self.weights(changed), found[optimizer])
                self.assertNotIn("has no effect", changed.log)
        self.assertNotEqual(self.weights(self.run_with(weight_decay=0.5)), found["momentum"])
        beside = self.run_with(adam_beta1=0.5)
        self.assertIn("flag --adam_beta1: 'optimizer.adam_beta1' has no effect with the other settings", beside.log)
        self.assertEqual(self.weights(beside), found["momentum"])

    def test_learning_rate_flags(self):
        near = self.assertAlmostEqual
        usual = self.rates(self.run_with())
        near(usual[0], 0.1)
        near(self.rates(self.run_with(learning_rate=0.2))[0], 0.2)
        self.assertEqual(len(set(self.rates(self.run_with(learning_rate_decay_type="fixed")))), 1)
        short = {"num_epochs_per_decay": 1}
        near(self.rates(self.run_with(**short))[-1], 0.1 * 0.94)  # 3 steps an epoch
        near(usual[-1], 0.1)  # after 2 epochs
        near(self.rates(self.run_with(learning_rate_decay_factor=0.5, **short))[-1], 0.05)
        polynomial = self.run_with(learning_rate_decay_type="polynomial", end_learning_rate=0.04, num_epochs_per_decay=1)
        near(self.rates(polynomial)[-1], 0.04)
        self.assertNotEqual(self.run_with(label_smoothing=0.5).steps()[0]["loss"], self.run_with().steps()[0]["loss"])
        normalised = ["--model", "cnn", "--set", "model.batch_norm=true", "--set", "eval.batch_size=4"]  # over a micro-batch
        whole, cut = (self.run_with(network=normalised, replicas_to_aggregate=n) for n in (1, 2))
        self.assertNotEqual(self.weights(whole), self.weights(cut))
        self.assertNotEqual(*(self.weights(self.run_with(ranks=2, sync_replicas=on)) for on in ("true", "false")))

    def test_fine_tuning_flags(self):
        source = self.run_with("--set", "run.seed=5")
        prefix = source.folder / "checkpoints/model.ckpt-6"
        loaded, layers = self.tensors(source), ["layers/0", "layers/1"]

        def filled(**flags):
            """Layers that have the source's weights."""
            now = self.tensors(self.run_with(train_steps=0, warm_start_ckpt=prefix, **flags))
            return [layer for layer in layers if all(now[name] == loaded[name] for name in now if name.startswith(layer + "/"))]
        self.assertEqual(filled(), layers)
        self.assertEqual(filled(checkpoint_exclude_scopes=layers[1]), layers[:1])
        self.assertEqual(filled(checkpoint_restore_scopes=layers[1]), layers[1:])
        self.assertEqual(filled(checkpoint_restore_scopes=",".join(layers), checkpoint_exclude_scopes=layers[0]), layers[1:])
        before, after = (self.tensors(self.run_with(train_steps=steps, trainable_scopes=layers[1])) for steps in (0, 6))
        moved = {name.rsplit("/", 1)[0] for name in before if before[name] != after[name]}
        self.assertEqual(moved, set(layers[1:]))
        self.assertIn("trainable_scopes", self.run_with(trainable_scopes="head", expect=78).log)

    def test_checkpoint_flags(self):
        self.assertEqual(self.saves(self.run_with(save_checkpoints_steps=1)), [2, 3, 4, 5, 6])  # 5 of them are kept
        self.assertEqual(self.saves(self.run_with(save_checkpoints_steps=1, keep_checkpoint_max=2)), [5, 6])
        self.assertEqual(self.saves(self.run_with(save_checkpoints_steps=2, keep_checkpoint_max=-1)), [2, 4, 6])
        events = [sum(path.stat().st_size for path in self.run_with(save_summary_steps=steps).folder.glob("train/events*"))
                  for steps in (1, 1000)]
        self.assertGreater(events[0], events[1])
        endless = self.start(1, config=None, run="endless",
                             arguments=[*NETWORK, *self.described(train_steps=100000000, save_checkpoints_secs=1, eval_metadata=None)])
        endless.wait_for_commit(1)
        endless.process.send_signal(signal.SIGUSR1)
        self.assertEqual(endless.wait().code, 75, endless.log)
        self.assertNotIn("both", endless.log)


if __name__ == "__main__":
    unittest.main()
