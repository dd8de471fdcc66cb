"""`lockstep eval`: one save, and every save of a running run, with kills of both sides."""
import csv
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import unittest

from counts import happened
from exported import PYTHON, require_python
from harness import BUILD, ENDLESS, LOCKSTEP, MPIRUN, SOURCE, LockstepTest, wait_for

DATA = ["data.eval.type=digits", "data.eval.split=test", "run.threads=1"]
FAULT_CALLS = BUILD / "tests/integration/libfault_calls.so"


def results_in(folder):
    found = {}
    for path in folder.glob("eval/step-*.json"):
        found[int(path.stem.split("-")[1])] = json.loads(path.read_text())
    return found


def steps_of(folder):
    return sorted(int(path.stem.rsplit("-", 1)[1]) for path in folder.glob("checkpoints/model.ckpt-*.index"))


class EvalCommand(LockstepTest):
    def arguments(self, config, *sets):
        return [config, *[part for one in [f"run.project_dir={self.folder / 'run'}", *sets] for part in ("--set", one)]]

    def evaluated(self, config, *sets, restore=None):
        text = self.tool("eval", *self.arguments(config, *sets), *(("--restore", restore) if restore else ()))
        path = re.search(r"\((\S+\.json)\)", text)[1]
        with open(path) as file:
            return json.load(file)

    def watch(self, *sets, environment=None):
        process = subprocess.Popen([*map(str, [LOCKSTEP, "eval", *self.arguments(ENDLESS, *DATA, *sets), "--watch"])], cwd=SOURCE,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                                   env={**os.environ, **(environment or {})})
        self.started.append(process)
        return process

    def at_opens_of(self, path, what):
        """Environment in which `what` (WAIT, NOTE) happens at each open() of a file whose path has this text; self.folder/opens gets a line each."""
        return {"LD_PRELOAD": str(FAULT_CALLS), "LOCKSTEP_FAULT_RANK": "", "LOCKSTEP_FAULT_PATH": path, "LOCKSTEP_FAULT_CALL": "open",
                "LOCKSTEP_FAULT_AT": "1+", "LOCKSTEP_FAULT_DO": what, "LOCKSTEP_FAULT_REPORT": str(self.folder / "opens")}

    def num_opens(self):
        path = self.folder / "opens"
        return len(path.read_text().splitlines()) if path.exists() else 0


