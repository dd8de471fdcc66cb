"""Disks that fail under a small job (small_job.py), and what must hold: training continues, no files are left."""
import re

from harness import metric
from small_job import debris_in, saves_in

FAILED = "could not be saved: "       # in the warning of a save that failed
UNTIDY = "is saved, but: "            # of one that is committed, where something behind it failed


def check_hindered(job, start, expected):
    """Checks a run whose disk failed now and then. Returns (saves that failed, saves that left files for a while)."""
    log = start.log()
    failed = log.count(FAILED)
    last_failed = start.code == 74
    if start.code not in (0, 74):
        raise AssertionError(f"training did not go on, it ended with {start.code}: {log}")
    if job.result() != expected:
        raise AssertionError(f"a failed save changed what was learnt: {log}")
    counted = metric((job.folder / "logs" / "rank0.prom").read_text(), "lockstep_checkpoint_save_failures_total")
    if counted != failed:
        raise AssertionError(f"{counted} failed saves are counted, the log tells of {failed}: {log}")
    if last_failed and not re.search(rf"ckpt-{expected['steps']} {FAILED}", log):
        raise AssertionError(f"ended with 74, and the last save did not fail: {log}")
    there = job.require_nothing_lost(start.told)  # an index may be seen whose sync then fails
    if not last_failed and expected["steps"] not in there:
        raise AssertionError(f"the last save is not there, only {there}: {log}")
    return failed, log.count(UNTIDY)


def check_tidied(job, expected):
    """The next successful save, if there was none since, removes files that faults left."""
    if debris_in(job.saves) or expected["steps"] not in saves_in(job.saves):
        again = job.start(more=[f"train.max_steps={expected['steps'] + 1}"]).wait()
        if again.code != 0 or debris_in(job.saves):
            raise AssertionError(f"code {again.code}, left lying about: {debris_in(job.saves)}: {again.log()}")
