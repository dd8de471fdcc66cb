"""Forbidden outcomes: hangs when ranks differ, files left by a refused run, misleading results."""
import os
import socket
import subprocess
import unittest

from harness import DIGITS, LOCKSTEPD, MPIRUN, SOURCE, LockstepTest, metric
from counts import counted
from soak import rounds

PRUNE_UNTIL_THE_END = """version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.1, final_sparsity: 0.6, start_epoch: 0, end_epoch: 2, update_frequency: 0.5}
"""
ANOTHER_RECIPE = ["--accept-recipe-change"]


class Robust(LockstepTest):
    def after_5_steps(self):
        return self.copy_of_shared("5_steps", 2, sets=["train.max_steps=5"])

    def test_settings_that_differ_between_ranks_never_hang(self):
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        one = ["-n", "1", LOCKSTEPD, "--config", DIGITS, "--set", f"run.project_dir={self.folder}/run"]
        for extra in counted("settings that differ between ranks refused", ("run.expect_world_size=5", "run.device=cuda", "train.max_steps=3")):
            done = subprocess.run(["mpirun", "--oversubscribe", *map(str, one), "--set", extra, ":", *map(str, one)],
                                  capture_output=True, text=True, timeout=60, cwd=SOURCE, env=environment)
            self.assertEqual(done.returncode, 76, done.stderr)
            self.assertIn(extra, done.stderr)

    def test_the_script_that_starts_ranks_tidies_up_and_looks_for_no_card_on_one_host(self):
        """Empty folders of ended starts are removed, those of running ones remain."""
        def started(**more):
            environment = {name: value for name, value in os.environ.items() if name != "HWLOC_COMPONENTS"}
            done = subprocess.run([MPIRUN, "1", "sh", "-c", "echo ${HWLOC_COMPONENTS-unset}"], capture_output=True, text=True, timeout=60,
                                  env={**environment, "TMPDIR": str(self.folder), **more})
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout.strip()
        folders = self.folder / f"lockstep-mpi.{os.geteuid()}"
        gone = [folders / str((1 << 22) + number) for number in range(3)]  # above every process number
        for folder in (*gone, folders / str(os.getpid())):
            folder.mkdir(parents=True)
        (gone[0] / "left").touch()
        self.assertEqual(started(), "-linuxio,-pci")
        self.assertEqual([folder.exists() for folder in (*gone, folders / str(os.getpid()))], [True, False, False, True])
        self.assertEqual(started(HWLOC_COMPONENTS="-pci"), "-pci")
        self.assertEqual(started(LOCKSTEP_MPIRUN_ARGS="--host localhost"), "unset")

    def test_a_rank_that_does_not_come_up_ends_the_start(self):
        command = [MPIRUN, "1", LOCKSTEPD, "--init-timeout", "2", "--config", DIGITS, "--set", "metrics.listen=off", ":", "-n", "1", "sleep", "60"]
        ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=50)
        self.assertEqual(ended.returncode, 79, ended.stderr)
        self.assertRegex(ended.stderr, rf"process \d+ on {socket.gethostname()} has waited 2 s for MPI to start")

    def test_a_refused_run_leaves_no_trace(self):
        unknown_layer = self.recipe(PRUNE_UNTIL_THE_END.replace("__ALL__", "[blocks.9.conv]"))
        for sets, code in counted("refused runs left no trace", (([unknown_layer], 78), (["data.train.path=/nonexistent.csv"], 66),
                           (["metrics.listen='no.such.host.invalid:0'"], 78), (["model={type: mlp, layers: [3, 10]}"], 78),
                           (["data.eval={type: random, shape: [5], classes: 3}"], 78))):
            run = self.start(2, sets=sets).wait()
            self.assertEqual(run.code, code, run.log)
            self.assertFalse(run.folder.exists(), f"{sets}: {run.log}")
        run = self.start(2, arguments=["--resume", "/nonexistent/model.ckpt-3"]).wait()
        self.assertEqual(run.code, 66, run.log)
        self.assertFalse(run.folder.exists())

    def test_the_closing_sparsity_is_in_the_last_save(self):
        sets = [self.recipe(PRUNE_UNTIL_THE_END), "checkpoint.save_checkpoints_steps=46"]  # 46 steps are 2 epochs
        run = self.train(2, sets=sets)
        self.assertEqual(run.summary()["steps"], 46)
        self.assertAlmostEqual(run.summary()["sparsity"], 0.6, places=3)
        again = self.train(2, sets=sets)
        self.assertEqual(again.summary()["parameters_sha256"], run.summary()["parameters_sha256"])
        self.assertAlmostEqual(again.summary()["sparsity"], 0.6, places=3)

    def test_a_save_due_at_the_last_step_is_made_without_save_at_end(self):
        sets = ["train.max_steps=20", "checkpoint.save_at_end=false"]
        run = self.train(2, run="due", sets=[*sets, "checkpoint.save_checkpoints_steps=20"])
        self.assertTrue(run.summary()["checkpoint"].endswith("model.ckpt-20"))
        run = self.train(2, run="not_due", sets=[*sets, "checkpoint.save_checkpoints_steps=30"])
        self.assertEqual(run.summary()["checkpoint"], "")

    def test_a_final_save_that_fails_is_no_success(self):
        (self.folder / "run/checkpoints/model.ckpt-5.data-00001-of-00002.tmp/in the way").mkdir(parents=True)
        run = self.train(2, sets=["train.max_steps=5"], expect=74)
        self.assertEqual(run.summary()["exit_reason"], "not_saved")
        self.assertEqual(run.summary()["exit_code"], 74)

    def test_a_folder_that_cannot_hold_saves_is_refused_before_the_first_step(self):
        (self.folder / "run").mkdir()
        (self.folder / "run/checkpoints").write_text("in the way")
        run = self.train(2, sets=["train.max_steps=5"], expect=73)
        self.assertIn("run/checkpoints: cannot create the folder", run.log)
        self.assertFalse((run.folder / "summary.json").exists())

    def test_a_folder_takes_one_run_at_a_time(self):
        first = self.start(2, config=SOURCE / "tests/integration/programs/endless.yaml")
        first.hold()
        second = self.start(2, config=SOURCE / "tests/integration/programs/endless.yaml").wait()
        self.assertEqual(second.code, 73, second.log)
        self.assertRegex(second.log, r"is in use by another run \(pid \d+ on \S+ since [-\d: ]+ UTC, last heartbeat [-\d: ]+ UTC\)")
        first.process.send_signal(10)
        self.assertEqual(first.wait().code, 75, first.log)

    def test_saves_under_another_prefix_are_not_passed_by(self):
        self.after_5_steps()
        run = self.train(2, sets=["train.max_steps=5", "checkpoint.prefix=other"], expect=78)
        self.assertIn("model.ckpt-5", run.log)

    def test_going_back_to_an_older_save_needs_the_newer_ones_gone(self):
        sets = ["train.max_steps=30", "checkpoint.save_checkpoints_steps=10"]
        first = self.train(2, sets=sets)
        older = first.folder / "checkpoints" / "model.ckpt-10"
        refused = self.train(2, sets=sets, arguments=["--resume", older], expect=78)
        self.assertIn("model.ckpt-30", refused.log)
        newest = first.folder / "checkpoints" / "model.ckpt-30"
        self.train(2, sets=sets, arguments=["--resume", newest])

    def test_a_prefix_that_names_no_save_is_missing_input(self):
        first = self.after_5_steps()
        run = self.train(2, sets=["train.max_steps=5"], arguments=["--resume", first.folder / "checkpoints/model.ckpt-6"], expect=66)
        self.assertIn("model.ckpt-6", run.log)

    def test_a_run_from_another_folders_last_save_keeps_one_of_its_own(self):
        first = self.after_5_steps()
        other = self.train(2, run="other", sets=["train.max_steps=5"], arguments=["--resume", first.folder / "checkpoints/model.ckpt-5"])
        self.assertTrue((other.folder / "checkpoints/model.ckpt-5.index").exists())
        self.assertEqual(other.summary()["parameters_sha256"], first.summary()["parameters_sha256"])

    def test_a_start_beside_a_run_that_is_ending_goes_on_from_its_last_save(self):
        first = self.start_faulty("sleep", rank=0, step=29, sets=["train.max_steps=30"])
        first.rank_pids()
        second = self.start(2, sets=["train.max_steps=40"])  # waits for the folder, then looks for saves
        self.assertEqual(first.wait().code, 0, first.log)
        second.wait()
        self.assertEqual(second.code, 0, second.log)
        self.assertEqual(second.summary()["resumed_from_step"], 30)

    def test_masks_of_a_damaged_save_do_not_reach_the_older_one(self):
        plain = self.recipe("version: 1.0.0\nmodifiers: []\n")
        self.train(2, sets=[plain, "train.max_steps=10"])
        run = self.train(2, sets=[self.recipe(PRUNE_UNTIL_THE_END), "train.max_steps=40"], arguments=ANOTHER_RECIPE)
        for shard in run.folder.glob("checkpoints/model.ckpt-40.data-*"):
            data = bytearray(shard.read_bytes())
            at = data.find(b"optimizer.type=momentum")  # among the settings, which are restored after the masks
            if at >= 0:
                data[at] ^= 1
                shard.write_bytes(data)
        run = self.train(2, sets=[self.recipe(PRUNE_UNTIL_THE_END), "train.max_steps=11"],
                         arguments=ANOTHER_RECIPE)  # prunes next before step 12
        self.assertEqual(run.summary()["resumed_from_step"], 10)
        self.assertEqual(run.summary()["sparsity"], 0)

    def test_a_changed_recipe_and_optimizer_go_on_and_say_so(self):
        self.train(2, sets=[self.recipe("version: 1.0.0\nmodifiers: []\n"), "train.max_steps=23"])
        run = self.train(2, sets=[self.recipe(PRUNE_UNTIL_THE_END), "optimizer={type: sgd, learning_rate: 0.05}"],
                         arguments=ANOTHER_RECIPE)
        self.assertIn("the recipe changed: total steps: no limit in the checkpoint, 46 now", run.log)
        self.assertIn("optimizer.type was momentum, is sgd", run.log)
        self.assertIn("value(s) that this run does not use", run.log)
        self.assertAlmostEqual(run.summary()["sparsity"], 0.6, places=3)

    def test_a_closing_sparsity_is_reported(self):
        for leave in rounds(["false"], ["true"]):
            text = PRUNE_UNTIL_THE_END.replace("0.5}", "0.5, leave_enabled: %s}" % leave)
            run = self.train(2, run=f"leave_{leave}", sets=[self.recipe(text, f"{leave}.yaml")])
            self.assertAlmostEqual(run.summary()["sparsity"], 0.6, places=3)
            page = run.last_page(0)
            self.assertEqual(metric(page, "lockstep_target_sparsity_ratio"), 0.6)
            self.assertAlmostEqual(metric(page, "lockstep_sparsity_ratio"), 0.6, places=3)
            self.assertEqual(metric(page, "lockstep_epochs_planned"), 2)
            again = self.train(2, run=f"leave_{leave}", sets=[self.recipe(text, f"{leave}.yaml")])
            self.assertNotIn("saved step", again.log)  # nothing changed, so nothing is written again
            self.assertEqual(again.summary()["parameters_sha256"], run.summary()["parameters_sha256"])

    def test_a_failed_run_leaves_no_other_runs_summary(self):
        self.after_5_steps()
        run = self.train(2, sets=["train.max_steps=200", "optimizer.learning_rate=1e30", "recipe=" + str(self.folder / "none.yaml")], expect=78)
        self.assertEqual(run.summary()["exit_reason"], "finished")  # refused before it began: nothing was touched
        run = self.train(2, sets=["train.max_steps=200", self.recipe("version: 1.0.0\nmodifiers: []\n"),
                                  "optimizer.learning_rate=1e30"], arguments=ANOTHER_RECIPE, expect=80)
        self.assertEqual(run.summary()["exit_reason"], "failed")
        self.assertEqual(run.summary()["exit_code"], 80)
        self.assertIn("not finite", run.summary()["error"])

    def test_weights_that_overflow_are_not_saved_and_end_the_run(self):
        """A finite gradient, an update that is not; the run has too few steps left to skip ten in a row."""
        for steps in counted("runs whose weights overflow ended without a save", (1, 3)):
            run = self.train(2, run=f"overflow{steps}", expect=80,
                             sets=[f"train.max_steps={steps}", "optimizer={type: sgd, learning_rate: 1.0e+39}", "recipe=null"])
            self.assertRegex(run.log, r"\[train\] weights of \S+ are not finite after step \d .*\(there is none\); lower the learning rate")
            self.assertEqual((run.summary()["exit_reason"], run.summary()["exit_code"]), ("failed", 80))
            self.assertFalse(list(run.folder.glob("checkpoints/*.index")))

    def test_tool_options_that_do_not_fit_are_refused(self):
        recipe = SOURCE / "configs/recipes/digits_prune.yaml"
        self.tool("plan", recipe, "--steps-per-epoch", 23, "--set", "a.b=1", expect=64)
        self.tool("plan", DIGITS, "--steps-per-epoch", 5, expect=64)
        self.tool("plan", recipe, "--steps-per-epoch", 2000000000, expect=64)
        self.tool("ckpt", "show", self.folder, "--values", expect=64)
        looped = self.folder / "looped.yaml"
        looped.write_text("run: &a [*a]\n")
        self.assertIn("refers to itself", self.tool("check", looped, expect=78))
        looped.write_text("hello\n")
        self.assertIn("must be a map", self.tool("check", looped, "--set", "run.name=x", expect=78))


if __name__ == "__main__":
    unittest.main()
