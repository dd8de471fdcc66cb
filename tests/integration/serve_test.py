"""`lockstepd serve`: jobs of a queue one after another in the same ranks, each as a run of its own would be."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest
import urllib.request

from counts import counted
from harness import ANSWER_S, DIGITS, ENDLESS, FAULTY_RANK, LOCKSTEP, LOCKSTEPD, MPIRUN, PRUNE_EARLY, SOURCE, LockstepTest, Run, metric, wait_for
import soak
from supervised import processes_of

PLAIN = ["run.threads=1", "metrics.listen='127.0.0.1:0'", "eval.every_epochs=0"]
ONE = [*PLAIN, PRUNE_EARLY, "train.max_steps=40", "checkpoint.save_checkpoints_steps=20"]
OTHER = [*PLAIN, "recipe=null", "run.seed=5", "optimizer={type: adam, learning_rate: 0.01, ema_decay: 0.9}", "train.max_steps=24",
         "train.precision=bf16", "run.deterministic=true"]
RARE = [*PLAIN, "checkpoint.save_checkpoints_steps=1000000"]
TINY = [*PLAIN, "recipe=null", "train.max_steps=4"]


class ServeTest(LockstepTest):
    def setUp(self):
        super().setUp()
        self.queue = self.folder / "queue"
        self.addCleanup(self._kill_servers)

    def _kill_servers(self):
        for pid in processes_of(self.queue):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def serve(self, *arguments, ranks=2, program=LOCKSTEPD, environment=None):
        command = [MPIRUN, ranks, program, "serve", "--queue", self.queue, "--listen", "127.0.0.1:0", *arguments]
        return self.begin(command, environment)

    def begin(self, command, environment=None):
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                                   cwd=SOURCE, env={**os.environ, **(environment or {})})
        self.started.append(process)
        return Run(process, self.queue)

    def client(self, *words, expect=0, cwd=SOURCE):
        done = subprocess.run([LOCKSTEP, *map(str, words)], capture_output=True, text=True, timeout=ANSWER_S, cwd=cwd, check=False,
                              env={**os.environ, "LOCKSTEP_QUEUE": str(self.queue)})
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def submit(self, config=DIGITS, sets=(), expect=0, **kwargs):
        said = self.client("submit", config, *(word for one in sets for word in ("--set", one)), expect=expect, **kwargs)
        return int(said.split()[0]) if expect == 0 else said  # what Python's start says comes behind it

    def wait(self, job, expect=0):
        return self.client("wait", job, "--timeout", ANSWER_S, expect=expect)

    def run_of(self, job):
        """The job's own folder, as that of a plain run."""
        return Run(None, self.queue / f"jobs/{job}/run")

    def result(self, job):
        return json.loads((self.queue / f"jobs/{job}/result.json").read_text())

    def states(self):
        return {job["id"]: job["state"] for job in json.loads(self.client("ps", "--json"))}

    def wait_for_state(self, job, state):
        wait_for(lambda: self.states().get(job) == state, f"job {job} to be {state}")

    def ended(self, server, expect):
        server.wait()
        self.assertEqual(server.code, expect, server.log)
        return server


