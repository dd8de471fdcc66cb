"""Evaluations of saves, early stopping, and the models that are published after them."""
import csv
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import unittest

from exported import PYTHON, answers_of, require_torch, skips
from harness import BUILD, ENDLESS, SOURCE, LockstepTest, evaluated_steps, faked_time, metric, saves_of, wait_for
from mounts import in_own_mounts

SAVES = ["eval.on_save=true", "checkpoint.save_checkpoints_steps=10", "checkpoint.keep_checkpoint_max=-1"]
EVAL_DATA = ["data.eval.type=digits", "data.eval.split=test"]
NETS = SOURCE / "tests/integration/programs/python/nets.py"
FAULT_CALLS = BUILD / "tests/integration/libfault_calls.so"


def sizes_told(run):
    return set(map(int, re.findall(r"step \d+: loss .* over (\d+) samples", run.log)))


class EvaluationOfSaves(LockstepTest):
    def test_each_save_is_evaluated_over_as_many_batches_as_said(self):
        accuracies = set()
        for ranks in (1, 2):
            run = self.train(ranks, run=f"run{ranks}", sets=[*SAVES, "train.max_steps=34", "eval.eval_freq=3", "eval.batch_size=50"])
            self.assertEqual(evaluated_steps(run), [10, 20, 30, 34])
            self.assertEqual(saves_of(run), [10, 20, 30, 34])
            self.assertEqual(sizes_told(run), {150})
            accuracies.add(run.summary()["eval"]["accuracy"])
        self.assertEqual(len(accuracies), 1)

    def test_the_last_batch_is_cut_short_and_not_filled_up(self):
        run = self.train(2, sets=["train.max_steps=5", "eval.eval_batches=4", "eval.batch_size=100"])
        self.assertEqual(run.summary()["eval"]["num_samples"], 359)  # of 359, in batches of 100

    def test_what_an_epoch_asks_for_is_saved_first(self):
        run = self.train(2, sets=["eval.on_save=true", "eval.every_epochs=1", "checkpoint.save_checkpoints_steps=1000",
                                  "train.max_steps=50"])
        self.assertEqual(evaluated_steps(run), [23, 46, 50])
        self.assertEqual(saves_of(run), [23, 46, 50])
        lines = [line for line in run.log.splitlines() if "step 23" in line]
        self.assertIn("saved step 23", lines[0])
        self.assertIn("step 23: loss", lines[1])

    def test_no_bit_of_training_depends_on_it(self):
        plain = self.train(2, run="plain", sets=["train.max_steps=120", "eval.every_epochs=0"])  # pruning begins at step 92
        strict = self.train(2, run="strict", sets=[*SAVES, "train.max_steps=120", "eval.strict_restore_on_switch=true",
                                                   "sync.shard_optimizer=true", "checkpoint.sparse=true"])
        self.assertEqual(strict.summary()["parameters_sha256"], plain.summary()["parameters_sha256"])
        self.assertEqual(strict.summary()["eval"], plain.summary()["eval"])

    def test_the_trainers_preset_saves_evaluates_and_exports(self):
        """Evaluations after each epoch, without a separate key."""
        config = self.folder / "preset.yaml"
        config.write_text("version: 1.0.0\npreset: trainer\nrun: {name: preset}\nmodel: {type: digits_net}\n"
                          "data: {train: {type: digits}, eval: {type: digits, split: test}, global_batch_size: 64}\ntrain: {max_epochs: 2}\n")
        run = self.train(1, config=config)
        self.assertEqual((evaluated_steps(run), saves_of(run)), ([23, 46], [23, 46]))
        self.assertEqual(sorted(os.listdir(run.folder / "saved_models")), ["23", "46"])
        own = self.train(1, run="own", config=config, sets=["export.after_evaluation=false", "eval.every_epochs=2"])
        self.assertEqual(evaluated_steps(own), [46])
        self.assertFalse((own.folder / "saved_models").exists())
        alone = self.train(1, run="alone", config=config, sets=["data.eval=null"])
        self.assertEqual(os.listdir(alone.folder / "saved_models"), ["46"])

    def test_the_trainers_preset_exports_nothing_of_a_network_without_a_form_for_it(self):
        config = self.folder / "preset.yaml"
        config.write_text(f"version: 1.0.0\npreset: trainer\nrun: {{name: preset}}\nmodel: {{type: python, path: {NETS}, name: LeNet}}\n"
                          "data: {train: {type: digits}, eval: {type: digits, split: test}, global_batch_size: 64}\ntrain: {max_epochs: 2}\n")
        for name, sets in (("evaluated", []), ("at_end", ["data.eval=null"])):
            settings = [word for one in sets for word in ("--set", one)]
            self.assertIn("'preset: trainer' exports nothing", self.tool("check", config, *settings))
            run = self.train(2, run=name, config=config, sets=sets)
            self.assertEqual(run.log.count("'preset: trainer' exports nothing"), 1, run.log)
            self.assertFalse((run.folder / "saved_models").exists())
        for keys in ("export.after_evaluation=true", "export.best=true"):
            self.assertIn("section 'export'", self.tool("check", config, "--set", keys, expect=78))
            self.assertIn("remove the section", self.train(1, run="own", config=config, sets=[keys], expect=78).log)
        self.assertIn("section 'export' with 'preset: trainer'", self.tool("check", config, "--set", "export.best=true", expect=78))

    def test_a_save_that_fails_is_not_evaluated(self):
        environment = {"LD_PRELOAD": str(FAULT_CALLS), "LOCKSTEP_FAULT_RANK": "0", "LOCKSTEP_FAULT_PATH": "model.ckpt-20",
                       "LOCKSTEP_FAULT_CALL": "any", "LOCKSTEP_FAULT_AT": "1+", "LOCKSTEP_FAULT_DO": "ENOSPC"}
        run = self.train(2, sets=[*SAVES, "train.max_steps=34"], environment=environment)
        self.assertEqual(evaluated_steps(run), [10, 30, 34])

    def test_a_save_soon_after_an_evaluation_is_not_evaluated(self):
        sets = [*SAVES, *EVAL_DATA, "train.max_steps=200", "eval.eval_throttle_secs=3600", "summary.progress_secs=0"]
        run = self.train(2, config=ENDLESS, sets=sets)
        self.assertEqual(evaluated_steps(run), [10, 200])  # the first, and that of the final weights
        self.assertEqual(metric(run.last_page(0), "lockstep_validations_skipped_total"), 18)

    def test_time_that_passes_lets_the_next_save_be_evaluated(self):
        clock = self.folder / "clock"
        clock.write_text("+0\n")
        run = self.start(1, config=ENDLESS, environment=faked_time(clock), sets=[*SAVES, *EVAL_DATA, "eval.eval_throttle_secs=3600", "summary.progress_secs=0"])
        run.wait_for_commit(50)
        self.assertEqual(evaluated_steps(run), [10])
        for hours in (1, 2):
            clock.write_text(f"+{hours * 3601}\n")
            wait_for(lambda: len(evaluated_steps(run)) == hours + 1, "an evaluation after an hour")
            run.wait_for_commit(evaluated_steps(run)[-1] + 40)  # and none at the next saves
            self.assertEqual(len(evaluated_steps(run)), hours + 1)
        os.kill(run.rank_pids()[0], signal.SIGUSR1)
        self.assertEqual(run.wait().code, 75, run.log)

    def test_an_evaluation_that_was_cut_is_made_up_for(self):
        """Killed, and stopped, in the evaluation of the save of step 20: the resumed run evaluates it first."""
        slow = "data.eval={type: random, shape: [1, 8, 8], classes: 10, samples: 400000}"
        sets = [*SAVES, "train.max_steps=34", "eval.batch_size=1"]
        for name, end, code in (("killed", signal.SIGKILL, 137), ("stopped", signal.SIGUSR1, 75)):
            begun = {"run": name, "sets": [*sets, slow, "checkpoint.save_checkpoints_steps=20"]}
            run = self.start(2, **begun)
            run.wait_for_status("the evaluation", state="validating", step=20)
            os.kill(run.rank_pids()[1], end)
            self.assertIn(run.wait().code, (code, 69), run.log)
            self.assertEqual((evaluated_steps(run), saves_of(run)), ([], [20]))  # stopped there, without another step
            resumed = self.train(2, run=name, sets=[*sets, slow, "eval.eval_freq=4"])
            self.assertEqual(evaluated_steps(resumed), [20, 30, 34])
            again = self.train(2, run=name, sets=[*sets, slow, "eval.eval_freq=4", "train.max_steps=36"])
            self.assertEqual(evaluated_steps(again), [20, 30, 34, 36])


