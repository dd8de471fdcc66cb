"""Memory of weights and optimizer state on 2 ranks of one host, with one copy and with two: for bench/run.

The proportional set size (PSS) of both ranks in training with Adam, with sync.share_weights off and on. Off, each rank holds the weights and two moments; what
on saves of these two copies is the row. Gradients, activations and programs are the same on both sides.
"""
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import runs
from contests import Row, in_turn
from local_contests import WIDE

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FIRST_STEP, START_S = 25, 120  # memory is as it stays
COPIES_BYTES = 2 * 3 * 4 * sum((a + 1) * b for a, b in zip(WIDE.widths, WIDE.widths[1:]))
MIB = 2**20


def pids_below(pid):
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [below for child in children for below in (int(child), *pids_below(int(child)))]


def pss_bytes(pid):
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def is_rank(pid, build):
    return os.readlink(f"/proc/{pid}/exe") == str(build / "bin/lockstepd")


def has_begun(steps_file):
    return steps_file.exists() and steps_file.read_text().count("\n") > FIRST_STEP


def memory(build, way):
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        steps_file = pathlib.Path(folder, "run/train/steps.csv")
        command = [SOURCE / "launch/mpirun.sh", 2, build / "bin/lockstepd", "--config", SOURCE / "bench/step.yaml"]
        for one in (*WIDE.settings(), "optimizer={type: adam, learning_rate: 0.001}", f"sync.share_weights={way}", f"run.project_dir={folder}/run",
                    "train.max_steps=1000000"):
            command += ["--set", one]
        run = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_S
            while not has_begun(steps_file):
                if time.monotonic() > deadline or run.poll() is not None:
                    raise runs.Failed("the run for the memory measurement did not start")
                time.sleep(0.2)
            return sum(pss_bytes(pid) for pid in pids_below(run.pid) if is_rank(pid, build))
        finally:
            if run.poll() is None:
                os.kill(run.pid, signal.SIGUSR1)
            run.wait(60)


def measure(build, number):
    found = {way: memory(build, way) for way in in_turn(("off", "on"), number)}
    return {f"PSS, share_weights {way}": num_bytes for way, num_bytes in found.items()}


def share_kept(sizes):
    return 1 - (sizes["PSS, share_weights off"] - sizes["PSS, share_weights on"]) / COPIES_BYTES


ROWS = [Row("weights and moments of 2 ranks / two copies of them", share_kept, 0.55, at_most=True),
        Row("PSS in all, off", lambda sizes: sizes["PSS, share_weights off"] / MIB, unit="MiB"),
        Row("PSS in all, on", lambda sizes: sizes["PSS, share_weights on"] / MIB, unit="MiB")]
HIDDEN = ("PSS, share_weights off", "PSS, share_weights on")
