"""Ways to kill a small job (small_job.py), and what must hold after each."""
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field

from small_job import EVERY, EVERY_PHASE, RANKS, STEPS

# Calls that one save makes in one thread, at most, by rank: strace counts by thread, and each save has threads of its own.
CALLS_OF_A_SAVE = {0: {"pwrite64": 1, "fallocate": 1, "ftruncate": 1, "fsync": 7, "rename": 3, "unlink": 6},
                   1: {"pwrite64": 1, "fallocate": 1, "ftruncate": 1, "fsync": 2, "rename": 1, "unlink": 1}}
CALLS_BEFORE_THE_END = {0: 320, 1: 120}  # calls on files of saves that a rank makes, about


@dataclass
class Kill:
    """A way to kill a job. `text` describes it; do(job) starts it and returns the Start, killed or about to be."""
    text: str
    do: object


@dataclass
class Counts:
    kills: dict = field(default_factory=dict)  # by kind
    saves_checked: int = 0
    identical: int = 0
    missed: int = 0   # the job ended before it was killed
    slowest_s: float = 0
    faults: list = field(default_factory=list)


def at_a_random_moment(random, whom):
    save, pause_s, rank = random.randrange(0, STEPS - EVERY, EVERY), random.uniform(0, 0.12), random.randrange(RANKS)
    text = f"{f'rank {rank}' if whom == 'rank' else whom} killed {pause_s * 1000:.0f} ms after save {save}"

    def do(job):
        start = job.start()
        start.until_training()
        start.until(lambda: max(start.seen, default=0) >= save)
        time.sleep(pause_s)
        pids = {"rank": start.rank_pids()[rank:rank + 1], "all ranks": start.rank_pids(), "mpirun": [start.process.pid]}[whom]
        for pid in pids:
            if pid in start.survivors():
                os.kill(pid, signal.SIGKILL)
        return start
    return Kill(text, do)


def stopped_at_a_random_moment(random):
    """A rank hangs (SIGSTOP); its peers must not wait longer than sync.timeout_s."""
    save, pause_s, rank = random.randrange(0, STEPS - EVERY, EVERY), random.uniform(0, 0.12), random.randrange(RANKS)

    def do(job):
        start = job.start()
        start.until_training()
        start.until(lambda: max(start.seen, default=0) >= save)
        time.sleep(pause_s)
        for pid in start.rank_pids()[rank:rank + 1]:
            if pid in start.survivors():
                os.kill(pid, signal.SIGSTOP)
        return start
    return Kill(f"rank {rank} stopped {pause_s * 1000:.0f} ms after save {save}", do)


def at_a_phase(phase, rank, nth):
    return Kill(f"rank {rank} killed at phase {phase} of save {nth}", lambda job: job.start_faulty("kill", rank, phase, nth))


def at_the_nth_call(rank, nth):
    return Kill(f"rank {rank} killed before call {nth} on a file of a save", lambda job: job.start_struck(rank, "KILL", nth))


def by_strace(random, rank, call, nth):
    save = random.randrange(0, STEPS - 4 * EVERY, EVERY)

    def do(job):
        start = job.start()
        start.until_training()
        start.until(lambda: max(start.seen, default=0) >= save)
        tracer = subprocess.Popen(["strace", "-f", "-qqq", "-o", "/dev/null", "-p", str(start.rank_pids()[rank]), "-e", f"trace={call}",
                                   "-e", f"inject={call}:signal=SIGKILL:when={nth}"], stderr=subprocess.DEVNULL)
        start.until(lambda: start.process.poll() is not None)
        tracer.kill()  # it ends by itself, unless it came too late
        tracer.wait()
        return start
    return Kill(f"rank {rank} killed by strace at {call} {nth} of a save after save {save}", do)


def kills_at_random_moments(random):
    """Endless kills; for jobs with a short sync.timeout_s."""
    while True:
        for whom in ("rank", "all ranks", "mpirun"):
            yield whom, at_a_random_moment(random, whom)
        yield "stopped rank", stopped_at_a_random_moment(random)


def kills(random):
    """Endless kills: kinds in turn, so that each has its share for any number."""
    phases = []
    while True:
        for whom in ("rank", "all ranks", "mpirun"):
            yield whom, at_a_random_moment(random, whom)
        for _ in range(3):
            phases = phases or random.sample(EVERY_PHASE, len(EVERY_PHASE))
            phase, rank = phases.pop()
            yield "phase", at_a_phase(phase, rank, random.randrange(5 if phase == "read_back" else 1, 9))
        for _ in range(2):
            rank = random.randrange(RANKS)
            yield "call", at_the_nth_call(rank, random.randrange(1, CALLS_BEFORE_THE_END[rank]))
        if shutil.which("strace"):
            for _ in range(2):
                rank = random.randrange(RANKS)
                call = random.choice(list(CALLS_OF_A_SAVE[rank]))
                yield "strace", by_strace(random, rank, call, random.randrange(1, CALLS_OF_A_SAVE[rank][call] + 1))


def try_kill(kind, kill, job, expected, counts):
    """Kills the job once; committed saves must exist, and the job must resume from them. Raises AssertionError with the loss."""
    start = kill.do(job).wait()
    if start.code == 0:
        counts.missed += 1
        return False
    counts.kills[kind] = counts.kills.get(kind, 0) + 1
    counts.slowest_s = max(counts.slowest_s, start.survived_s)
    counts.saves_checked += len(job.require_nothing_lost(start.seen | start.told))
    job.go_on_to_the_end(expected)
    counts.identical += 1
    return True
