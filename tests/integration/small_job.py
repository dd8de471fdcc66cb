"""A small training job that is killed, disturbed and resumed: used by faults_test.py and tools/soak.

LOCKSTEP_BUILD names the build folder, as for harness.py.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

from harness import BUILD, FAULTY_RANK, LOCKSTEP, LOCKSTEPD, MPIRUN, SOURCE
from patience import Patience, stalled_s

FAULT_CALLS = BUILD / "tests" / "integration" / "libfault_calls.so"
STEPS, EVERY, KEEP = 72, 6, 3
RANKS = 2
ANSWER_S = 600  # on a machine with much else to do
GONE_S = 10     # after one rank is killed the others, and mpirun, are gone within this

# Prunes from step 24 on, so that masks are part of what must come back.
RECIPE = """version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.1, final_sparsity: 0.6, start_step: 24, end_step: 90, update_frequency_steps: 6}
"""


def saves_in(folder):
    """Numbers of the committed saves of a folder, ascending."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(name[len("model.ckpt-"):-len(".index")]) for name in names
                  if name.startswith("model.ckpt-") and name.endswith(".index"))


def debris_in(folder):
    """Files that belong to no committed save."""
    saves = saves_in(folder)
    whole = {f"model.ckpt-{save}" for save in saves}
    return sorted(name for name in os.listdir(folder)
                  if name.endswith(".tmp") or (name.startswith("model.ckpt-") and name.rsplit(".", 1)[0] not in whole))