class Serve(ServeTest):
    def test_each_job_is_as_a_run_of_its_own_in_either_order(self):
        """One, other, one again: what a job leaves in its process would show in the next one's weights, steps or counters."""
        plain = {"one": self.train(run="one", sets=ONE), "other": self.train(run="other", sets=OTHER)}
        order = ["one", "other", "one", "other", "other"]
        jobs = [self.submit(sets={"one": ONE, "other": OTHER}[name]) for name in order]
        self.assertEqual(jobs, [1, 2, 3, 4, 5])
        server = self.ended(self.serve("--until-empty"), 0)
        for job, name in zip(jobs, order):
            run, unlike = self.run_of(job), plain[name]
            self.assertEqual(run.summary()["parameters_sha256"], unlike.summary()["parameters_sha256"], server.log)
            self.assertEqual(run.steps(), unlike.steps())
            for rank in (0, 1):
                for series in ("lockstep_steps_total", "lockstep_samples_total", "lockstep_log_messages_total", "lockstep_signals_total"):
                    labels = {"level": "warning"} if "log" in series else {}
                    self.assertEqual(metric(run.last_page(rank), series, **labels), metric(unlike.last_page(rank), series, **labels), (job, rank, series))
            self.assertEqual(len(list((run.folder / "train").glob("events.out.tfevents.*"))), len(list((unlike.folder / "train").glob("events.out.tfevents.*"))))
        self.assertNotEqual(plain["one"].summary()["parameters_sha256"], plain["other"].summary()["parameters_sha256"])
        print(f"\n{len(jobs)} jobs in one server, in the order {' '.join(order)}: weights, steps and counters of {len(plain)} plain runs")

    def test_a_server_that_waits_checks_what_is_submitted(self):
        """So lockstep need not load LibTorch: here it could not. Relative paths begin where it was submitted."""
        alone = self.folder / "bin/lockstep"
        alone.parent.mkdir()
        shutil.copy(LOCKSTEP, alone)
        (self.folder / "digits.yaml").write_text(DIGITS.read_text())
        words = [alone, "submit", "--queue", self.queue, "digits.yaml", *(word for one in [*TINY, "run.project_dir=own"] for word in ("--set", one))]

        def submitted(*more):
            done = subprocess.run([*map(str, words), *more], capture_output=True, text=True, timeout=ANSWER_S, cwd=self.folder, check=False)
            return done.returncode, done.stdout + done.stderr
        code, said = submitted()
        self.assertEqual(code, 69, "no server is there")
        self.assertIn("lockstep-tensors cannot be started", said)
        server = self.serve()
        wait_for((self.queue / "submitted").exists, "the server")
        for more, expected, text in counted("jobs checked by the server", (((), 0, "1\n"), (("--set", "optimizer.learning_rat=1"), 78, "did you mean 'optimizer.learning_rate'"),
                                                                          (("--set", "data.train.path=none.csv"), 66, "none.csv: there is no such file"), ((), 0, "2\n"))):
            code, said = submitted(*more)
            self.assertEqual((code, text in said), (expected, True), said)
            if expected == 0:
                self.wait(int(said))
        self.assertEqual(Run(None, self.folder / "own").summary()["steps"], 4)
        server.process.send_signal(signal.SIGINT)
        server.wait()
        self.assertFalse((self.queue / "submitted").exists())

    def test_a_failing_job_harms_no_other(self):
        unlike = self.train(run="unlike", sets=ONE)
        self.submit(sets=[*PLAIN, "data.train={type: npy, path: no-such.npy}", "data.eval=null"], expect=66)  # found by the check
        recipe, data, gone = self.folder / "recipe.yaml", self.folder / "digits.csv", self.folder / "gone"
        recipe.write_text("version: 1.0.0\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 2.0}\n")
        shutil.copy(SOURCE / "data/digits/digits.csv", data)
        gone.mkdir()
        jobs = [self.submit(sets=[*PLAIN, "run.expect_world_size=3"]), self.submit(sets=[*PLAIN, f"recipe={recipe}"]),
                self.submit(sets=[*TINY, f"data.train={{type: digits, path: {data}, split: train}}"]),
                self.submit(sets=[*PLAIN, "optimizer.learning_rate=1e30", "train.max_nonfinite_steps=2", "recipe=null", "train.max_steps=100"]),
                self.submit(sets=ONE, cwd=gone), self.submit(sets=ONE)]
        recipe.write_text("version: 1.0.0\nmodifiers: what\n")  # after they were checked
        data.write_bytes(data.read_bytes()[:5000])
        gone.rmdir()
        self.ended(self.serve("--until-empty"), 0)
        for job, code, text in zip(jobs, (78, 78, 65, 80, 66), ("run.expect_world_size is 3", "modifiers", "digits.csv:", "were not finite", "where the job was submitted")):
            self.assertIn(text, self.wait(job, code))
            self.assertIn(text, self.client("logs", job))
            self.assertEqual(self.states()[job], "failed")
        self.wait(jobs[-1])
        self.assertEqual(self.run_of(jobs[-1]).summary()["parameters_sha256"], unlike.summary()["parameters_sha256"])

    def test_cancel(self):
        server = self.serve()
        first, second, third = self.submit(ENDLESS, RARE), self.submit(ENDLESS, RARE), self.submit(sets=TINY)
        self.run_of(first).wait_for_step(2)
        self.assertIn(f"job {second} is cancelled", self.client("cancel", second))
        self.assertEqual(self.result(second)["state"], "cancelled")
        self.assertFalse((self.queue / f"jobs/{second}/run").exists())
        self.assertIn("saves and stops", self.client("cancel", first))
        self.assertIn("cancelled while it ran", self.wait(first, 75))
        self.assertEqual(self.run_of(first).summary()["exit_reason"], "stopped")
        self.assertTrue(list(self.run_of(first).folder.glob("checkpoints/*.index")))
        self.wait(third)
        for job in (first, second, third):
            self.assertIn(f"job {job} has ended already", self.client("cancel", job, expect=64))
        for words in (("cancel", 99), ("wait", 99), ("logs", 99)):
            self.assertIn("has no job 99", self.client(*words, expect=66))
        self.assertIn("cancelled before it began", self.wait(second, 75))
        self.assertIsNone(server.process.poll())

    def test_lockstep_ctl_stops_one_job_alone(self):
        self.serve()
        first, second = self.submit(ENDLESS, RARE), self.submit(sets=TINY)
        run = self.run_of(first)
        run.wait_for_step(2)
        run.ctl("stop")
        self.wait(second)
        self.assertEqual(self.result(first)["state"], "stopped")
        self.assertEqual(self.result(first)["exit_code"], 75)

    def test_signals_save_the_job_which_goes_on_with_the_next_server(self):
        sets = [*RARE, PRUNE_EARLY, "train.max_steps=200"]
        unbroken = self.train(run="unbroken", sets=sets)
        job = self.submit(sets=sets)
        last = self.submit(sets=TINY)
        steps = 0
        for one_rank, number in ((False, signal.SIGUSR1), (True, signal.SIGTERM)):
            server = self.serve()
            run = self.run_of(job)
            run.wait_for_step(steps + 5)
            target = run.rank_pids()[1] if one_rank else server.process.pid
            os.kill(target, number)
            self.ended(server, 75)
            self.assertEqual(self.states(), {job: "queued", last: "queued"})
            steps = run.summary()["steps"]
            self.assertLess(steps, 200)
        self.ended(self.serve("--until-empty"), 0)
        self.assertEqual(self.run_of(job).summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
        self.assertEqual(self.run_of(job).steps(), unbroken.steps())
        self.assertEqual(self.result(job)["tries"], 1)
        self.assertEqual(self.states(), {job: "done", last: "done"})

    def test_sigusr2_saves_and_concerns_the_running_job_alone(self):
        server = self.serve()
        first, second = self.submit(ENDLESS, RARE), self.submit(ENDLESS, RARE)
        self.run_of(first).wait_for_step(2)
        server.process.send_signal(signal.SIGUSR2)
        self.run_of(first).wait_for_commit(1)
        self.client("cancel", first)
        self.wait(first, 75)
        self.run_of(second).wait_for_step(20)
        self.assertEqual(list(self.run_of(second).folder.glob("checkpoints/*.index")), [])
        self.assertIsNone(server.process.poll())

    def test_a_killed_server_loses_nothing(self):
        sets = [*PLAIN, PRUNE_EARLY, "checkpoint.save_checkpoints_steps=20", "train.max_steps=200"]
        unbroken = self.train(run="unbroken", sets=sets)
        job, last = self.submit(sets=sets), self.submit(sets=TINY)
        for at_step in (20, 100):
            server = self.serve()
            self.run_of(job).wait_for_commit(at_step)
            for pid in processes_of(self.queue):
                os.kill(pid, signal.SIGKILL)
            server.wait()
            self.assertEqual(self.states(), {job: "running", last: "queued"})
        self.ended(self.serve("--until-empty"), 0)
        self.assertEqual(self.run_of(job).summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
        self.assertEqual(self.states(), {job: "done", last: "done"})
        print("\n2 kills of all processes: the job's weights are those of an unbroken run")

    def test_lost_ranks_are_a_restart_and_a_job_has_so_many_tries(self):
        """`lockstep serve` brings the ranks back; the job that always loses one is given up, the next one runs."""
        fault = {"LOCKSTEP_TEST_ACTION": "kill", "LOCKSTEP_TEST_RANK": "1", "LOCKSTEP_TEST_STEP": "5"}
        bad, good = self.submit(ENDLESS, RARE), self.submit(sets=TINY)
        server = self.begin([LOCKSTEP, "serve", "--queue", self.queue, "-n", 2, "--listen", "127.0.0.1:0", "--max-tries", 2, "--until-empty",
                             "--program", FAULTY_RANK], fault)
        self.ended(server, 0)
        self.assertEqual(self.states(), {bad: "failed", good: "done"})
        self.assertEqual(self.result(bad)["tries"], 2)
        self.assertIn(self.result(bad)["exit_code"], (69, 137))
        self.assertIn("the server ended 2 time(s) in a row while it ran", self.wait(bad, self.result(bad)["exit_code"]))
        self.assertEqual(len(re.findall(r"the ranks ended with \d+: restart", server.log)), 2, server.log)
        self.assertEqual(processes_of(self.queue), [])

    def test_a_job_that_fails_on_one_rank_alone_is_not_tried_again(self):
        fault = {"LOCKSTEP_TEST_ACTION": "throw", "LOCKSTEP_TEST_RANK": "1", "LOCKSTEP_TEST_STEP": "5"}
        bad, good = self.submit(ENDLESS, RARE), self.submit(sets=TINY)
        server = self.begin([LOCKSTEP, "serve", "--queue", self.queue, "-n", 2, "--listen", "127.0.0.1:0", "--until-empty", "--program", FAULTY_RANK], fault)
        self.ended(server, 0)
        self.assertEqual(self.states(), {bad: "failed", good: "done"})
        self.assertEqual((self.result(bad)["exit_code"], self.result(bad)["tries"]), (70, 1), server.log)
        self.assertIn("made to fail", self.wait(bad, 70))
        self.assertEqual(len(re.findall(r"the ranks ended with 70: restart 1 at once", server.log)), 1, server.log)

    def test_so_it_is_by_the_next_server_where_none_looks_after_them(self):
        fault = {"LOCKSTEP_TEST_ACTION": "throw", "LOCKSTEP_TEST_RANK": "1", "LOCKSTEP_TEST_STEP": "5"}
        bad, good = self.submit(ENDLESS, RARE), self.submit(sets=TINY)
        self.ended(self.serve("--until-empty", program=FAULTY_RANK, environment=fault), 70)
        self.assertEqual(self.states(), {bad: "running", good: "queued"})
        server = self.ended(self.serve("--until-empty"), 0)
        self.assertEqual(self.states(), {bad: "failed", good: "done"})
        self.assertEqual((self.result(bad)["exit_code"], self.result(bad)["tries"]), (70, 1), server.log)
        self.assertIn("made to fail", self.wait(bad, 70))

    def test_a_server_that_is_gone_is_said(self):
        """Before one was started, and after one was killed: its file says still that it runs."""
        job, other = self.submit(ENDLESS, RARE), self.submit(sets=TINY)
        self.assertIn("no server runs on", self.client("wait", job, "--timeout", 0.1, expect=69))
        self.assertIn(f"job {job} is queued: it has no log yet", self.client("logs", job))
        follow = subprocess.Popen([LOCKSTEP, "logs", "--queue", self.queue, str(other), "-f"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.started.append(follow)
        self.assertIn(f"job {other} waits until one is started (lockstep serve)", follow.stderr.readline())
        self.client("cancel", other)
        self.assertIn(f"job {other} is cancelled: it has no log", follow.communicate(timeout=ANSWER_S)[1])
        self.assertEqual(follow.returncode, 0)
        server = self.serve()
        self.run_of(job).wait_for_step(1)
        self.assertNotIn("no server", self.client("wait", job, "--timeout", 0.1, expect=69) + self.client("ps"))
        for pid in processes_of(self.queue):
            os.kill(pid, signal.SIGKILL)
        server.wait()
        self.assertTrue((self.queue / "server.json").exists(), "left behind")
        self.assertIn("no server runs on", self.client("wait", job, "--timeout", 0.1, expect=69))
        self.assertRegex(self.client("ps"), r"no server: process \d+ on .* has ended without a word; start one with lockstep serve")
        for damaged in ('{"max_queued": "x", "pid": "y", "host": 3, "ranks": []}', '[1]', '{"max_queued": 1e99}', "{"):
            (self.queue / "server.json").write_text(damaged)
            self.client("ps")
            self.client("submit", DIGITS)

    def test_what_cannot_be_read_is_set_aside(self):
        cut, other, lost, good = (self.submit(sets=TINY) for _ in range(4))
        path = self.queue / f"queued/{cut}.json"
        path.write_bytes(path.read_bytes()[:200])
        path = self.queue / f"queued/{other}.json"
        path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
        path = self.queue / f"queued/{lost}.json"
        path.rename(self.queue / f"running/{lost}.json")  # as a server that was killed would leave it, but cut short
        (self.queue / f"running/{lost}.json").write_text("{")
        (self.queue / "queued/notes.txt").write_text("not a job")
        server = self.ended(self.serve("--until-empty"), 0)
        self.assertEqual(self.states(), {cut: "set_aside", other: "set_aside", lost: "set_aside", good: "done"})
        for job, text in ((cut, "cut short or damaged"), (other, "it is of version 2, this program reads version 1"), (lost, "cut short")):
            self.assertRegex(server.log, rf"job {job} is set aside as .*set_aside/{job}.json, the others go on: .*{text}")
            self.assertIn("is set aside in", self.wait(job, 65))
        self.assertIn("set_aside", self.client("ps"))

    def test_a_second_server_is_refused(self):
        first = self.serve()
        wait_for((self.queue / "server.json").exists, "the server")
        self.assertIn("a queue has one server at a time", self.ended(self.serve(), 73).log)
        self.assertTrue((self.queue / "server.json").exists())
        self.assertIsNone(first.process.poll())

    def test_what_submit_refuses(self):
        bad = self.folder / "bad.yaml"
        bad.write_text(DIGITS.read_text().replace("optimizer:", "optimiser:"))
        self.assertIn("did you mean 'optimizer'", self.submit(bad, expect=78))
        bad.write_text("version: 1.0.0\n" + "#" * (1 << 20))
        self.assertIn("1 MiB", self.submit(bad, expect=78))
        self.submit(self.folder / "none.yaml", expect=66)
        self.assertFalse((self.queue / "queued").exists(), "nothing was submitted")
        for words in (("ps",), ("wait", 1), ("cancel", 1), ("logs", 1)):
            self.assertIn("is no queue of jobs", self.client(*words, expect=66))
        self.serve("--max-queued", 2)
        wait_for((self.queue / "server.json").exists, "the server")
        running = self.submit(ENDLESS, RARE)
        self.wait_for_state(running, "running")
        self.submit(sets=TINY)
        self.submit(sets=TINY)
        self.assertIn("2 jobs wait in", self.submit(sets=TINY, expect=69))
        self.client("wait", running, "--timeout", 0.1, expect=69)
        self.client("wait", "first", expect=64)
        self.client("wait", 0, expect=64)

    def test_usage_of_the_server(self):
        for arguments, text in (((), "--queue is required"), (("--queue", self.queue, "--config", DIGITS), "serve and doctor take no run"),
                                (("--queue", self.queue, "--listen", "nonsense"), "it takes HOST:PORT"),
                                (("--queue", self.queue, "--max-queued", "0"), "takes a whole number from 1 to 1000000")):
            done = subprocess.run([LOCKSTEPD, "serve", *map(str, arguments)], capture_output=True, text=True, timeout=ANSWER_S, check=False)
            self.assertEqual(done.returncode, 64, done.stderr)
            self.assertIn(text, done.stderr)
        self.assertIn("lockstepd serve --queue jobs", subprocess.run([LOCKSTEPD, "serve", "--help"], capture_output=True, text=True, check=True).stdout)
        for name in ("serve", "submit", "ps", "logs", "cancel", "wait"):
            self.assertIn(f"lockstep {name} --queue jobs", self.client(name, "--help"))

    def test_the_page_logs_and_ps(self):
        """Served while a job runs and between jobs; logs -f goes along with a job and ends with it."""
        self.serve()
        wait_for((self.queue / "server.json").exists, "the server")
        server = json.loads((self.queue / "server.json").read_text())
        self.assertIn(f"server: 2 rank(s), process {server['pid']}", self.client("ps"))

        def page():
            with urllib.request.urlopen(server["page"] + "/metrics", timeout=5) as answer:
                return answer.read().decode()
        self.assertEqual(metric(page(), "lockstep_server_state", state="idle"), 1)
        self.assertEqual(metric(page(), "lockstep_server_ranks"), 2)
        first, second = self.submit(ENDLESS, RARE), self.submit(sets=TINY)
        self.run_of(first).wait_for_step(1)
        text = page()
        self.assertEqual(metric(text, "lockstep_server_state", state="running"), 1)
        self.assertEqual(metric(text, "lockstep_server_job_info", job="1", run="digits"), 1)
        self.assertEqual({state: metric(text, "lockstep_server_jobs", state=state) for state in ("queued", "running", "done", "cancelled", "failed")},
                         {"queued": 1, "running": 1, "done": 0, "cancelled": 0, "failed": 0})
        follow = subprocess.Popen([LOCKSTEP, "logs", "--queue", self.queue, str(first), "-f"], stdout=subprocess.PIPE, text=True)
        self.assertIn("job 1 begins, try 1: digits in", follow.stdout.readline())
        self.client("cancel", first)
        self.assertRegex(follow.communicate(timeout=ANSWER_S)[0], r"(?s)\[train\] stopped at step .* on request, saved")
        self.assertEqual(follow.returncode, 0)
        self.wait(second)
        self.assertNotIn("job 2", self.client("logs", first))
        wait_for(lambda: metric(page(), "lockstep_server_state", state="idle") == 1, "the server to be idle")
        text = page()
        self.assertEqual({state: metric(text, "lockstep_server_jobs", state=state) for state in ("queued", "running", "done", "cancelled")},
                         {"queued": 0, "running": 0, "done": 1, "cancelled": 1})
        self.assertEqual(metric(text, "lockstep_server_job_starts_total"), 2)
        with urllib.request.urlopen(server["page"] + "/livez", timeout=5) as answer:
            self.assertEqual(answer.read(), b"ok\n")

    def test_python_code_that_was_changed_between_jobs_is_that_of_the_next_one(self):
        project, sets = self.folder / "project", [*PLAIN, "recipe=null", "train.max_steps=30"]
        self.tool("new", "project", project, "--python")
        self.serve()
        before = self.submit(project / "run.yaml", sets)
        self.wait(before)
        again = self.submit(project / "run.yaml", sets)
        self.wait(again)
        net = project / "net.py"
        net.write_text(net.read_text().replace("torch.relu(self.norm", "torch.tanh(self.norm"))
        after = self.submit(project / "run.yaml", sets)
        self.wait(after)
        plain = self.train(run="plain", config=project / "run.yaml", sets=sets)
        digests = [self.run_of(job).summary()["parameters_sha256"] for job in (before, again, after)]
        self.assertEqual(digests[2], plain.summary()["parameters_sha256"])
        self.assertEqual(digests[0], digests[1])
        self.assertNotEqual(digests[1], digests[2])

    def test_jobs_leave_nothing_in_their_processes(self):
        """Open files, threads and memory after the second job are those after the tenth, in make soak after the fiftieth."""
        self.serve()

        def open_files(pid):
            """The least of some looks: an idle server opens the queue's folder 20 times a second, and closes a job's log behind its result."""
            def look():
                time.sleep(0.01)
                return len(os.listdir(f"/proc/{pid}/fd"))
            return min(look() for _ in range(20))

        def held():
            found = {}
            for rank, pid in self.run_of(1).rank_pids().items():
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
                found[rank] = {"files": open_files(pid), **{name: int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("Threads", "VmRSS")}}
            return found
        for _ in range(2):
            self.wait(self.submit(sets=TINY))
        wait_for(lambda: self.states()[2] == "done", "the second job")
        before = held()
        number = 48 if soak.IS_SOAK else 8
        for _ in range(number):
            self.wait(self.submit(sets=TINY))
        after = held()
        for rank in (0, 1):
            self.assertEqual(after[rank]["files"], before[rank]["files"])
            self.assertEqual(after[rank]["Threads"], before[rank]["Threads"])
            self.assertLess(after[rank]["VmRSS"] - before[rank]["VmRSS"], 16 << 10)
        print(f"\nafter 2 and after {2 + number} jobs: {before}, {after}")


if __name__ == "__main__":
    unittest.main()
