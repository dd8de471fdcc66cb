"""Behaviour of a run that is told to save, to stop or to end, and its files if it fails or hangs."""
import json
import os
import signal
import unittest

from harness import BUILD, ENDLESS, FAULTY_RANK, LockstepTest, metric, stays, wait_for, within

FAULT_CALLS = BUILD / "tests/integration/libfault_calls.so"
RARE = ["checkpoint.save_checkpoints_steps=1000000", "eval.every_epochs=0"]


def hanging_disk(report, rank, path):
    """Environment in which each call of that rank on a file whose path has this text waits; the first creates the file `report`."""
    return {"LD_PRELOAD": str(FAULT_CALLS), "LOCKSTEP_FAULT_RANK": str(rank), "LOCKSTEP_FAULT_PATH": path, "LOCKSTEP_FAULT_CALL": "any",
            "LOCKSTEP_FAULT_AT": "1+", "LOCKSTEP_FAULT_DO": "WAIT", "LOCKSTEP_FAULT_REPORT": str(report)}


def saves_of(run):
    return sorted(int(path.stem.rsplit("-", 1)[1]) for path in run.folder.glob("checkpoints/model.ckpt-*.index"))


def failures_of(run):
    return {file["rank"]: file for path in run.folder.glob("logs/lockstep-error-*.json") for file in [json.loads(path.read_text())]}


