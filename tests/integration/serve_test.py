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

from harness import ANSWER_S, BUILD, ENDLESS, FAULTY_RANK, LOCKSTEP, PRUNE_EARLY, SOURCE, metric, wait_for
import soak
from counts import counted
from serve_harness import ONE, OTHER, PLAIN, RARE, TINY, ServeTest
from supervised import processes_of


class Serve(ServeTest):
    def test_each_job_is_as_a_run_of_its_own_in_either_order(self):
        """Jobs A, B and A again: leftovers of a job in the process would change the next one's weights, steps or counters."""
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

    def test_a_failing_job_harms_no_other(self):
        unlike = self.train(run="unlike", sets=ONE)
        self.submit(sets=[*PLAIN, "data.train={type: npy, path: no-such.npy}", "data.eval=null"], expect=66)  # found by the check
        recipe, data = self.folder / "recipe.yaml", self.folder / "digits.csv"
        recipe.write_text("version: 1.0.0\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 2.0}\n")
        shutil.copy(SOURCE / "data/digits/digits.csv", data)
        jobs = [self.submit(sets=[*PLAIN, "run.expect_world_size=3"]), self.submit(sets=[*PLAIN, f"recipe={recipe}"]),
                self.submit(sets=[*TINY, f"data.train={{type: digits, path: {data}, split: train}}"]),
                self.submit(sets=[*PLAIN, "optimizer.learning_rate=1e30", "train.max_nonfinite_steps=2", "recipe=null", "train.max_steps=100"]),
                self.submit(sets=ONE)]
        recipe.write_text("version: 1.0.0\nmodifiers: what\n")  # after they were checked
        data.write_bytes(data.read_bytes()[:5000])
        self.ended(self.serve("--until-empty"), 0)
        for job, code, text in zip(jobs, (78, 78, 65, 80), ("run.expect_world_size is 3", "modifiers", "digits.csv:", "were not finite")):
            self.assertIn(text, self.wait(job, code))
            self.assertIn(text, self.client("logs", job))
            self.assertEqual(self.states()[job], "failed")
        self.wait(jobs[-1])
        self.assertEqual(self.run_of(jobs[-1]).summary()["parameters_sha256"], unlike.summary()["parameters_sha256"])

    def test_a_fault_of_the_host_fails_no_job(self):
        """A place for runs that cannot be written to, and a folder that is not mounted: the jobs keep their places, and run once the host is repaired."""
        place, mount = self.folder / "place", self.folder / "not_mounted"
        place.write_text("a file, where a folder should be")
        mount.mkdir()
        unmounted = self.submit(sets=TINY, cwd=mount)
        jobs = [self.submit(sets=[*TINY, f"run.project_dir={place}/{name}"]) for name in ("a", "b", "c")]
        mount.rmdir()
        server = self.ended(self.serve("--until-empty"), 73)
        self.assertEqual(self.states(), {job: "queued" for job in (*jobs, unmounted)})
        self.assertEqual(re.findall(r"job (\d+) stopped on a fault of this host \((\d+)\) and keeps its place", server.log), [("1", "66"), ("2", "73")], "the others are not tried")
        server = self.serve()
        wait_for(lambda: "jobs wait until a fault of the host is fixed: " in self.client("ps"), "two faults")
        page = json.loads((self.queue / "server.json").read_text())["page"]
        with urllib.request.urlopen(page + "/metrics", timeout=5) as answer:
            self.assertEqual(metric(answer.read().decode(), "lockstep_server_held"), 1)
        server.process.send_signal(signal.SIGUSR1)
        self.ended(server, 75)
        place.unlink()
        mount.mkdir()
        self.ended(self.serve("--until-empty"), 0)
        self.assertEqual(self.states(), {job: "done" for job in (*jobs, unmounted)})
        self.assertEqual({self.result(job)["tries"] for job in (*jobs, unmounted)}, {1})

    def test_nothing_is_held_once_the_job_that_waited_is_cancelled(self):
        place = self.folder / "place"
        place.write_text("a file, where a folder should be")
        job = self.submit(sets=[*TINY, f"run.project_dir={place}/a"])
        server = self.serve()
        wait_for(lambda: "jobs wait until a fault of the host is fixed" in self.client("ps"), "the fault")
        self.client("cancel", job)
        wait_for(lambda: "jobs wait until a fault of the host is fixed" not in self.client("ps"), "an empty queue")
        page = json.loads((self.queue / "server.json").read_text())["page"]
        with urllib.request.urlopen(page + "/metrics", timeout=5) as answer:
            self.assertEqual(metric(answer.read().decode(), "lockstep_server_held"), 0)
        server.process.send_signal(signal.SIGUSR1)
        self.ended(server, 75)

    def test_a_disk_that_is_full_for_the_final_save_keeps_the_job(self):
        """A full disk is not an error of the run, which ends in order with 74: the summary says why."""
        job = self.submit(sets=TINY)
        fault = {"LD_PRELOAD": str(BUILD / "tests/integration/libfault_calls.so"), "LOCKSTEP_FAULT_RANK": "0", "LOCKSTEP_FAULT_PATH": ".index", "LOCKSTEP_FAULT_CALL": "rename",
                 "LOCKSTEP_FAULT_AT": "1+", "LOCKSTEP_FAULT_DO": "ENOSPC", "LOCKSTEP_FAULT_REPORT": str(self.folder / "report")}
        server = self.ended(self.serve("--until-empty", environment=fault), 74)
        self.assertEqual(self.states(), {job: "queued"})
        self.assertRegex(server.log, r"job 1 stopped on a fault of this host \(74\) .*: the run ended as 'not_saved': see its log")
        self.ended(self.serve("--until-empty"), 0)
        self.assertEqual(self.result(job)["tries"], 1)

    def test_a_job_that_alone_meets_such_faults_has_so_many_tries(self):
        """Other jobs succeed on the same host: so the host is sound."""
        place = self.folder / "place"
        place.write_text("a file, where a folder should be")
        bad, *good = self.submit(sets=[*TINY, f"run.project_dir={place}/a"]), *(self.submit(sets=TINY) for _ in range(3))
        self.ended(self.serve("--until-empty", "--max-tries", 2), 0)
        self.assertEqual(self.states(), {bad: "failed", **{job: "done" for job in good}})
        self.assertEqual(self.result(bad)["exit_code"], 73)
        self.assertIn("place", self.wait(bad, 73))

    def test_a_fault_of_the_host_on_one_rank_puts_the_job_back(self):
        fault = {"LOCKSTEP_TEST_ACTION": "fail", "LOCKSTEP_TEST_RANK": "1", "LOCKSTEP_TEST_STEP": "5"}
        job = self.submit(ENDLESS, RARE)
        server = self.begin([LOCKSTEP, "serve", "--queue", self.queue, "-n", 2, "--listen", "127.0.0.1:0", "--until-empty", "--program", FAULTY_RANK], fault)
        self.ended(server, 74)
        self.assertEqual(self.states(), {job: "queued"})

    def test_each_job_of_an_estimator_has_its_own_flags(self):
        """The loss and all other code of a job refers to one object with the job's flags."""
        config = self.folder / "run.yaml"
        config.write_text("run: {name: scaled}\nestimator: {name: full, loss: mine}\ndata: {train: {type: estimator}, global_batch_size: 4}\ntrain: {max_steps: 2}\n"
                          "metrics: {listen: 'off'}\n")
        words = ["--estimator", BUILD / "tests/daemon/libtest_plugin.so", "--", "--scale"]
        jobs = [int(self.client("submit", config, *words, scale).split()[0]) for scale in (1, 100, 1)]
        self.ended(self.serve("--until-empty", ranks=1), 0)
        first, scaled, again = ([step["loss"] for step in self.run_of(job).steps()] for job in jobs)
        self.assertAlmostEqual(scaled[0] / first[0], 100, places=3)
        self.assertEqual(again, first)

    def test_a_stop_ends_a_server_whose_disk_hangs(self):
        """The disk hangs where the server looks for jobs and where it takes one."""
        for name in counted("servers with a disk that hangs ended by a signal", ("queued/1.json", "running/1.json")):
            self.queue = self.folder / name.split("/")[0]
            self.submit(sets=TINY)
            report = self.folder / f"{self.queue.name}.report"
            fault = {"LD_PRELOAD": str(BUILD / "tests/integration/libfault_calls.so"), "LOCKSTEP_FAULT_RANK": "0", "LOCKSTEP_FAULT_PATH": f"/{name}",
                     "LOCKSTEP_FAULT_CALL": "open", "LOCKSTEP_FAULT_AT": "1", "LOCKSTEP_FAULT_DO": "WAIT", "LOCKSTEP_FAULT_REPORT": str(report)}
            server = self.serve(environment=fault)
            wait_for(report.exists, "the disk to hang")
            server.process.send_signal(signal.SIGUSR1)
            began = time.monotonic()
            self.ended(server, 75)
            self.assertLess(time.monotonic() - began, 30)
            self.assertIn("the disk of the queue does not respond within 5 s", server.log)
            self.assertIn(self.states()[1], ("queued", "running"))

    def test_a_new_queue_is_private_whoever_makes_it(self):
        """A umask that lets the group write is usual; the supervisor makes its folder before the server starts."""
        server = self.begin(["bash", "-c", f"umask 002; exec {LOCKSTEP} serve --queue {self.queue} -n 1 --listen 127.0.0.1:0 --until-empty"])
        self.ended(server, 0)
        self.assertEqual(self.queue.stat().st_mode & 0o777, 0o700)

    def test_another_user_of_the_host_can_do_nothing_to_a_queue(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become another user")
        self.folder.chmod(0o755)
        self.serve()
        job = self.submit(ENDLESS, RARE)
        self.run_of(job).wait_for_step(1)
        page = json.loads((self.queue / "server.json").read_text())["page"]
        nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]
        for words in (["ls", self.queue], ["cat", self.queue / f"running/{job}.json"], ["touch", self.queue / "queued/9.json"], ["touch", self.queue / f"jobs/{job}/cancel"],
                      ["curl", "-sf", "-X", "POST", "-H", "X-Lockstep-Control: 1", page + "/control/stop"], [LOCKSTEP, "cancel", "--queue", self.queue, str(job)]):
            done = subprocess.run([*map(str, nobody), *map(str, words)], capture_output=True, text=True, timeout=ANSWER_S, check=False)
            self.assertNotEqual(done.returncode, 0, words)
        self.assertEqual(self.states(), {job: "running"})

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

    def test_the_page_logs_and_ps(self):
        """Pages are served while a job runs and between jobs; logs -f follows a job and ends with it."""
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
        self.assertIn("job 1 starts, try 1: digits in", follow.stdout.readline())
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

    def test_jobs_leave_nothing_in_their_processes(self):
        """Open files, threads and memory after the second job are those after the tenth, in make soak after the fiftieth."""
        self.serve()

        def held_by(pid):
            """The minimum of several samples: an idle server opens the queue's folder 20 times a second, and a job's last files and threads end after
            its result."""
            def look():
                time.sleep(0.02)
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
                return {"files": len(os.listdir(f"/proc/{pid}/fd")), **{name: int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("Threads", "VmRSS")}}
            samples = [look() for _ in range(50)]
            return {name: min(sample[name] for sample in samples) for name in samples[0]}

        def held():
            return {rank: held_by(pid) for rank, pid in self.run_of(1).rank_pids().items()}
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
