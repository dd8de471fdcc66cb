"""Rank 1 is stopped (SIGSTOP) in each phase of a run: that phase's limits end the run, and the newest events of both ranks exist."""
import json
import os
import pathlib
import re
import signal
import unittest

from harness import ENDLESS, FAULTY_RANK, PRUNE_EARLY, LockstepTest, wait_for, within

SETS = pathlib.Path(__file__).parent / "programs/python/sets.py"
SHARD_WRITTEN = "1"  # of checkpoint::SavePhase
NEVER_ELSE = ["sync.timeout_s=300", "watchdog.slow_seconds=300", "watchdog.hang_seconds=0", "eval.every_epochs=0"]


def limits(phase, slow_s=0.6, hang_s=1.5):
    """Limits of this phase alone."""
    return [*NEVER_ELSE, f"watchdog.{phase}.slow_seconds={slow_s}", f"watchdog.{phase}.hang_seconds={hang_s}"]


class StoppedRank(LockstepTest):
    def require_ended_by(self, phase, run, stands_in):
        with within(60, "the end of the run, in place of five minutes"):
            run.wait()
        self.assertEqual(run.code, 79, run.log)
        self.assertRegex(run.log, rf"W rank 0 \[watchdog\] \d\.\d s without progress.*\n(?:.*\n)*?.*rank 0 \[watchdog\] other ranks: rank 1 {stands_in}")
        self.assertRegex(run.log, rf"rank 0 hangs: \d+\.\d s without progress \(watchdog\.{phase}\.hang_seconds\)")
        self.assertRegex(run.log, rf"other ranks: rank 1 {stands_in}")
        events = {rank: json.loads((run.folder / f"logs/lockstep-events-{rank}.json").read_text()) for rank in (0, 1)}
        for rank, spans in events.items():
            self.assertLessEqual(len(spans), 1000)
            self.assertEqual(spans, sorted(spans, key=lambda span: span["begin_ns"]), rank)
        self.assertEqual(json.loads((run.folder / "logs/lockstep-error-0.json").read_text())["exit_code"], 79)
        print(phase, {rank: len(spans) for rank, spans in events.items()}, re.search(r"other ranks: .*", run.log)[0])
        return events

    def python_data(self, which, fault):
        return [f"data.{which}={{type: python, path: {SETS}, name: Points, args: {{fault: {fault}}}}}", "model={type: mlp, layers: [4, 8, 3]}",
                "recipe=null", "data.global_batch_size=32"]

    def test_in_its_start(self):
        run = self.start(config=ENDLESS, sets=[*limits("init", hang_s=9), *self.python_data("train", "stopped")])
        self.assertEqual(self.require_ended_by("init", run, "between two spans"), {0: [], 1: []})

    def test_in_a_step(self):
        run = self.start_faulty("stop", 1, step=5, config=ENDLESS, sets=limits("step"))
        events = self.require_ended_by("step", run, "between two spans")
        self.assertEqual(events[0][-1]["end_ns"], 0, "rank 0 waits")
        self.assertEqual({event["name"] for event in events[1]} & {"data", "forward", "backward"}, {"data", "forward", "backward"})

    def test_in_an_evaluation(self):
        sets = [*limits("evaluation"), *self.python_data("eval", "stopped_later"), "data.train={type: python, path: %s, name: Points}" % SETS,
                "train.max_steps=4"]
        run = self.start(config=ENDLESS, sets=sets)
        self.require_ended_by("evaluation", run, "in 'evaluation'")

    def test_before_its_masks(self):
        run = self.start_faulty("stop", 1, step=23, sets=[*limits("mask_update"), PRUNE_EARLY, "data.global_batch_size=64"])
        events = self.require_ended_by("mask_update", run, "between two spans")
        self.assertEqual(events[0][-1]["name"], "masks")

    def test_in_the_save_at_the_end(self):
        fault = {"LOCKSTEP_TEST_ACTION": "stop", "LOCKSTEP_TEST_RANK": "1", "LOCKSTEP_TEST_STEP": "1", "LOCKSTEP_TEST_PHASE": SHARD_WRITTEN}
        run = self.start(config=ENDLESS, program=FAULTY_RANK, environment=fault,
                         sets=[*limits("save"), "checkpoint.timeout_s=300", "train.max_steps=6"])
        self.require_ended_by("save", run, "in 'wait for a save'")

    def test_the_end_of_the_run(self):
        """All is done and saved, and a rank hangs before it leaves: MPI would wait for it without end."""
        for attempt in range(4):
            run = self.start(2, run=f"run{attempt}", sets=["train.max_steps=5", "eval.every_epochs=0", "metrics.linger_secs=8", "sync.timeout_s=2"])
            pids = run.rank_pids()
            pages = [run.folder / f"logs/rank{rank}.prom" for rank in (0, 1)]
            wait_for(lambda: all(page.exists() for page in pages), "the ranks' last pages, written once their work is done")
            os.kill(pids[1], signal.SIGSTOP)  # at once: it leaves when linger_secs have passed, whether or not this test had a processor
            run.wait(40)
            self.assertEqual(run.code, 79, run.log)
            self.assertEqual(run.summary()["steps"], 5)
            if "waited 2.0 s for rank 1 " not in run.log:  # otherwise it was stopped on its way from its page to the linger time
                break
        self.assertRegex(run.log, r"\[lockstepd\] \[dist.cpu\] .* waited 10.0 s for rank 1 ")


if __name__ == "__main__":
    unittest.main()