class Signals(LockstepTest):
    def test_usr2_saves_and_goes_on(self):
        """The signal comes to either rank alone: a save follows after that very step, and training ends as if nothing had happened."""
        unbroken = self.train(run="unbroken", sets=[*RARE, "train.max_steps=40"])
        for rank in (0, 1):
            run = self.start_faulty("usr2", rank, step=12, run=f"usr2_{rank}", sets=[*RARE, "train.max_steps=40"]).wait()
            self.assertEqual(run.code, 0, run.log)
            self.assertEqual(saves_of(run), [13, 40], run.log)
            self.assertEqual(run.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
            self.assertEqual(metric(run.last_page(rank), "lockstep_signals_total", signal="SIGUSR2"), 1)

    def test_usr2_without_saves_changes_nothing(self):
        run = self.start_faulty("usr2", 0, step=3, sets=["checkpoint=off", "train.max_steps=6", "eval.every_epochs=0"]).wait()
        self.assertEqual(run.code, 0, run.log)
        self.assertEqual(run.summary()["steps"], 6)

    def test_preemption_signals_save_and_stop(self):
        """SIGTERM configured like SIGUSR1: the run saves although the grace period is too short for SIGTERM's default."""
        for action, signals, exit_reason in (("term", "[SIGTERM]", "stopped"), ("term", "[SIGUSR1]", "ended"), ("usr1", "[SIGTERM]", "stopped")):
            run = self.start_faulty(action, 1, step=7, run=f"{action}{signals}",
                                    sets=[*RARE, f"preemption.signals={signals}", "preemption.grace_seconds=0"]).wait()
            self.assertEqual(run.code, 75, run.log)
            self.assertEqual(run.summary()["exit_reason"], exit_reason, run.log)
            self.assertEqual(run.summary()["steps"], 8)
            self.assertEqual(saves_of(run), [8] if exit_reason == "stopped" else [])

    def test_a_signal_that_there_is_not_is_refused(self):
        said = self.tool("check", ENDLESS, "--set", "preemption.signals=[SIGKILL]", expect=78)
        self.assertIn("takes SIGUSR1, SIGUSR2, SIGTERM, SIGINT and SIGHUP, not 'SIGKILL'", said)

    def test_the_former_key_of_the_grace_is_read(self):
        run = self.train(sets=["run.grace_s=7", "train.max_steps=2"])
        self.assertIn("'run.grace_s' is now 'preemption.grace_seconds'", run.log)

    def test_a_second_int_ends_at_once(self):
        """The first leads to a save on a disk that hangs, so the rank is there when the second comes."""
        hangs = self.folder / "hangs"
        run = self.start(1, config=ENDLESS, environment=hanging_disk(hangs, 0, "/checkpoints/model.ckpt-"),
                         sets=[*RARE, "preemption.grace_seconds=60", "checkpoint.timeout_s=300"])
        run.wait_for_step(1)
        pid = run.rank_pids()[0]
        os.kill(pid, signal.SIGINT)
        wait_for(hangs.exists, "the save of the first one to hang")
        stays(lambda: run.process.poll() is None, "the wait for the disk, longer than the 0.2 s in which two count as one", 0.5)
        os.kill(pid, signal.SIGINT)
        self.assertEqual(run.wait().code, 130, run.log)

    def test_a_hanging_rank_ends_at_the_second_int(self):
        run = self.start_faulty("hang", 0, step=3, ranks=1, config=ENDLESS, sets=RARE)
        run.wait_for_step(3)
        pid = run.rank_pids()[0]
        os.kill(pid, signal.SIGINT)
        stays(lambda: run.process.poll() is None, "the first waits for the step", 0.5)
        os.kill(pid, signal.SIGINT)
        self.assertEqual(run.wait().code, 130, run.log)

    def test_the_end_of_the_grace_ends_the_wait_for_a_disk_that_hangs(self):
        """SIGUSR1 saves however long it takes; SIGTERM does not, and five seconds are the least."""
        hangs = self.folder / "hangs"
        run = self.start(config=ENDLESS, environment=hanging_disk(hangs, 1, "/checkpoints/model.ckpt-"),
                         sets=["checkpoint.save_checkpoints_steps=5", "checkpoint.timeout_s=60", "eval.every_epochs=0"])
        wait_for(hangs.exists, "the disk to hang")
        run.wait_for_status("the wait for the save", step=lambda now: now >= 5)
        pids = run.rank_pids()
        os.kill(pids[1], signal.SIGUSR1)
        stays(lambda: run.process.poll() is None, "it waits for the save", 0.5)
        with within(20, "the end after SIGTERM") as took:
            os.kill(pids[0], signal.SIGTERM)
            run.wait()
            took_s = took.passed_s()
        self.assertEqual(run.code, 75, run.log)
        self.assertRegex(run.log, r"E rank 0 \[lockstepd\] \[train\] stop requested, and the checkpoint of step 5 is not on disk after 5 s")
        self.assertGreater(took_s, 4.5)
        self.assertEqual(saves_of(run), [])
        print(f"{took_s:.1f} s from SIGTERM to the end")

    def test_a_stop_breaks_an_evaluation_off(self):
        """An evaluation of minutes: the ranks leave it, save and stop; started again, they evaluate."""
        slow = ["eval.batch_size=1", "eval.every_epochs=1", "data.eval={type: random, shape: [1, 8, 8], classes: 10, samples: 400000}",
                "checkpoint.save_checkpoints_steps=1000000", "train.max_steps=2000"]
        for whom, name in ((0, "one"), (None, "all")):
            run = self.start(sets=slow, run=name)
            run.wait_for_status("the evaluation", state="validating", step=23)
            with within(20, "the end of an evaluation of minutes"):
                pids = run.rank_pids()
                if whom is None:
                    run.process.send_signal(signal.SIGUSR1)
                else:
                    for pid in pids.values():
                        os.kill(pid, signal.SIGTERM if pid == pids[whom] else signal.SIGUSR1)
                run.wait()
            self.assertEqual(run.code, 75, run.log)
            self.assertIn("the evaluation of step 23 was interrupted: stop requested", run.log)
            self.assertEqual(run.summary()["steps"], 23, run.log)

    def test_a_stop_in_the_last_evaluation_is_made_up_for(self):
        slow = ["eval.batch_size=1", "eval.every_epochs=0", "train.max_steps=5",
                "data.eval={type: random, shape: [1, 8, 8], classes: 10, samples: 400000}"]
        run = self.start(sets=slow)
        run.wait_for_status("the evaluation", state="validating", step=5)
        run.process.send_signal(signal.SIGUSR1)
        run.wait()
        self.assertEqual(run.code, 75, run.log)
        again = self.train(sets=[*slow, "eval.eval_freq=8"])
        self.assertIn("nothing to train", again.log)
        self.assertIn("eval", again.summary())


class Failures(LockstepTest):
    def test_the_cause_is_what_every_rank_reports(self):
        """Rank 1 has a bug; rank 0 only detects its end, and reports the reason."""
        run = self.start_faulty("throw", 1, step=5, sets=RARE).wait()
        self.assertEqual(run.code, 70, run.log)
        self.assertIn("| made to fail", run.log)
        self.assertRegex(run.log, r"\| the run has failed with exit code 70: rank 1 on \S+ \(process \d+\), after step 5 +\|")
        failures = failures_of(run)
        self.assertEqual(failures[1]["exit_code"], 70)
        self.assertEqual(failures[1]["message"], "made to fail")
        self.assertEqual(failures[1]["step"], 5)

    def test_a_rank_that_hangs_is_named_first_as_slow_then_as_hanging(self):
        run = self.start_faulty("hang", 1, step=5, config=ENDLESS, sets=[*RARE, "watchdog.slow_seconds=1", "sync.timeout_s=4"]).wait()
        self.assertEqual(run.code, 79, run.log)
        self.assertRegex(run.log, r"W rank 0 \[dist.cpu\] .*has waited [1-9]\.\d s for rank 1 \(process \d+ on \S+\), which is slow or hangs")
        self.assertRegex(run.log, r"W rank 1 \[watchdog\] .* without progress: 5 step\(s\) done on this rank, state training")
        self.assertRegex(run.log, r"W rank 0 \[watchdog\] .*it is in 'reducing' 0")
        self.assertEqual(failures_of(run)[0]["exit_code"], 79)
        events = json.loads((run.folder / "logs" / "lockstep-events-0.json").read_text())
        self.assertLessEqual({"forward", "wait for all-reduce"}, {event["name"] for event in events})
        waited = max(event["end_ns"] - event["begin_ns"] for event in events if event["name"] == "wait for all-reduce")
        self.assertGreater(waited, 3e9)

    def test_a_rank_alone_that_hangs_ends_itself(self):
        with within(30, "the start and the end of a rank that hangs"):
            run = self.start_faulty("hang", 0, step=5, ranks=1, config=ENDLESS, sets=[*RARE, "watchdog.hang_seconds=2"]).wait()
        self.assertEqual(run.code, 79, run.log)
        self.assertRegex(run.log, r"rank 0 hangs: [2-9]\d?\.\d s without progress \(watchdog.hang_seconds\)")
        self.assertTrue((run.folder / "logs" / "lockstep-events-0.json").exists())
        self.assertEqual(failures_of(run)[0]["exit_code"], 79)

    def test_a_process_that_was_stopped_and_goes_on_alarms_nobody(self):
        run = self.start(1, config=ENDLESS, sets=[*RARE, "watchdog.hang_seconds=1", "train.max_steps=100000"])
        pid = run.rank_pids()[0]
        run.wait_for_step(5)
        os.kill(pid, signal.SIGSTOP)
        stays(lambda: run.process.poll() is None, "a stopped process", 3)
        os.kill(pid, signal.SIGCONT)
        run.wait_for_step(run.ctl("status")["step"] + 5)
        run.process.send_signal(signal.SIGUSR1)
        self.assertEqual(run.wait().code, 75, run.log)

    def test_a_failed_run_ends_though_its_disk_hangs(self):
        """Rank 1 cannot write its failure file, and rank 0 waits for it."""
        hangs = self.folder / "hangs"
        fault = {"LOCKSTEP_TEST_ACTION": "throw", "LOCKSTEP_TEST_RANK": "1", "LOCKSTEP_TEST_STEP": "5"}
        run = self.start(program=FAULTY_RANK, environment={**fault, **hanging_disk(hangs, 1, "lockstep-error-1")}, sets=RARE)
        wait_for(hangs.exists, "the disk to hang")
        with within(20, "the end of a run whose disk hangs") as took:
            run.wait()
        self.assertEqual(run.code, 70, run.log)
        self.assertIn("the end of the run takes more than 5 s: a disk may hang", run.log)
        self.assertIn("[bug] made to fail", run.log)
        print(f"{took.passed_s():.1f} s from the failure to the end")

    def test_a_later_start_removes_what_was_noted(self):
        self.start_faulty("throw", 0, step=2, sets=RARE).wait()
        run = self.train(sets=[*RARE, "train.max_steps=4"])
        self.assertEqual(failures_of(run), {})


if __name__ == "__main__":
    unittest.main()
