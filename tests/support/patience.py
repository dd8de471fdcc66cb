"""Time limits of tests. Time in which programs waited for a processor does not count against them.

The kernel says how long that was: `some` of /proc/pressure/cpu. A kernel that does not say it needs LOCKSTEP_TEST_PATIENCE, a factor for
every limit. Sanitizers need that factor too. tests/support/patience.h is the same for C++.
"""
import contextlib
import os
import re
import subprocess
import time

FACTOR = float(os.environ.get("LOCKSTEP_TEST_PATIENCE") or 1)
MOST = 8  # a limit is extended to at most so many times itself, so that a test that waits for nothing ends
PRESSURE = "/proc/pressure/cpu"


def stalled_s():
    """Seconds since the start of this machine in which a program waited for a processor. 0 if the kernel does not say it."""
    try:
        with open(PRESSURE) as file:
            return int(re.search(r"some .*total=(\d+)", file.read())[1]) / 1e6
    except OSError:
        return 0.0


class Patience:
    """A limit that begins now."""

    def __init__(self, limit_s):
        self.limit_s = limit_s * FACTOR
        self.begin_s, self.stalled_before_s = time.monotonic(), stalled_s()

    def passed_s(self):
        return time.monotonic() - self.begin_s

    def allowed_s(self):
        return min(self.limit_s + stalled_s() - self.stalled_before_s, MOST * self.limit_s)

    def is_over(self):
        return self.passed_s() > self.allowed_s()

    def __str__(self):
        return f"{self.passed_s():.1f} s, {self.limit_s:g} s and {self.allowed_s() - self.limit_s:.1f} s for want of a processor are allowed"


@contextlib.contextmanager
def within(limit_s, what):
    """The block must end in that time."""
    patience = Patience(limit_s)
    yield patience
    assert not patience.is_over(), f"{what} took {patience}"


def wait_for(condition, what, timeout_s=60):
    """The first true result. Asks every 10 ms, less often if a look takes long: at most a quarter of a core is used."""
    patience = Patience(timeout_s)
    while True:
        is_over, begin_s = patience.is_over(), time.monotonic()
        if result := condition():
            return result
        if is_over:
            raise AssertionError(f"waited for {what}: {patience}")
        time.sleep(min(max(0.01, 3 * (time.monotonic() - begin_s)), 0.2))


def stays(condition, what, time_s):
    """The condition holds now and for so long. A machine without a free processor makes it longer."""
    patience = Patience(time_s)
    while not patience.is_over():
        if not condition():
            raise AssertionError(f"{what}: no longer after {patience.passed_s():.2f} s")
        time.sleep(0.01)


def communicate(process, limit_s):
    """Output of the process until it ends. subprocess.TimeoutExpired if that takes longer."""
    patience = Patience(limit_s)
    while True:
        try:
            return process.communicate(timeout=max(0.1, patience.allowed_s() - patience.passed_s()))[0]
        except subprocess.TimeoutExpired:
            if patience.is_over():
                raise