class OneSave(EvalCommand):
    def test_its_curves_stand_beside_those_of_others(self):
        """Curves of two saves, by a process each: no point makes a viewer drop another one, or one of the run."""
        config, sets = SOURCE / "configs/digits.yaml", ["train.max_steps=40", "run.threads=1"]
        run = self.train(1, sets=[*sets, "checkpoint.save_checkpoints_steps=20"])
        found = {step: self.evaluated(config, *sets, restore=run.folder / f"checkpoints/model.ckpt-{step}") for step in (40, 20)}
        shown = self.shown_by_tensorboard(run.folder / "evaluator")
        for name in ("accuracy", "loss"):
            points = shown[f"{name}/eval"]
            self.assertEqual([step for step, _ in points], [40, 20], name)
            for step, value in points:
                self.assertAlmostEqual(value, found[step][name], places=5)

    def shown_by_tensorboard(self, folder):
        """{tag: [[step, value], ...]} that TensorBoard keeps of the files of a folder, oldest file first."""
        require_python()
        done = subprocess.run([PYTHON, pathlib.Path(__file__).with_name("run_tags.py"), folder], capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["scalars"]

    def test_a_pruned_and_quantized_run_repeats_its_evaluation(self):
        recipe = self.recipe("""version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.1, final_sparsity: 0.6, start_step: 10, end_step: 60, update_frequency_steps: 10}
  - !QuantizationModifier {start_epoch: 1}
""")
        sets = [recipe, "train.max_steps=60", "eval.metrics=[top_k]"]
        summary = self.train(1, sets=[*sets, "checkpoint.sparse=true"]).summary()
        found = self.evaluated(SOURCE / "configs/digits.yaml", *sets, "run.threads=1")
        self.assertEqual((found["global_step"], found["parameters_sha256"]), (60, summary["parameters_sha256"]))
        for key in ("accuracy", "loss", "num_samples", "metrics"):
            self.assertEqual(found[key], summary["eval"][key], key)

    def test_two_ranks_save_and_an_earlier_save_is_named(self):
        run = self.train(2, sets=["eval.on_save=true", "checkpoint.save_checkpoints_steps=20", "train.max_steps=60"])
        with open(run.folder / "train/evals.csv") as file:
            accuracies = {int(row["step"]): float(row["value"]) for row in csv.DictReader(file) if row["name"] == "accuracy"}
        for step in (20, 60):
            found = self.evaluated(SOURCE / "configs/digits.yaml", restore=run.folder / f"checkpoints/model.ckpt-{step}")
            self.assertEqual((found["global_step"], found["accuracy"]), (step, accuracies[step]))

    def test_a_folder_means_its_newest_save(self):
        config, run = SOURCE / "configs/digits.yaml", self.train(1, sets=["train.max_steps=6", "checkpoint.save_checkpoints_steps=3"])
        for folder in (run.folder, run.folder / "checkpoints"):
            self.assertEqual(self.evaluated(config, restore=folder)["global_step"], 6)

    def test_one_process_alone(self):
        done = subprocess.run([MPIRUN, "2", LOCKSTEP, "eval", *self.arguments(SOURCE / "configs/digits.yaml")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 64, done.stdout + done.stderr)
        self.assertIn("was started 2 times by mpirun: an evaluation of checkpoints is one process", done.stdout + done.stderr)

    def test_mnist_repeats_its_accuracy(self):
        if not (SOURCE / "datasets/mnist/train-images-idx3-ubyte").is_file():
            subprocess.run([SOURCE / "tools/example_data", "mnist"], check=True)
        config = SOURCE / "configs/mnist_mlp.yaml"
        summary = self.train(2, config=config).summary()
        found = self.evaluated(config)
        print("accuracy", found["accuracy"])
        self.assertEqual(found["accuracy"], summary["eval"]["accuracy"])
        self.assertGreaterEqual(found["accuracy"], 0.95)

    def test_bad_input(self):
        config = SOURCE / "configs/digits.yaml"
        self.assertIn("contains no complete checkpoint", self.tool("eval", *self.arguments(config), expect=66))
        self.assertIn("'data.eval' is missing", self.tool("eval", *self.arguments(config, "data.eval=null"), expect=78))
        self.assertIn("--watch evaluates every checkpoint", self.tool("eval", *self.arguments(config), "--watch", "--restore", "x", expect=64))
        run = self.train(1, sets=["train.max_steps=5"])
        saves = run.folder / "checkpoints"
        for wrong, code, told in (("", 64, "''"), (saves / "model.ckpt-6", 66, "model.ckpt-5"), (saves / "model.ckpt-5.index", 64, "checkpoint without '.index'"),
                                  (self.folder / "x", 66, "not found")):
            self.assertIn(told, self.tool("eval", *self.arguments(config), "--restore", wrong, expect=code))
        shard = next(run.folder.glob("checkpoints/*.data-*"))
        data = shard.read_bytes()
        shard.write_bytes(bytes(byte ^ 1 for byte in data))
        self.assertIn("wrong crc32c", self.tool("eval", *self.arguments(config), expect=65))
        self.assertEqual(results_in(run.folder), {})

    def test_the_result_says_which_weights_were_evaluated(self):
        config, sets = SOURCE / "configs/digits.yaml", ["train.max_steps=10", "optimizer.ema_decay=0.9"]
        summary = self.train(1, sets=sets).summary()
        found = self.evaluated(config, *sets)
        self.assertEqual((found["ema"], found["evaluated_sha256"]), (True, summary["evaluated_sha256"]))
        plain = self.evaluated(config, *sets, "eval.use_ema=false")
        self.assertEqual((plain["ema"], plain["parameters_sha256"], plain.get("evaluated_sha256")), (False, summary["parameters_sha256"], None))

    def test_the_training_data_need_not_be_there(self):
        """The recipe quantizes from an epoch on, so the save gives the length of an epoch."""
        data = shutil.copy(SOURCE / "data/digits/digits.csv", self.folder / "digits.csv")
        sets = [self.recipe("version: 1.0.0\nmodifiers:\n  - !QuantizationModifier {start_epoch: 1}\n"), "train.max_steps=30", "run.threads=1",
                f"data.train.path={data}", "data.drop_last=true"]
        summary = self.train(1, sets=sets).summary()
        os.remove(data)
        found = self.evaluated(SOURCE / "configs/digits.yaml", *sets)
        self.assertEqual((found["accuracy"], found["loss"]), (summary["eval"]["accuracy"], summary["eval"]["loss"]))
        not_named = [*sets[:-2], "data.train=null"]
        self.assertEqual(self.evaluated(SOURCE / "configs/digits.yaml", *not_named)["loss"], found["loss"])
        for file in (self.folder / "run/checkpoints").iterdir():
            file.unlink()
        self.assertIn("digits.csv", self.tool("eval", *self.arguments(SOURCE / "configs/digits.yaml", *sets), expect=66))
        self.assertIn("'data.train' is not given, and no checkpoint", self.tool("eval", *self.arguments(SOURCE / "configs/digits.yaml", *not_named), expect=66))

    def test_a_path_that_is_no_text_is_written_too(self):
        run = self.train(1, sets=["train.max_steps=5"])
        odd = os.fsdecode(os.fsencode(self.folder) + b"/save\xe9")
        shutil.copytree(run.folder / "checkpoints", odd)
        self.tool("eval", *self.arguments(SOURCE / "configs/digits.yaml"), "--restore", odd + "/model.ckpt-5")
        self.assertEqual(list(results_in(run.folder)), [5])


class Watch(EvalCommand):
    SAVES = ["checkpoint.save_checkpoints_steps=50", "summary.progress_secs=0"]

    def test_kills_of_both_sides(self):
        sets = [*DATA, *self.SAVES, "checkpoint.keep_checkpoint_max=-1"]
        folder, texts = self.folder / "run", []
        watcher = self.watch(*sets)  # before there is a run
        run = self.start(1, config=ENDLESS, sets=sets)
        for round_ in range(3):
            enough = len(results_in(folder)) + 2
            wait_for(lambda: len(results_in(folder)) >= enough, "two more evaluations")
            watcher.kill()
            texts.append(watcher.communicate()[0])
            if round_ == 1:
                for pid in run.rank_pids().values():
                    os.kill(pid, signal.SIGKILL)
                run.wait()
                run = self.start(1, config=ENDLESS, sets=sets)
            watcher = self.watch(*sets)
        for pid in run.rank_pids().values():
            os.kill(pid, signal.SIGUSR1)
        self.assertEqual(run.wait().code, 75)
        last = steps_of(folder)[-1] + 20
        self.train(1, config=ENDLESS, sets=[*sets, f"train.max_steps={last}"])
        texts.append(watcher.communicate(timeout=60)[0])
        self.assertEqual(watcher.returncode, 0, texts[-1])
        steps = steps_of(folder)
        self.assertEqual(sorted(results_in(folder)), steps)
        told = [int(step) for step in re.findall(r"step (\d+): loss", "".join(texts))]
        self.assertEqual(len(told), len(set(told)))  # none twice
        self.assertLessEqual(len(steps) - len(told), 3)  # a watcher killed behind a result did not come to tell it
        for step in (steps[0], steps[-1]):
            found = results_in(folder)[step]
            again = self.evaluated(ENDLESS, *sets, restore=folder / f"checkpoints/model.ckpt-{step}")
            self.assertEqual(again, found)
        self.assertIn("0 checkpoint(s) evaluated", self.watch(*sets).communicate(timeout=60)[0])
        otherwise = self.watch(*sets, "eval.eval_freq=1", "eval.batch_size=10")  # another evaluation
        self.assertIn(f"{len(steps)} checkpoint(s) evaluated", otherwise.communicate(timeout=100)[0])
        print(f"{len(steps)} saves, {len(told)} told")

    def test_saves_that_the_run_replaces_meanwhile_have_its_results(self):
        sets = [*DATA, "checkpoint.save_checkpoints_steps=4", "checkpoint.keep_checkpoint_max=1", "eval.on_save=true"]
        watcher = self.watch(*sets)
        run = self.train(1, config=ENDLESS, sets=[*sets, "train.max_steps=400"])
        text = watcher.communicate(timeout=60)[0]
        self.assertEqual(watcher.returncode, 0, text)
        with open(run.folder / "train/evals.csv") as file:
            losses = {int(row["step"]): float(row["value"]) for row in csv.DictReader(file) if row["name"] == "loss"}
        found = {step: result["loss"] for step, result in results_in(run.folder).items()}
        self.assertIn(400, found)
        self.assertEqual(found, {step: losses[step] for step in found})
        happened("saves that a run replaced were evaluated", len(found))

    def test_a_save_that_is_removed_while_it_is_opened_is_passed_over(self):
        sets = [*DATA, "checkpoint.save_checkpoints_steps=20", "train.max_steps=40"]
        run = self.train(1, config=ENDLESS, sets=sets)
        watcher = self.watch(*sets, environment=self.at_opens_of("/model.ckpt-20.data-", "WAIT"))
        wait_for((self.folder / "opens").exists, "the save to be opened")
        for file in run.folder.glob("checkpoints/model.ckpt-20.*"):
            file.unlink()
        (self.folder / "opens.go").touch()
        text = watcher.communicate(timeout=60)[0]
        self.assertEqual(watcher.returncode, 0, text)
        self.assertEqual(sorted(results_in(run.folder)), [40])
        happened("saves passed over", text.count("read: skipped"))

    def test_a_signal_ends_it_and_a_second_watcher_is_refused(self):
        sets = [*DATA, *self.SAVES]
        first = self.watch(*sets)
        wait_for(lambda: (self.folder / "run/eval/.lock").exists(), "the first watcher")
        first.send_signal(signal.SIGSTOP)
        second = self.watch(*sets)
        self.assertIn("eval", second.communicate(timeout=60)[0])
        self.assertEqual(second.returncode, 73)
        first.send_signal(signal.SIGCONT)
        first.send_signal(signal.SIGTERM)
        self.assertIn("stopped on request", first.communicate(timeout=60)[0])
        self.assertEqual(first.returncode, 75)

    def test_a_signal_ends_an_evaluation_that_runs(self):
        self.train(1, sets=["train.max_steps=5"])
        slow = ["data.eval={type: random, shape: [1, 8, 8], classes: 10, samples: 4000000}", "eval.batch_size=1", "run.threads=1"]
        command = [*map(str, [LOCKSTEP, "eval", *self.arguments(SOURCE / "configs/digits.yaml", *slow)])]
        for more, number in ((["--watch"], signal.SIGUSR1), ([], signal.SIGUSR1), ([], signal.SIGTERM)):
            process = subprocess.Popen([*command, *more], cwd=SOURCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.started.append(process)
            self.assertIn("[start]", process.stdout.readline())
            process.send_signal(number)
            self.assertIn("stopped on request", process.communicate(timeout=60)[0])
            self.assertEqual(process.returncode, 75)

    def test_a_folder_that_is_removed_or_renamed_ends_it(self):
        sets = [*DATA, "checkpoint.save_checkpoints_steps=20", "train.max_steps=40"]
        for what, end in (("run", lambda folder: folder.rename(folder.with_name("other"))),
                          ("run/checkpoints", shutil.rmtree), ("run/eval", shutil.rmtree)):
            run = self.train(1, config=ENDLESS, sets=sets)
            (run.folder / "summary.json").unlink()
            watcher = self.watch(*sets)
            wait_for(lambda: sorted(results_in(run.folder)) == [20, 40], "the evaluations")
            end(self.folder / what)
            text = watcher.communicate(timeout=60)[0]
            self.assertEqual(watcher.returncode, 66, text)
            self.assertIn(f"{self.folder / what} was removed or renamed while it was watched", text)
            shutil.rmtree(run.folder, ignore_errors=True)

    def test_records_of_any_kind_and_runs_that_are_restarted_are_waited_for(self):
        sets = [*DATA, "checkpoint.save_checkpoints_steps=20", "train.max_steps=20"]
        run = self.train(1, config=ENDLESS, sets=sets)
        summary, result = run.folder / "summary.json", run.folder / "eval/step-20.json"
        summary.unlink()
        result.parent.mkdir(exist_ok=True)
        result.write_text('{"index_sha256": 7}')
        watcher = self.watch(*sets, environment=self.at_opens_of("/summary.json", "NOTE"))
        wait_for(lambda: json.loads(result.read_text())["index_sha256"] != 7, "the evaluation")
        for text in ('[]', '{"exit_reason": 3}', '{"exit_reason": {}, "exit_code": "x"}', '{"exit_reason": "stopped"}', '{', '[' * 300000,
                     '{"exit_reason": "finished", "x": "' + " " * (1 << 24) + '"}',
                     '{"exit_reason": "failed", "exit_code": 69}', '{"exit_reason": "failed", "exit_code": 79}'):
            summary.write_text(text)
            looks = self.num_opens()
            wait_for(lambda: watcher.poll() is not None or self.num_opens() >= looks + 2, "two looks")
            self.assertIsNone(watcher.poll(), text[:100])
        summary.write_text('{"exit_reason": "failed", "exit_code": 65}')
        text = watcher.communicate(timeout=60)[0]
        self.assertEqual(watcher.returncode, 0, text)
        self.assertIn("the run has ended", text)

    def test_a_damaged_save_is_told_and_the_others_are_evaluated(self):
        sets = [*DATA, "checkpoint.save_checkpoints_steps=20", "train.max_steps=60"]
        run = self.train(1, config=ENDLESS, sets=sets)
        shard = next(run.folder.glob("checkpoints/model.ckpt-40.data-*"))
        shard.write_bytes(bytes(byte ^ 1 for byte in shard.read_bytes()))
        watcher = self.watch(*sets)
        text = watcher.communicate(timeout=60)[0]
        self.assertEqual(watcher.returncode, 65, text)
        self.assertEqual(text.count("model.ckpt-40 cannot be evaluated"), 1, text)
        self.assertEqual(sorted(results_in(run.folder)), [20, 60])


if __name__ == "__main__":
    unittest.main()
