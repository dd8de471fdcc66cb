"""Common part of the integration tests: start lockstepd under mpirun, read its files.

LOCKSTEP_BUILD names the build folder. Every test gets a folder of its own; ports are free ones (metrics.listen port 0).
"""
import contextlib
import copy
import csv
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

import moved_series

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/support"))
from patience import Patience, communicate, stays, wait_for, within  # noqa: E402,F401  (tests import them from here)
from skips import missing_tool  # noqa: E402

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD"])
LOCKSTEPD = BUILD / "bin" / "lockstepd"
LOCKSTEP = BUILD / "bin" / "lockstep"
FAULTY_RANK = BUILD / "tests" / "integration" / "faulty_rank"
MPIRUN = SOURCE / "launch" / "mpirun.sh"
DIGITS = SOURCE / "configs" / "digits.yaml"
ENDLESS = pathlib.Path(__file__).parent / "programs/endless.yaml"
PRUNE_EARLY = f"recipe={pathlib.Path(__file__).parent / 'programs/prune_early.yaml'}"  # a setting: weights are pruned from step 23 on
ANSWER_S = 100  # no command of these tests takes this long


class SocketConnection(http.client.HTTPConnection):
    """Connection to a Unix socket, whose path may be long."""
    def __init__(self, path):
        super().__init__("localhost", timeout=ANSWER_S)
        self.path = pathlib.Path(path)

    def connect(self):
        folder = os.open(self.path.parent, os.O_PATH)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(f"/proc/self/fd/{folder}/{self.path.name}")
        finally:
            os.close(folder)


