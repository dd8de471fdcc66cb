#!/usr/bin/env python3
"""Goodput of a run that is killed, hangs, is stopped, waits for a slow rank and evaluates: each cause against what this test has measured itself."""
import csv
import os
import pathlib
import random
import re
import signal
import time
import unittest

from harness import metric, wait_for
import patience
from soak import rounds
from supervised import SupervisedTest

FILES = pathlib.Path(__file__).parent / "programs" / "python"
SLOW_S = 0.001  # of each of the 8 samples of a step, on rank 1
SAMPLES, BATCH = 160, 8
EVAL_S = 0.0025  # of each of the samples of an evaluation, half of which each rank has
CONFIG = f"""version: 1.0.0
run: {{name: goodput, seed: 17, threads: 1}}
model: {{type: mlp, layers: [4, 8, 3]}}
data:
  train: {{type: python, path: {FILES}/sets.py, name: SlowPoints, args: {{slow_s: {SLOW_S}}}}}
  eval: {{type: python, path: {FILES}/sets.py, name: SlowPoints, args: {{eval_s: {EVAL_S}, samples: {SAMPLES}}}}}
  global_batch_size: {2 * BATCH}
optimizer: {{type: sgd, learning_rate: 0.05}}
sync: {{timeout_s: 2}}
checkpoint: {{save_checkpoints_steps: 20}}
summary: {{tensorboard: false}}
"""
GRAIN_S = 0.02  # of the file, which is written every 10 ms, after a step


def now():
    return time.time()


def fields_of(pid):
    """Those of /proc/PID/stat after the name."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def start_of(ranks):
    """Start of the ranks' mpirun, in seconds since 1970."""
    mpirun = fields_of(min(ranks))[1]
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields_of(mpirun)[19]) / os.sysconf("SC_CLK_TCK")
    return now() - age_s


class Goodput(SupervisedTest):
    def lines(self, run):
        with open(run.folder / "goodput.csv") as file:
            return [{key: float(value) if key != "state" else value for key, value in row.items()} for row in csv.DictReader(file)]

    def totals(self, run):
        lines = self.lines(run)
        return {key: sum(line[key] for line in lines) for key in lines[0] if key not in ("end_s", "first_step", "last_step", "state")}

    def wait_for_training(self, run, num_starts):
        """Until that start has trained for 25 steps, past a checkpoint."""
        def trains():
            if not (run.folder / "goodput.csv").exists():
                return False
            lines = self.lines(run)
            return len(lines) == num_starts and lines[-1]["last_step"] >= lines[-1]["first_step"] + 25
        wait_for(trains, f"training in start {num_starts}")

    def disturb(self, run, number, what):
        """Kills a rank or lets it hang, in training. Returns the seconds from then to the start of the next ranks."""
        self.wait_for_training(run, number + 1)
        pids = run.rank_pids()
        time.sleep(random.Random(number).uniform(0, 0.2))
        at = now()
        os.kill(pids[number % 2], what)
        after = wait_for(lambda: not set(found := list(run.rank_pids().values())) & set(pids.values()) and found, "other ranks")
        return start_of(after) - at

    def test_causes_are_those_that_the_test_has_measured(self):
        [(kills, stops)] = rounds([(1, 1)], [(20, 2)])[-1:]
        config = self.folder / "run.yaml"
        config.write_text(CONFIG)
        begin, stalled_before_s = now(), patience.stalled_s()

        def start(max_steps):
            return self.supervise(config=config, sets=[f"train.max_steps={max_steps}", "eval.every_epochs=0"], arguments=["--max-restarts", 100])
        run = start(100_000)
        wanted = {"down": 0.0, "hang": 0.0, "queue": 0.0}
        for number in range(kills):
            wanted["down"] += self.disturb(run, number, signal.SIGKILL)
        wanted["hang"] = self.disturb(run, kills, signal.SIGSTOP)
        logs = []
        for number in range(stops):
            self.wait_for_training(run, kills + 2 + number)
            run.process.send_signal(signal.SIGUSR1)
            self.assertEqual(run.wait().code, 75, run.log)
            logs.append(run.log)
            stopped = self.lines(run)[-1]["end_s"]
            time.sleep(1)
            run = start(100_000)
            wanted["queue"] += start_of(run.rank_pids().values()) - stopped
        self.wait_for_training(run, kills + 2 + stops)
        run.process.send_signal(signal.SIGUSR1)
        self.assertEqual(run.wait().code, 75, run.log)
        logs.append(run.log)
        stopped = self.lines(run)[-1]
        # To the end, with five evaluations.
        last = int(stopped["last_step"]) + 50
        run = self.supervise(config=config, sets=[f"train.max_steps={last}", "eval.every_epochs=1"]).wait()
        end = now()
        self.assertEqual(run.code, 0, run.log)
        logs.append(run.log)
        lines, found = self.lines(run), self.totals(run)
        wanted["queue"] += lines[-1]["queue"]  # the time between these two is the file's own
        log = "".join(logs)
        wanted["evaluation"] = sum(map(float, re.findall(r"\[eval\] step .* \(([\d.]+) s\)", log)))
        # Every step of every start waited for rank 1.
        num_steps = sum(line["last_step"] - line["first_step"] for line in lines)
        wanted["straggler"] = num_steps * BATCH * SLOW_S
        print("\n" + "".join(f"{key}: {found[key]:.2f} s, wanted {value:.2f}\n" for key, value in wanted.items()))
        self.assertEqual(len(lines), kills + 1 + stops + 2)
        # What waits for a processor is longer than this test knows.
        slack_s = GRAIN_S * len(lines) / 2 + patience.stalled_s() - stalled_before_s
        for key, value in wanted.items():
            self.assertAlmostEqual(found[key], value, delta=0.05 * value + slack_s, msg=f"{key}: {re.findall('the ranks ended with.*', log)}")
        # Before and after the ranks there are the supervisor's own start and end.
        wall = sum(found.values())
        self.assertAlmostEqual(wall, end - begin, delta=0.01 * (end - begin) + 2 + slack_s)
        self.assertAlmostEqual(wall, lines[-1]["end_s"] - lines[0]["end_s"] + sum(lines[0][key] for key in found), delta=0.01 * wall)
        # Steps after the checkpoint from which the run continued.
        self.assertGreater(found["repeated_work"], 0)
        ratio = found["productive"] / (wall - found["queue"])
        self.assertAlmostEqual(run.summary()["goodput"]["ratio"], ratio, delta=0.01)
        page = run.last_page(0)
        self.assertAlmostEqual(metric(page, "lockstep_goodput_ratio"), ratio, delta=0.01)
        self.assertAlmostEqual(metric(page, "lockstep_lost_seconds_total", cause="down"), found["down"], delta=0.01)
        said = self.tool("goodput", run.folder)
        print(said)
        self.assertRegex(said, rf"{100 * ratio:.1f} % of .* was training: {last} steps, {len(lines)} starts")

    def test_a_folder_without_a_run(self):
        self.assertIn("no such file", self.tool("goodput", self.folder, expect=66))


if __name__ == "__main__":
    unittest.main()
