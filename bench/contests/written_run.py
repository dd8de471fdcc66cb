"""A run that writes a point of every curve and a line of its log at every step, compared with one that writes none: for bench/run.

stderr is a pipe that nobody reads, which is full after some seconds: a step that waited for it would never end.
"""
import json
import os
import pathlib
import subprocess
import tempfile

from contests import Row, in_turn

SOURCE = pathlib.Path(__file__).resolve().parents[2]
NUM_STEPS = 6000
WRITTEN = ("summary.tensorboard=true", "summary.save_summary_steps=1", "summary.flush_secs=0", "summary.progress_secs=0.001")
UNWRITTEN = ("summary.tensorboard=false", "summary.progress_secs=0")


def seconds(build, sets):
    """Seconds of 1000 samples on one rank."""
    with tempfile.TemporaryDirectory() as folder:
        command = [build / "bin/lockstepd", "--config", SOURCE / "bench/digits.yaml"]
        for one in (f"run.project_dir={folder}/run", "run.threads=1", f"train.max_steps={NUM_STEPS}", *sets):
            command += ["--set", one]
        unread, full = os.pipe()
        try:
            done = subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=full, check=False)
        finally:
            os.close(full)
            os.close(unread)
        if done.returncode != 0:
            raise SystemExit(f"the run ended with {done.returncode}: {pathlib.Path(folder, 'run/logs/rank0.log').read_text()[-2000:]}")
        return 1e3 / json.loads(pathlib.Path(folder, "run/summary.json").read_text())["samples_per_second"]


def measure(build, number):
    sets = {"1000 samples, written": WRITTEN, "1000 samples, unwritten": UNWRITTEN}
    found = {name: seconds(build, sets[name]) for name in in_turn(sets, number)}
    return {name: found[name] for name in sets}


ROWS = [Row("time lost to curves and log lines at every step", lambda times: 100 * (times["1000 samples, written"] / times["1000 samples, unwritten"] - 1), unit="%")]
