"""`lockstep launch slurm` on a real Slurm with four fake nodes: to the end, requeued, cancelled, refused."""
import json
import os
import pathlib
import re
import signal
import subprocess
import unittest
import unittest.mock

import slurm_cluster
from harness import BUILD, DIGITS, ENDLESS, PRUNE_EARLY, SOURCE, Run, wait_for
from running_page import PageTest, blocks
from counts import count, counted
from soak import only_in_soak
from supervised import processes_of

MOONS = BUILD / "examples/estimator_plugin/libmoons.so"
MOONS_RUN = SOURCE / "examples/estimator_plugin/run.yaml"
STEPS = 240
SAVES = [PRUNE_EARLY, "checkpoint.save_checkpoints_steps=20", f"train.max_steps={STEPS}", "eval.every_epochs=0"]


class Script(PageTest):
    """The script alone, without a cluster."""

    def render(self, *arguments, config=DIGITS, expect=0):
        return self.tool("launch", "slurm", config, *arguments, expect=expect)

    def environment_of_srun(self):
        return dict(line.split("=", 1) for line in (self.folder / "environment").read_text().splitlines() if "=" in line)

    def words_of_srun(self, script, **variables):
        """Arguments of srun where this script runs."""
        stand_in = self.folder / "srun"
        stand_in.write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" >{self.folder}/words\nenv >{self.folder}/environment\n')
        stand_in.chmod(0o755)
        ran = subprocess.run(["bash", script], capture_output=True, text=True, cwd=self.folder, env={**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", **variables})
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return (self.folder / "words").read_text().split("\0")[:-1]

    def test_an_estimator_its_flags_and_settings_reach_the_ranks(self):
        script = self.folder / "job.sh"
        self.render("--set", "train.max_steps=4", "--estimator", MOONS, "-o", script, "--", "--width", "3", "--noise='0.2'", config=MOONS_RUN)
        words = self.words_of_srun(script)
        self.assertEqual(words[-8:], ["--set", "train.max_steps=4", "--estimator", str(MOONS), "--", "--width", "3", "--noise='0.2'"])
        self.assertIn("unknown flag --widht (did you mean '--width'?)", self.render("--estimator", MOONS, "--", "--widht", "3", config=MOONS_RUN, expect=64))

    def test_the_ranks_know_how_many_they_are_unless_the_user_says(self):
        script = self.folder / "job.sh"
        self.render("--nodes", 4, "--ranks-per-node", 2, "-o", script)
        sets = [word for word in self.words_of_srun(script) if word.startswith("run.")]
        self.assertEqual(sets, ["run.expect_world_size=8", "run.expect_nodes=4"])
        config = self.folder / "own.yaml"
        config.write_text(MOONS_RUN.read_text().replace("run: {name: moons}", "run: {name: moons, expect_nodes: 1}"))
        self.render("--nodes", 4, "--set", "run.expect_world_size=3", "--estimator", MOONS, "-o", script, config=config)
        sets = [word for word in self.words_of_srun(script) if word.startswith("run.")]
        self.assertEqual(sets, ["run.expect_world_size=3"])
        with unittest.mock.patch.dict(os.environ, LOCKSTEP_RUN_EXPECT_NODES="2"):
            self.render("--nodes", 4, "-o", script)
        self.assertNotIn("run.expect_nodes=4", self.words_of_srun(script))

    def test_the_ranks_know_when_slurm_kills_them_unless_the_user_says(self):
        script, scontrol = self.folder / "job.sh", self.folder / "scontrol"
        stated = "LOCKSTEP_PREEMPTION_GRACE_SECONDS"
        for answer, wanted in (("echo 'KillTime = 7 sec'; echo 'KillWait                = 45 sec'", "45"), ("exit 1", "30")):
            scontrol.write_text(f"#!/bin/sh\n{answer}\n")
            scontrol.chmod(0o755)
            self.render("-o", script)
            self.words_of_srun(script)
            self.assertEqual(self.environment_of_srun().get(stated), wanted)
        self.words_of_srun(script, **{stated: "3"})
        self.assertEqual(self.environment_of_srun()[stated], "3")
        self.render("--set", "preemption.grace_seconds=90", "-o", script)
        self.words_of_srun(script)
        self.assertNotIn(stated, self.environment_of_srun())

    def test_what_is_no_job_is_refused_with_what_to_write(self):
        for arguments, why in counted("command lines that are no job refused", ((("--time", "foo"), "--time 'foo' is not a time: write minutes as 90"), (("--time", "1", "--grace", "300"), "--grace 300 s must be shorter than the limit --time 1"),
                               (("--time", "1"), "--grace 300 s"), (("--mpi", "pmix; true"), "--mpi 'pmix; true'"), (("--sbatch", "partition=long"), "--sbatch 'partition=long'"))):
            self.assertIn(why, self.render(*arguments, expect=64))

    def test_the_ranks_code_is_kept_where_the_warning_takes_long(self):
        """The shell's own code of a `wait` that a signal ended is 138."""
        script = self.folder / "job.sh"
        self.render("-o", script)
        for name, text in (("srun", f'trap "exit 75" USR1; echo $$ >{self.folder}/step; while :; do sleep 0.05; done'),
                           ("scancel", f"kill -USR1 $(cat {self.folder}/step); sleep 1"), ("squeue", "echo RUNNING"), ("scontrol", f'echo "$@" >>{self.folder}/said')):
            (self.folder / name).write_text(f"#!/bin/bash\n{text}\n")
            (self.folder / name).chmod(0o755)
        job = subprocess.Popen(["bash", script], cwd=self.folder, env={**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"})
        wait_for((self.folder / "step").exists, "the step")
        job.send_signal(signal.SIGUSR1)
        self.assertEqual(job.wait(timeout=30), 75)
        self.assertIn("requeue 7", (self.folder / "said").read_text())

    def test_names_and_paths_with_blanks_and_shell_characters(self):
        folder = self.folder / "a 'b $(touch x)"
        folder.mkdir()
        config = folder / "run.yaml"
        config.write_text((SOURCE / "configs/digits.yaml").read_text().replace("recipe: recipes/digits_prune.yaml", "train: {max_steps: 4}"))
        script = folder / "job.sh"
        said = self.render("--set", "run.name=a b; touch y", "-o", script, config=config)
        self.assertIn("start it with: sbatch '", said)
        text = script.read_text()
        self.assertIn("#SBATCH --job-name='a b; touch y'\n", text)
        self.assertIn("#SBATCH --output=a_b__touch_y-%j.log\n", text)
        words = self.words_of_srun(script)
        self.assertEqual(words[words.index("--config") + 1], str(config))
        self.assertEqual(words[-2:], ["--set", "run.name=a b; touch y"])
        self.assertEqual([name for name in ("x", "y") if (self.folder / name).exists()], [])


class Slurm(PageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        slurm_cluster.require()
        cls.cluster = slurm_cluster.Cluster()
        cls.addClassCleanup(cls.cluster.close)

    def script(self, run="run", config=DIGITS, nodes=4, sets=(), arguments=(), flags=(), minutes=10):
        path = self.folder / f"{run}.sh"
        words = ["launch", "slurm", config, "--nodes", nodes, "--time", minutes, "--out", path, *arguments]
        for one in (f"run.project_dir={self.folder / run}", "metrics.listen='127.0.0.1:0'", "run.threads=1", *sets):
            words += ["--set", one]
        self.assertIn(f"sbatch {path}", self.tool(*words, *flags))
        return path

    def submit(self, **kwargs):
        job = self.cluster.submit(self.script(**kwargs))
        return job, Run(None, self.folder / kwargs.get("run", "run"))

    def log_of(self, job):
        return "".join(path.read_text() for path in pathlib.Path(self.cluster.base).glob(f"*-{job}.log"))

    def assert_done(self, job):
        self.assertEqual(self.cluster.wait_for_end(job), ("COMPLETED", 0), self.log_of(job))

    def unbroken(self):
        return self.shared("unbroken", 4, sets=SAVES)

    def test_four_nodes_to_the_end(self):
        job, run = self.submit(sets=SAVES)
        self.assert_done(job)
        self.assertEqual(run.summary()["world_size"], 4)
        count("ranks on nodes of their own to the end", run.summary()["world_size"])
        self.assertEqual(run.summary()["parameters_sha256"], self.unbroken().summary()["parameters_sha256"])

    def test_told_before_the_time_limit_it_saves_queues_again_and_ends_bit_for_bit(self):
        """Slurm's warning before the limit is SIGUSR1 to the batch shell; here it is sent without waiting for a limit of minutes."""
        job, run = self.submit(sets=SAVES)
        run.wait_for_commit(40)
        self.cluster.command("scancel", "--batch", "--signal=USR1", job)
        self.cluster.wait_for(lambda: self.cluster.fact(job, "Restarts") == "1", "the requeue")
        self.assert_done(job)
        log = self.log_of(job)
        self.assertIn("the ranks ended with 75: queued again", log)
        self.assertEqual(run.summary()["parameters_sha256"], self.unbroken().summary()["parameters_sha256"])
        self.assertEqual(run.steps(), self.unbroken().steps())
        count("requeues went on to the end, bit for bit")
        self.assertIn(f"lockstep_restarts {self.cluster.fact(job, 'Restarts')}", run.last_page(0))  # more than 1 where Open MPI crashed at a start

    @only_in_soak("test_told_before_the_time_limit_it_saves_queues_again_and_ends_bit_for_bit")
    def test_slurms_own_time_limit(self):
        """Held in a pause until Slurm warns of its limit, it saves, queues again and continues to the end, bit for bit."""
        job, run = self.submit(sets=SAVES, minutes=2, arguments=["--grace", "20"])
        held = run.hold()["step"]
        self.cluster.wait_for(lambda: "the ranks ended with 75: queued again" in self.log_of(job), "the warning, and what follows it", timeout_s=240)
        self.assertEqual(run.summary()["steps"], held + 1, "the stop ended the pause")
        self.cluster.wait_for(lambda: self.cluster.fact(job, "JobState") in ("PENDING", "RUNNING", "CONFIGURING"), "the requeue")
        self.assert_done(job)
        self.assertEqual(run.summary()["resumed_from_step"], held + 1)
        self.assertEqual(run.summary()["parameters_sha256"], self.unbroken().summary()["parameters_sha256"])
        self.assertEqual(run.steps(), self.unbroken().steps())
        count("time limits of Slurm's own went on to the end, bit for bit")

    def started_ranks(self, **kwargs):
        """Job, run and process numbers by rank. Open MPI crashes at a start now and then; another job is submitted then."""
        for attempt in range(3):
            job, run = self.submit(run=f"run{attempt}", **kwargs)
            try:
                return job, run, run.rank_pids()
            except AssertionError as late:
                logs = "".join(path.read_text()[-1500:] for path in sorted((self.cluster.base / "log").glob("*.log")))
                why = f"{late}: {self.cluster.command('scontrol', 'show', 'job', job)}\n{self.log_of(job)}\n{logs}"
                if self.cluster.fact(job, "JobState") != "FAILED":
                    raise AssertionError(why) from late
                print(why)
        raise AssertionError(why)

    def test_a_killed_rank_queues_the_job_again_but_not_for_ever(self):
        job, run, pids = self.started_ranks(config=ENDLESS, arguments=["--max-requeues", "0"])
        subprocess.run(["kill", "-9", str(pids[2])], check=True)
        state, code = self.cluster.wait_for_end(job)
        self.assertEqual(state, "FAILED")
        self.assertIn(code, (137, 69, 79), self.log_of(job))
        self.assertIn("after 0 requeues: not queued again", self.log_of(job))
        count("killed ranks end a job without requeues left")
        wait_for(lambda: not processes_of(run.folder), "the ranks to end", timeout_s=20)

    def test_a_lost_node_queues_the_job_again(self):
        job, run = self.submit(sets=SAVES, nodes=2)
        run.wait_for_commit(40)
        node = self.cluster.command("squeue", "-h", "-j", job, "-o", "%N").replace("[", "").split("-")[0].split(",")[0]
        self.cluster.command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        self.cluster.wait_for(lambda: self.cluster.fact(job, "Restarts") == "1", "the requeue")
        self.cluster.bring_back(node)
        self.assert_done(job)
        self.assertEqual(run.summary()["steps"], STEPS)
        self.assertGreaterEqual(run.summary()["resumed_from_step"], 40)
        count("lost nodes queued the job again")

    def test_scancel_lets_the_ranks_save_where_that_fits_and_ends_them(self):
        job, run = self.submit(config=ENDLESS)
        run.rank_pids()
        run.wait_for_step(1)
        self.cluster.command("scancel", job)
        wait_for(lambda: (run.folder / "summary.json").exists(), "the ranks to stop")
        self.assertEqual(run.summary()["exit_reason"], "stopped")
        state, _ = self.cluster.wait_for_end(job)
        self.assertEqual(state, "CANCELLED")
        count("cancelled jobs saved and left nothing")
        wait_for(lambda: not processes_of(run.folder), "the ranks to end", timeout_s=30)

    def test_a_name_with_blanks_is_the_jobs(self):
        name = "a 'b' \\c $d #e"
        job, run = self.submit(nodes=1, sets=["train.max_steps=2", "recipe=null", f"run.name={json.dumps(name)}"])
        self.assertEqual(self.cluster.command("squeue", "-h", "-t", "all", "-j", job, "-o", "%j"), name)
        self.assertEqual(self.cluster.wait_for_end(job), ("COMPLETED", 0), self.log_of(job))
        self.assertIn("a__b___c__d__e-", str(list(self.cluster.base.glob("*.log"))))
        self.assertEqual(run.summary()["steps"], 2)

    def test_an_estimator_with_flags_is_trained(self):
        job, run = self.submit(config=MOONS_RUN, nodes=2, sets=["train.max_steps=4"], arguments=["--estimator", MOONS], flags=["--", "--width", "3"])
        self.assert_done(job)
        self.assertIn("Moons with 13 parameters", self.log_of(job))  # 2 x 3 + 3 + 3 + 1
        self.assertEqual(run.summary()["steps"], 4)

    def test_exit_codes_pass(self):
        for code, sets in counted("exit codes are the job's", ((66, ["data.train={type: npy, path: no-such.npy}", "data.eval=null"]), (78, ["run.expect_world_size=3"]))):
            job, _ = self.submit(run=f"code{code}", nodes=2, sets=sets)
            self.assertEqual(self.cluster.wait_for_end(job), ("FAILED", code), self.log_of(job))

    def job_of_the_page(self):
        self.environment.update(SLURM_CONF=self.cluster.environment["SLURM_CONF"], LOCKSTEP_METRICS_LISTEN="127.0.0.1:0")
        submitted = self.shell(blocks("slurm")[0])
        return re.search(r"Submitted batch job (\d+)", submitted)[1]

    def test_the_page_on_running(self):
        """The page's commands, in its order."""
        self.environment.update(LOCKSTEP_TRAIN_MAX_STEPS="100")
        job = self.job_of_the_page()
        self.assertEqual(self.cluster.wait_for_end(job), ("COMPLETED", 0), self.log_of_the_page())
        self.shell(blocks("slurm, ended")[0])
        self.assertEqual(Run(None, self.folder / "runs/digits").summary()["world_size"], 4)

    def test_the_page_on_stopping(self):
        self.environment.update(LOCKSTEP_TRAIN_MAX_STEPS="1000000", LOCKSTEP_RECIPE="null")
        job = self.job_of_the_page()
        run = Run(None, self.folder / "runs/digits")
        run.wait_for_step(1)
        save, cancel = blocks("slurm, running")[0].splitlines()
        self.shell(save)
        self.cluster.wait_for(lambda: self.cluster.fact(job, "Restarts") == "1", "the requeue")
        self.assertIn("the ranks ended with 75: queued again", self.log_of_the_page())  # the next start removes summary.json
        self.shell(cancel)
        self.assertEqual(self.cluster.wait_for_end(job)[0], "CANCELLED")
        wait_for(lambda: not processes_of(self.folder), "the ranks to end", timeout_s=30)

    def log_of_the_page(self):
        return "".join(path.read_text() for path in self.folder.glob("digits-*.log"))


if __name__ == "__main__":
    unittest.main()
