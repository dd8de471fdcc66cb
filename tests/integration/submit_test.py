"""`lockstep submit` and its neighbours: what becomes of a job before and after it runs, and what is refused."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import unittest

from counts import counted
from harness import ANSWER_S, BUILD, DIGITS, ENDLESS, LOCKSTEP, LOCKSTEPD, SOURCE, Run, wait_for
from serve_harness import PLAIN, RARE, TINY, ServeTest
from supervised import processes_of


class Submit(ServeTest):
    def test_a_server_that_waits_checks_what_is_submitted(self):
        """lockstep need not load LibTorch: here it could not. Relative paths start at the folder of the submission."""
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
                                                                          (("--set", "data.train.path=none.csv"), 66, "none.csv: no such file"), ((), 0, "2\n"))):
            code, said = submitted(*more)
            self.assertEqual((code, text in said), (expected, True), said)
            if expected == 0:
                self.wait(int(said))
        self.assertEqual(Run(None, self.folder / "own").summary()["steps"], 4)
        server.process.send_signal(signal.SIGINT)
        server.wait()
        self.assertFalse((self.queue / "submitted").exists())

    def test_a_check_that_hangs_holds_up_nobody(self):
        """It delays neither other jobs nor the end of the server: the check's data are on a disk that does not answer."""
        slow = self.folder / "slow/digits.csv"
        slow.parent.mkdir()
        shutil.copy(SOURCE / "data/digits/digits.csv", slow)
        report = self.folder / "report"
        server = self.serve(environment={"LD_PRELOAD": str(BUILD / "tests/integration/libfault_calls.so"), "LOCKSTEP_FAULT_RANK": "0", "LOCKSTEP_FAULT_PATH": "/slow/digits.csv",
                                         "LOCKSTEP_FAULT_CALL": "open", "LOCKSTEP_FAULT_AT": "1+", "LOCKSTEP_FAULT_DO": "WAIT", "LOCKSTEP_FAULT_REPORT": str(report)})
        wait_for((self.queue / "submitted").exists, "the server")
        words = [LOCKSTEP, "submit", "--queue", self.queue, DIGITS, *(word for one in [*TINY, f"data.train={{type: digits, path: {slow}, split: train}}"] for word in ("--set", one))]
        hanging = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.started.append(hanging)
        wait_for(report.exists, "the check to hang")
        self.wait(self.submit(sets=TINY))
        server.process.send_signal(signal.SIGUSR1)
        self.ended(server, 75)
        self.assertIn("the server ended while it checked the job", hanging.communicate(timeout=ANSWER_S)[0])
        self.assertEqual(hanging.returncode, 69)
        wait_for(lambda: not processes_of(self.queue), "the child that hangs to be gone")

    def test_a_job_that_brings_code_is_never_checked_by_the_server(self):
        self.serve()
        wait_for((self.queue / "server.json").exists, "the server")
        library = BUILD / "tests/daemon/libtest_plugin.so"
        for name, text in counted("jobs with code of their own refused by their client", (("a", f"plugins: [{library}]\n"), ("b", f"estimator: {{path: {library}, widht: 32}}\n"))):
            config = self.folder / f"{name}.yaml"
            config.write_text(text + "run: {nmae: x}\n")
            self.submit(config, expect=78)
        pid = json.loads((self.queue / "server.json").read_text())["pid"]
        self.assertNotIn(library.name, pathlib.Path(f"/proc/{pid}/maps").read_text())

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
            self.assertIn(f"job {job} has already ended", self.client("cancel", job, expect=64))
        for words in (("cancel", 99), ("wait", 99), ("logs", 99)):
            self.assertIn("has no job 99", self.client(*words, expect=66))
        self.assertIn("cancelled before it started", self.wait(second, 75))
        self.assertIsNone(server.process.poll())

    def test_a_server_that_is_gone_is_said(self):
        """The server was never started, or it was killed: its file still says that it runs."""
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
        # A large process takes a while to end, and closes its files, the lock too, after it has left the list of processes.
        wait_for(lambda: "no server runs on" in self.client("wait", job, "--timeout", 0.1, expect=69), "the server's lock to be free")
        self.assertTrue((self.queue / "server.json").exists(), "left behind")
        self.assertRegex(self.client("ps"), r"no server: process \d+ on .* was killed or crashed; start one with lockstep serve")
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
        path.rename(self.queue / f"running/{lost}.json")  # as a killed server leaves it, but truncated
        (self.queue / f"running/{lost}.json").write_text("{")
        (self.queue / "queued/notes.txt").write_text("not a job")
        server = self.ended(self.serve("--until-empty"), 0)
        self.assertEqual(self.states(), {cut: "set_aside", other: "set_aside", lost: "set_aside", good: "done"})
        for job, text in ((cut, "truncated or damaged"), (other, "it has version 2, this program reads version 1"), (lost, "truncated")):
            self.assertRegex(server.log, rf"job {job} is unreadable and was moved to .*set_aside/{job}.json; the other jobs continue: .*{text}")
            self.assertIn("was moved to", self.wait(job, 65))
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
            self.assertIn("is not a queue of jobs", self.client(*words, expect=66))
        self.serve("--max-queued", 2)
        wait_for((self.queue / "server.json").exists, "the server")
        running = self.submit(ENDLESS, RARE)
        self.wait_for_state(running, "running")
        self.submit(sets=TINY)
        self.submit(sets=TINY)
        self.assertIn("2 jobs already wait in", self.submit(sets=TINY, expect=69))
        self.client("wait", running, "--timeout", 0.1, expect=69)
        self.client("wait", "first", expect=64)
        self.client("wait", 0, expect=64)

    def test_usage_of_the_server(self):
        for arguments, text in (((), "--queue is required"), (("--queue", self.queue, "--config", DIGITS), "serve and doctor accept no run"),
                                (("--queue", self.queue, "--listen", "nonsense"), "it takes HOST:PORT"),
                                (("--queue", self.queue, "--max-queued", "0"), "takes a whole number from 1 to 1000000")):
            done = subprocess.run([LOCKSTEPD, "serve", *map(str, arguments)], capture_output=True, text=True, timeout=ANSWER_S, check=False)
            self.assertEqual(done.returncode, 64, done.stderr)
            self.assertIn(text, done.stderr)
        self.assertIn("lockstepd serve --queue jobs", subprocess.run([LOCKSTEPD, "serve", "--help"], capture_output=True, text=True, check=True).stdout)
        for name in ("serve", "submit", "ps", "logs", "cancel", "wait"):
            self.assertIn(f"lockstep {name} --queue jobs", self.client(name, "--help"))

    def test_python_code_that_was_changed_between_jobs_is_that_of_the_next_one(self):
        """And the variables of a file that was not changed are those of a new process."""
        project, sets = self.folder / "project", [*PLAIN, "recipe=null", "train.max_steps=30"]
        self.tool("new", "project", project, "--python")
        net = project / "net.py"
        net.write_text(net.read_text().replace("class Net", "NETS = []\n\n\nclass Net").replace(
            "        super().__init__()\n", "        super().__init__()\n        NETS.append(width)\n        width *= len(NETS)\n", 1))
        self.serve()
        before = self.submit(project / "run.yaml", sets)
        self.wait(before)
        again = self.submit(project / "run.yaml", sets)
        self.wait(again)
        net.write_text(net.read_text().replace("torch.relu(self.norm", "torch.tanh(self.norm"))
        after = self.submit(project / "run.yaml", sets)
        self.wait(after)
        plain = self.train(run="plain", config=project / "run.yaml", sets=sets)
        digests = [self.run_of(job).summary()["parameters_sha256"] for job in (before, again, after)]
        self.assertEqual(digests[2], plain.summary()["parameters_sha256"])
        self.assertEqual(digests[0], digests[1])
        self.assertNotEqual(digests[1], digests[2])


if __name__ == "__main__":
    unittest.main()