class Run:
    """A finished or running `mpirun -n ranks lockstepd`."""

    def __init__(self, process, folder):
        self.process, self.folder = process, pathlib.Path(folder)
        self.code, self.log = None, ""

    def wait(self, timeout_s=ANSWER_S):
        self.log = communicate(self.process, timeout_s)
        self.code = self.process.returncode
        self.record_series()
        return self

    def record_series(self):
        for page in self.folder.glob("logs/rank*.prom"):
            moved_series.record(BUILD, page.read_text())

    def summary(self):
        return json.loads((self.folder / "summary.json").read_text())

    def steps(self):
        with open(self.folder / "train" / "steps.csv") as file:
            return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]

    def last_page(self, rank):
        return (self.folder / "logs" / f"rank{rank}.prom").read_text()

    def rank_pids(self, timeout_s=60):
        """Process numbers by rank, from the log files; waits until every rank has started."""
        def read():
            pids, num_ranks = {}, None
            for path in self.folder.glob("logs/rank*.log"):
                found = re.findall(r"\[start\] rank (\d+) of (\d+).* pid (\d+)", path.read_text())
                if found:
                    pids[int(found[-1][0])] = int(found[-1][2])
                    num_ranks = int(found[-1][1])
            return pids if len(pids) == num_ranks else {}
        return wait_for(lambda: (pids := read()) and alive(pids.values()) and pids, "ranks to start", timeout_s)

    def ctl(self, *words):
        """Output of `lockstep ctl` for this run; code and text if it is refused."""
        done = subprocess.run([LOCKSTEP, "ctl", self.folder, *map(str, words)], capture_output=True, text=True, timeout=ANSWER_S, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else (done.returncode, done.stderr)

    def ask(self, method, target, headers=(), body=None):
        """Status and text that rank 0 answers at the socket in the run's folder."""
        with contextlib.closing(SocketConnection(self.folder / "control.sock")) as connection:
            connection.request(method, target, body=body, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def status(self):
        """Answer of rank 0 to /control/status, without starting a program; None if it does not answer (yet)."""
        try:
            return json.loads(self.ask("GET", "/control/status")[1])
        except (OSError, ValueError, http.client.HTTPException):  # no socket yet, no server
            return None

    def wait_for_status(self, what, **wanted):
        """Until the status has these values, or passes these functions."""
        def holds():
            status = self.status()
            if status is None:
                return None
            fits = all(one(status[name]) if callable(one) else status[name] == one for name, one in wanted.items())
            return status if fits else None
        return wait_for(holds, what)

    def wait_for_step(self, step):
        return self.wait_for_status(f"step {step}", step=lambda now: now >= step)

    def hold(self):
        """Pauses it at its first steps: from then on it is there, and leaves the cores to others."""
        self.wait_for_step(1)
        self.ctl("pause")
        return self.wait_for_status("the pause", state="paused")

    def wait_for_commit(self, step):
        """Until the save of at least this step is committed."""
        def newest():
            found = [int(path.stem.rsplit("-", 1)[1]) for path in self.folder.glob("checkpoints/model.ckpt-*.index")]
            return max(found, default=-1) >= step
        wait_for(newest, f"a save of step {step}")


def alive(pids):
    return all(os.path.exists(f"/proc/{pid}") for pid in pids)


def evaluated_steps(run):
    with open(run.folder / "train/evals.csv") as file:
        return [int(row["step"]) for row in csv.DictReader(file) if row["name"] == "loss"]


def saves_of(run):
    return sorted(int(path.stem.rsplit("-", 1)[1]) for path in run.folder.glob("checkpoints/model.ckpt-*.index"))


def faked_time(clock_file):
    """The environment of a process whose clocks are ahead by what the file holds ("+31\n": seconds). Skips the test without libfaketime."""
    library = pathlib.Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
    if not library.exists():
        missing_tool(f"no {library}; tools/setup test installs it")
    return {"LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(clock_file), "FAKETIME_NO_CACHE": "1"}


def metric(page, name, **labels):
    """Sum of the series of this name whose labels match."""
    total = found = 0
    for line in page.splitlines():
        match = re.match(r"^([a-z_]+)(\{.*\})? (\S+)$", line)
        if match and match[1] == name and all(f'{k}="{v}"' in (match[2] or "") for k, v in labels.items()):
            total, found = total + float(match[3]), found + 1
    assert found, f"no series {name} {labels}"
    return total


class LockstepTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.shared_folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-it-"))
        cls.addClassCleanup(shutil.rmtree, cls.shared_folder, ignore_errors=True)
        cls.shared_runs = {}

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-it-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.started = []
        self.addCleanup(self._end_all)

    def _end_all(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def recipe(self, text, name="recipe.yaml"):
        """The setting that names a recipe of this text."""
        path = self.folder / name
        path.write_text(text)
        return f"recipe={path}"

    def start(self, ranks=2, config=DIGITS, run="run", sets=(), arguments=(), program=LOCKSTEPD, environment=None):
        """One compute thread a rank, unless `sets` says otherwise: threads of several ranks would fight for few cores. Without `config`
        `arguments` are flags that describe the run."""
        folder = self.folder / run
        what = ["--model_dir", folder] if config is None else ["--config", config, "--set", f"run.project_dir={folder}"]
        command = [MPIRUN, str(ranks), program, *what, "--set", "metrics.listen='127.0.0.1:0'", "--set", "run.threads=1"]
        for one in sets:
            command += ["--set", one]
        process = subprocess.Popen([*map(str, command), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, text=True, cwd=SOURCE,
                                   env={**os.environ, **(environment or {})})
        self.started.append(process)
        return Run(process, folder)

    def start_faulty(self, action, rank, step, ranks=2, environment=None, **kwargs):
        """A run whose rank `rank` does `action` (see faulty_rank.cpp) once `step` updates are done."""
        fault = {"LOCKSTEP_TEST_ACTION": action, "LOCKSTEP_TEST_RANK": str(rank), "LOCKSTEP_TEST_STEP": str(step)}
        return self.start(ranks, program=FAULTY_RANK, environment={**fault, **(environment or {})}, **kwargs)

    def train(self, *args, expect=0, **kwargs):
        run = self.start(*args, **kwargs).wait()
        self.assertEqual(run.code, expect, run.log)
        return run

    def shared(self, name, *args, **kwargs):
        """train(), once for all tests of a file that name this run. None of them may change it."""
        if name not in self.shared_runs:
            self.shared_runs[name] = self.train(*args, run=self.shared_folder / name, **kwargs)
        return self.shared_runs[name]

    def copy_of_shared(self, name, *args, **kwargs):
        """The same, as this test's own: the folder "run" is a copy."""
        run = copy.copy(self.shared(name, *args, **kwargs))
        run.folder = self.folder / "run"
        shutil.copytree(self.shared_folder / name, run.folder)
        return run

    def tool(self, *arguments, expect=0, timeout_s=ANSWER_S):
        done = subprocess.run([LOCKSTEP, *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s, cwd=SOURCE)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr
