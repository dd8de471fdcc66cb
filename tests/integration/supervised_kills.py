"""Kills at random moments under `lockstep run`, for tools/soak: launch_test.py has three of them at moments that are chosen."""
import collections
import itertools
import os
import signal
import subprocess
import time

from harness import DIGITS, LOCKSTEP, SOURCE, Run, wait_for
from supervised import processes_of

SETS = ["checkpoint.save_checkpoints_steps=20", "eval.every_epochs=0", "metrics.listen='off'", "run.threads=1", "summary.tensorboard=false"]
# 6,000 steps of batches of 64; masks are computed again at about every second save.
RECIPE = """version: 1.0.0
modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 261}
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.05, final_sparsity: 0.85, start_epoch: 1, end_epoch: 250, update_frequency: 1}
"""
WHOM = ("a rank", "all ranks", "mpirun", "a rank that starts")
PAUSE_S = 0.5  # a kill comes at most so long after both ranks train


def supervise(folder, ranks=2, spares=0, sets=()):
    command = [LOCKSTEP, "run", DIGITS, "-n", ranks, "--max-restarts", 100, "--spare", spares]
    folder.parent.mkdir(parents=True, exist_ok=True)
    recipe = folder.parent / "supervised.yaml"
    recipe.write_text(RECIPE)
    for one in (*SETS, *sets, f"run.project_dir={folder}", f"recipe={recipe}"):
        command += ["--set", one]
    with open(folder.parent / f"{folder.name}.log", "wb") as log:
        process = subprocess.Popen([*map(str, command)], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=SOURCE)
    return Run(process, folder)


def ranks_in(run, before):
    """Processes of the run that are ranks and not of a start before."""
    def is_rank(pid):
        try:
            return b"OMPI_COMM_WORLD_RANK=" in open(f"/proc/{pid}/environ", "rb").read()
        except OSError:
            return False
    return [pid for pid in processes_of(run.folder) if pid not in before and is_rank(pid)]


def victims(run, whom, random, before):
    if whom == "a rank that starts":
        return random.sample(wait_for(lambda: ranks_in(run, before), "a new rank"), 1)
    pids = wait_for(lambda: (found := [*run.rank_pids().values()]) and not set(found) & before and found, "both ranks to train")
    time.sleep(random.uniform(0, PAUSE_S))
    if whom == "mpirun":
        return [int(open(f"/proc/{pids[0]}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()[1])]
    return pids if whom == "all ranks" else random.sample(pids, 1)


def kill_again_and_again(run, random, number, spares=0):
    """Counts of each kind; raises AssertionError if the run ends before, or does not recover. With spares none is killed while it starts: it
    could be one that waits."""
    counts, before = collections.Counter(), set()
    for whom in itertools.islice(itertools.cycle(WHOM[:-1] if spares else WHOM), number):
        chosen = victims(run, whom, random, before)
        # A spare takes the place of one rank; after the other kills all ranks are new.
        before |= {*(chosen if spares and whom == "a rank" else ranks_in(run, set()))}
        if run.process.poll() is not None:
            raise AssertionError(f"the run ended with {run.process.returncode} before kill {sum(counts.values()) + 1}")
        for pid in chosen:
            os.kill(pid, signal.SIGKILL)
        counts[whom] += 1
    return counts


def lose_ranks(run, random, number, share_of_hangs):
    """Kills ranks at random moments, or stops them, each when a spare process has taken the place of the one before. Counts of both."""
    counts, gone = collections.Counter(), set()
    for _ in range(number):
        pids = wait_for(lambda: (found := [*run.rank_pids().values()]) and not set(found) & gone and found, "all ranks to train")
        time.sleep(random.uniform(0, PAUSE_S))
        is_hang = random.random() < share_of_hangs
        pid = random.choice(sorted(pids))
        if run.process.poll() is not None:
            raise AssertionError(f"the run ended with {run.process.returncode} before loss {sum(counts.values()) + 1}")
        os.kill(pid, signal.SIGSTOP if is_hang else signal.SIGKILL)
        gone.add(pid)
        counts["hangs" if is_hang else "kills"] += 1
    return counts