def is_running(pid, of_folder):
    """True if a process of the job in that folder has this number; numbers are reused."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state not in "ZX" and str(of_folder) in pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


class Start:
    """One start of the job, watched from outside: which saves were ever seen committed, and the processes of the ranks."""

    def __init__(self, command, environment, folder, log):
        self.folder, self.log_file = folder, log
        self.saves_folder = folder / "checkpoints"
        self.seen, self.code = set(saves_in(self.saves_folder)), None
        self.pids, self.first_gone_at, self.stalled_before_s = set(), None, 0
        with open(log, "wb") as out:
            self.process = subprocess.Popen([*map(str, command)], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                            cwd=SOURCE, env={**os.environ, **environment})
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self):
        while not self._over.is_set():
            for _ in range(10):
                self.seen.update(saves_in(self.saves_folder))
                time.sleep(0.002)
            self.pids.update(children(self.process.pid), [self.process.pid])
            # Not of self.pids: while the job starts there are others for a moment, which look for cores and exec mpirun.
            members = [self.process.pid, *self.rank_pids()]
            if self.first_gone_at is None and not all(is_running(pid, self.folder) for pid in members):
                self.first_gone_at, self.stalled_before_s = time.monotonic(), stalled_s()

    def log(self):
        return self.log_file.read_text(errors="replace")

    def rank_pids(self):
        """Process of each rank that is known, by rank."""
        found = dict(map(int, pair) for pair in re.findall(r"\[start\] rank (\d+) of .* pid (\d+)", self.log()))
        return [found[rank] for rank in sorted(found)]

    def until_training(self):
        return self.until(lambda: len(self.rank_pids()) == RANKS and "[start] run " in self.log())

    def survivors(self):
        return [pid for pid in [*self.pids] if is_running(pid, self.folder)]

    def until(self, condition, timeout_s=ANSWER_S):
        """True once it holds; False if the job ends before."""
        patience = Patience(timeout_s)
        while not condition():
            if self.process.poll() is not None:
                return bool(condition())
            if patience.is_over():
                raise AssertionError(f"the job did not come that far: {patience}: {self.log()}")
            time.sleep(0.005)
        return True

    def wait(self, timeout_s=ANSWER_S):
        """Waits until all of its processes have ended. self.survived_s: seconds between the end of the first and of the last."""
        try:
            self.code = self.process.wait(timeout_s)
            patience = Patience(GONE_S)
            gone_at = time.monotonic()
            while self.survivors() and not patience.is_over():
                time.sleep(0.005)
            self.survived_s = time.monotonic() - (self.first_gone_at or gone_at)
            left = self.survivors()
        finally:
            self.end()
        if left or self.survived_s > GONE_S + stalled_s() - self.stalled_before_s:
            raise AssertionError(f"processes {left} outlived the first by {self.survived_s:.1f} s: {self.log()}")
        self.told = set(map(int, re.findall(r"saved step (\d+):", self.log())))
        return self

    def end(self):
        """Ends every process of the job in any case."""
        self._over.set()
        self._watcher.join()
        for pid in self.survivors():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def resumed_from(self):
        found = re.search(r"resuming from step (\d+) ", self.log())
        return int(found[1]) if found else 0


class Job:
    """One run's folder and the command that starts it, and starts it again."""

    def __init__(self, folder, steps=STEPS, every=EVERY, keep=KEEP, sets=()):
        self.base = pathlib.Path(folder)
        self.base.mkdir(parents=True, exist_ok=True)
        self.folder, self.num_starts = self.base / "run", 0
        self.saves = self.folder / "checkpoints"
        recipe = self.base / "recipe.yaml"
        recipe.write_text(RECIPE)
        self.sets = [f"run.project_dir={self.folder}", f"recipe={recipe}", f"train.max_steps={steps}", "run.threads=1",
                     f"checkpoint.save_checkpoints_steps={every}", f"checkpoint.keep_checkpoint_max={keep}",
                     "metrics.listen='127.0.0.1:0'", "summary.tensorboard=false", "summary.progress_secs=0", "data.eval=null",
                     *sets]
        self.keep = keep

    def start(self, program=LOCKSTEPD, environment=None, more=()):
        command = [MPIRUN, RANKS, program, "--config", SOURCE / "configs" / "digits.yaml"]
        for one in [*self.sets, *more]:
            command += ["--set", one]
        self.num_starts += 1
        return Start(command, environment or {}, self.folder, self.base / f"start{self.num_starts}.log")

    def start_faulty(self, action, rank, phase=None, when="1", more=()):
        fault = {"LOCKSTEP_TEST_ACTION": action, "LOCKSTEP_TEST_RANK": str(rank), "LOCKSTEP_TEST_STEP": str(when)}
        if phase is not None:
            fault["LOCKSTEP_TEST_PHASE"] = str(PHASES.index(phase))
        return self.start(FAULTY_RANK, fault, more)

    def start_struck(self, rank, what, at, call="any", path="/checkpoints"):
        """`what` (ENOSPC, EIO, KILL, ...) happens at such a call of that rank (fault_calls.cpp)."""
        environment = {"LD_PRELOAD": str(FAULT_CALLS), "LOCKSTEP_FAULT_RANK": str(rank), "LOCKSTEP_FAULT_PATH": path,
                       "LOCKSTEP_FAULT_CALL": call, "LOCKSTEP_FAULT_AT": str(at), "LOCKSTEP_FAULT_DO": what,
                       "LOCKSTEP_FAULT_REPORT": str(self.base / "struck.txt")}
        return self.start(environment=environment)

    def struck(self):
        """Calls that were struck so far: (call, number, path)."""
        report = self.base / "struck.txt"
        lines = report.read_text().splitlines() if report.exists() else []
        return [(call, int(number), path) for call, number, path in (line.split(" ", 2) for line in lines)]

    def result(self):
        """Result that an unbroken run and a resumed one must have in common."""
        summary = json.loads((self.folder / "summary.json").read_text())
        return {"steps": summary["steps"], "parameters_sha256": summary["parameters_sha256"], "sparsity": summary["sparsity"],
                "curve": (self.folder / "train" / "steps.csv").read_text()}

    def require_nothing_lost(self, seen):
        """Every save that was ever seen is there, unless `keep` newer ones are, and whatever is there is sound."""
        there = saves_in(self.saves)
        for number in seen:
            if number not in there and sum(newer > number for newer in there) < self.keep:
                raise AssertionError(f"save {number} was committed and is gone; there are {there}")
        if there:
            verdict = subprocess.run([LOCKSTEP, "ckpt", "verify", self.saves], capture_output=True, text=True, timeout=ANSWER_S)
            text = verdict.stdout + verdict.stderr
            if verdict.returncode != 0 or text.count(": sound") != len(there):
                raise AssertionError(f"{there} are not all sound: {text}")
        return there

    def go_on_to_the_end(self, expected):
        """The same command again, until finished; the end must be that of an unbroken run."""
        newest = max(saves_in(self.saves), default=0)
        start = self.start().wait()
        if start.code != 0:
            raise AssertionError(f"the resumed run ended with {start.code}: {start.log()}")
        if start.resumed_from() != newest:
            raise AssertionError(f"resumed from {start.resumed_from()}, the newest save was {newest}: {start.log()}")
        result = self.result()
        if result != expected:
            raise AssertionError(f"the resumed run differs: {difference(result, expected)}")
        if debris_in(self.saves):
            raise AssertionError(f"left lying about: {debris_in(self.saves)}")


def difference(result, expected):
    texts = [f"{key} {result[key]}, not {expected[key]}" for key in expected if key != "curve" and result[key] != expected[key]]
    lines = zip(result["curve"].splitlines(), expected["curve"].splitlines())
    texts += [f"line '{a}', not '{b}'" for a, b in lines if a != b][:1]
    return "; ".join(texts) or "number of lines in steps.csv"


# checkpoint::SavePhase, in order, and the ranks that reach it
PHASES = ["staged", "shard_written", "entries_agreed", "index_written", "old_removed", "shard_renamed", "committed", "read_back",
          "state_written", "done"]
OF_RANK_0 = {"index_written", "old_removed", "committed", "state_written", "done"}
EACH_PHASE = [(phase, 0 if phase in OF_RANK_0 else at % RANKS) for at, phase in enumerate(PHASES)]  # on one rank each
EVERY_PHASE = [(phase, rank) for phase in PHASES for rank in range(RANKS) if rank == 0 or phase not in OF_RANK_0]