class EarlyEnd(LockstepTest):
    def test_evaluations_without_a_better_one_end_the_run_on_all_ranks(self):
        sets = [*SAVES, *EVAL_DATA, "optimizer.learning_rate=1e-30", "eval.patience=2"]
        run = self.train(2, config=ENDLESS, sets=sets)
        self.assertEqual(evaluated_steps(run), [10, 20, 30])  # the first is the best; then none is better
        self.assertEqual((run.summary()["exit_reason"], run.summary()["steps"]), ("stopped_early", 30))
        again = self.train(2, config=ENDLESS, sets=sets)  # it knows by its record that it has ended
        self.assertEqual((again.summary()["exit_reason"], again.summary()["steps"]), ("stopped_early", 30))

    def test_a_run_that_gets_better_goes_on(self):
        run = self.train(2, sets=[*SAVES, "train.max_steps=40", "eval.patience=2"])
        self.assertEqual((run.summary()["exit_reason"], run.summary()["steps"]), ("finished", 40))


class Published(LockstepTest):
    def check(self, folder, step, summary=None):
        """One export: all files, their digests, and the outputs of its network."""
        manifest = json.loads((folder / "manifest.json").read_text())
        self.assertEqual(manifest["global_step"], step)
        self.assertEqual(sorted(manifest["files"]), ["kpi.json", "losses.json", "model.pt"])
        self.assertEqual(sorted(os.listdir(folder)), ["kpi.json", "losses.json", "manifest.json", "model.pt"])
        for name, facts in manifest["files"].items():
            data = (folder / name).read_bytes()
            self.assertEqual((facts["num_bytes"], facts["sha256"]), (len(data), hashlib.sha256(data).hexdigest()))
        losses, kpi = (json.loads((folder / name).read_text()) for name in ("losses.json", "kpi.json"))
        self.assertEqual((losses["global_step"], kpi["global_step"]), (step, step))
        answers = answers_of(folder / "model.pt")
        self.assertAlmostEqual(answers["accuracy"], kpi["accuracy"], delta=1e-12)
        self.assertAlmostEqual(answers["loss"], losses["eval"], delta=1e-5)
        if summary:
            self.assertEqual((losses["train"], losses["eval"], kpi["accuracy"], manifest["parameters_sha256"]),
                             (summary["train_loss"], summary["eval"]["loss"], summary["eval"]["accuracy"], summary["parameters_sha256"]))

    def test_N94_each_evaluation_is_followed_by_an_export_that_python_loads(self):
        require_torch()
        run = self.train(2, sets=[*SAVES, "train.max_steps=36", "export={after_evaluation: true, best: true}", "eval.metrics=[top_k]"])
        models = run.folder / "saved_models"
        self.assertEqual(sorted(os.listdir(models)), ["10", "20", "30", "36", "best"])
        for step in (10, 20, 30, 36):
            self.check(models / str(step), step, run.summary() if step == 36 else None)
        self.assertIn("top_5", json.loads((models / "36/kpi.json").read_text()))
        with open(run.folder / "train/evals.csv") as file:
            losses = {int(row["step"]): float(row["value"]) for row in csv.DictReader(file) if row["name"] == "loss"}
        self.assertEqual(os.readlink(models / "best"), str(min(losses, key=losses.get)))
        self.assertEqual((run.folder / "checkpoints/inference_graph").read_bytes(), (models / "10/model.pt").read_bytes())
        self.assertEqual(json.loads((run.folder / "checkpoints/io_nodes.json").read_text()),
                         {"inputs": [{"name": "inputs", "shape": [None, 1, 8, 8], "dtype": "float32"}],
                          "outputs": [{"name": "logits", "shape": [None, 10], "dtype": "float32"}]})
        self.assertEqual(metric(run.last_page(0), "lockstep_exports_total"), 4)
        self.assertEqual(metric(run.last_page(0), "lockstep_export_failures_total"), 0)

    def test_the_newest_ones_are_kept_and_the_graph_is_written_once(self):
        sets = [*SAVES, "export={after_evaluation: true, keep: 2}"]
        run = self.train(1, sets=[*sets, "train.max_steps=30"])
        self.assertEqual(sorted(os.listdir(run.folder / "saved_models")), ["20", "30"])
        graph = (run.folder / "checkpoints/inference_graph").stat().st_mtime_ns
        run = self.train(1, sets=[*sets, "train.max_steps=50"])
        self.assertEqual(sorted(os.listdir(run.folder / "saved_models")), ["40", "50"])
        self.assertEqual((run.folder / "checkpoints/inference_graph").stat().st_mtime_ns, graph)

    def test_a_run_that_goes_on_from_an_older_save_keeps_what_it_publishes(self):
        sets = [*SAVES, "export={after_evaluation: true, keep: 2}"]
        run = self.train(1, sets=[*sets, "train.max_steps=50"])
        models = run.folder / "saved_models"
        (models / "+7").mkdir()  # the name of no step
        for newer in run.folder.glob("checkpoints/model.ckpt-[2-5]0.*"):
            newer.unlink()
        self.assertEqual(self.train(1, sets=[*sets, "train.max_steps=20"]).summary()["resumed_from_step"], 10)
        self.assertEqual(sorted(os.listdir(models)), ["+7", "20", "50"])

    def test_what_the_closing_prunes_is_published_at_the_end(self):
        """The run ends early at step 30, whose save is published; then masks change (the closing sparsity), and so does the network."""
        require_torch()
        recipe = self.recipe("""version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.0, final_sparsity: 0.6, start_step: 29, end_step: 30, update_frequency_steps: 1}
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 10}
""")
        run = self.train(1, sets=[*SAVES, recipe, "optimizer.learning_rate=1e-30", "eval.patience=2",
                                  "export.after_evaluation=true"])
        self.assertEqual((run.summary()["exit_reason"], run.summary()["steps"]), ("stopped_early", 30))
        self.assertGreater(run.summary()["sparsity"], 0.5)
        self.check(run.folder / "saved_models/30", 30, run.summary())

    def test_best_leads_to_the_best_of_what_is_there(self):
        """The best evaluation's export fails: the next best one is led to, and the best one once it is made up for."""
        fault = {"LD_PRELOAD": str(FAULT_CALLS), "LOCKSTEP_FAULT_RANK": "0", "LOCKSTEP_FAULT_PATH": ".36.new", "LOCKSTEP_FAULT_CALL": "any",
                 "LOCKSTEP_FAULT_AT": "1+", "LOCKSTEP_FAULT_DO": "ENOSPC"}
        sets = [*SAVES, "export={after_evaluation: true, best: true, keep: -1}", "train.max_steps=36"]
        run = self.train(1, sets=sets, environment=fault, expect=74)
        models = run.folder / "saved_models"
        self.assertFalse((models / "36").exists())
        steps = [line["loss"] for line in run.steps()]
        losses = {step: json.loads((models / str(step) / "losses.json").read_text())["eval"] for step in (10, 20, 30)}
        self.assertEqual(os.readlink(models / "best"), str(min(losses, key=losses.get)))
        again = self.train(1, sets=sets)
        self.assertLess(again.summary()["eval"]["loss"], min(losses.values()))
        self.assertEqual(os.readlink(models / "best"), "36")
        self.assertEqual(json.loads((models / "36/losses.json").read_text())["train"], steps[-1])  # of the start before

    def test_the_end_alone(self):
        require_torch()
        run = self.train(2, sets=["train.max_steps=20", "export.at_end=true"])
        self.assertEqual(os.listdir(run.folder / "saved_models"), ["20"])
        self.check(run.folder / "saved_models/20", 20, run.summary())

    def test_a_folder_that_takes_no_export_costs_no_save(self):
        (self.folder / "run").mkdir()
        (self.folder / "run/saved_models").write_text("in the way")
        run = self.train(2, sets=[*SAVES, "train.max_steps=30", "export.after_evaluation=true"], expect=74)
        self.assertEqual((run.summary()["exit_reason"], run.summary()["steps"]), ("not_exported", 30))
        self.assertIn("step 10 could not be exported", run.log)
        self.assertIn("run/saved_models", run.log)
        self.assertEqual(saves_of(run), [10, 20, 30])
        self.assertEqual(metric(run.last_page(0), "lockstep_export_failures_total"), 3)

    @in_own_mounts
    def test_a_read_only_folder_costs_no_save(self):
        models = self.folder / "run/saved_models"
        models.mkdir(parents=True)
        subprocess.run(["mount", "--bind", models, models], check=True)
        self.addCleanup(subprocess.run, ["umount", models], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", models], check=True)
        run = self.train(2, sets=[*SAVES, "train.max_steps=20", "export.after_evaluation=true"], expect=74)
        self.assertEqual((run.summary()["exit_reason"], run.summary()["steps"]), ("not_exported", 20))
        self.assertRegex(run.log, r"step 10 could not be exported.*run/saved_models.*Read-only file system")
        self.assertEqual(saves_of(run), [10, 20])
        self.assertEqual(os.listdir(models), [])

    def test_a_full_disk_leaves_no_half_of_an_export(self):
        environment = {"LD_PRELOAD": str(FAULT_CALLS), "LOCKSTEP_FAULT_RANK": "0", "LOCKSTEP_FAULT_PATH": "saved_models/.20",
                       "LOCKSTEP_FAULT_CALL": "any", "LOCKSTEP_FAULT_AT": "1+", "LOCKSTEP_FAULT_DO": "ENOSPC"}
        run = self.train(2, sets=[*SAVES, "train.max_steps=30", "export.after_evaluation=true"], environment=environment)
        self.assertEqual(sorted(os.listdir(run.folder / "saved_models")), ["10", "30"])
        self.assertIn("step 20 could not be exported", run.log)
        self.assertEqual(run.summary()["exit_reason"], "finished")  # the last one is there

    def test_an_export_that_is_cut_leaves_its_room_to_saves(self):
        environment = {"LD_PRELOAD": str(FAULT_CALLS), "LOCKSTEP_FAULT_RANK": "0", "LOCKSTEP_FAULT_PATH": "saved_models/.10.new.tmp/losses",
                       "LOCKSTEP_FAULT_CALL": "any", "LOCKSTEP_FAULT_AT": "1+", "LOCKSTEP_FAULT_DO": "ENOSPC"}
        run = self.train(1, sets=[*SAVES, "train.max_steps=10", "export.after_evaluation=true"], environment=environment, expect=74)
        self.assertEqual(os.listdir(run.folder / "saved_models"), [])  # model.pt was written
        (run.folder / "saved_models/.9.new.tmp").mkdir()
        (run.folder / "saved_models/.9.new.tmp/model.pt.tmp").write_text("of an export that was killed")
        self.train(1, sets=[*SAVES, "train.max_steps=10"])
        self.assertEqual(os.listdir(run.folder / "saved_models"), [])


class Refused(LockstepTest):
    def check(self, *sets, code=78):
        return self.tool("check", "configs/digits.yaml", *[part for one in sets for part in ("--set", one)], expect=code)

    def test_keys_that_do_not_go_together(self):
        self.assertIn("asks for 3 batches of 256 samples (eval.batch_size), and data.eval has 359 samples, which are 2",
                      self.check("eval.eval_freq=3"))
        self.assertIn("another name", self.check("eval.eval_freq=1", "eval.eval_batches=1"))
        self.assertIn("needs 'eval.on_save: true'", self.check("eval.strict_restore_on_switch=true"))
        self.assertIn("'data.eval', which is missing", self.check("eval.on_save=true", "data.eval=null"))
        self.assertIn("'checkpoint: off' writes none", self.check("eval.on_save=true", "checkpoint=off"))
        self.assertIn("'checkpoint: off' writes none", self.check("export.at_end=true", "checkpoint=off"))
        self.assertIn("'checkpoint.save_at_end' is false", self.check("export.at_end=true", "checkpoint.save_at_end=false"))
        self.assertIn("without 'export.after_evaluation: true'", self.check("export.best=true"))
        self.assertIn("would keep no export", self.check("export={at_end: true, keep: 0}"))

    def test_a_residual_network_is_published(self):
        run = self.train(1, sets=["model={type: resnet18, stem: cifar}", "export.at_end=true", "recipe=null", "train.max_steps=3"])
        self.assertEqual(os.listdir(run.folder / "saved_models"), ["3"])


class Documents(LockstepTest):
    def block(self, page, language, holding):
        text = (SOURCE / "docs" / page).read_text()
        return next(block for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) if holding in block)

    def test_the_examples_run(self):
        require_torch()
        config = self.folder / "judged.yaml"
        config.write_text(self.block("evaluation.md", "yaml", "on_save"))
        run = self.train(2, config=config)
        self.assertEqual(evaluated_steps(run), [20, 40, 60, 80, 92])
        self.assertEqual(sizes_told(run), {300})
        self.tool("eval", config, "--set", f"run.project_dir={run.folder}")
        self.assertTrue((run.folder / "eval/step-92.json").exists())
        self.tool("check", config, "--set", self.block("export.md", "yaml", "keep").replace("export: ", "export=").strip())
        program = ("import sys; sys.path.insert(0, sys.argv[1])\nfrom cpu_torch import torch\n" +
                   self.block("export.md", "python", "saved_models") + "print(tuple(outputs.shape))\n")
        done = subprocess.run([PYTHON, "-c", program, SOURCE / "tests/support"], cwd=run.folder, capture_output=True, text=True, timeout=100)
        self.assertEqual(done.stdout.strip(), "(1, 10)", done.stderr)


if __name__ == "__main__":
    unittest.main()
