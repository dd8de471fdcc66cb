"""Limits of a container: a CPU quota bounds the compute threads, a memory limit is reported as the host's memory."""
import os
import pathlib
import subprocess
import sys
import unittest

from harness import DIGITS, LOCKSTEP, LOCKSTEPD, SOURCE, LockstepTest
sys.path.insert(0, str(SOURCE / "tests/support"))
from skips import skip

ROOT = pathlib.Path("/sys/fs/cgroup")


class Container(LockstepTest):
    def group(self, controller, **limits):
        """A control group with these limits, which this test may put processes into; skips where the system gives none."""
        is_v2 = (ROOT / "cgroup.controllers").exists()
        folder = (ROOT if is_v2 else ROOT / controller) / f"lockstep-test-{os.getpid()}-{len(limits)}"
        try:
            folder.mkdir()
            self.addCleanup(lambda: folder.rmdir() if folder.exists() else None)
            for name, value in limits["v2" if is_v2 else "v1"].items():
                (folder / name).write_text(str(value))
        except OSError as fault:
            skip(f"no control group of {controller} can be made here: {fault}")
        return folder

    def run_in(self, group, *command):
        """The output of a command whose process is in this group from its first instruction on."""
        done = subprocess.run(["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', group, *map(str, command)], capture_output=True, text=True,
                              cwd=SOURCE, timeout=100, check=False, env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        return done.stdout + done.stderr

    def test_a_cpu_quota_bounds_the_compute_threads(self):
        if len(os.sched_getaffinity(0)) < 2:
            skip("one core: nothing to be bounded")
        group = self.group("cpu", v2={"cpu.max": "100000 100000"}, v1={"cpu.cfs_period_us": 100000, "cpu.cfs_quota_us": 100000})
        said = self.run_in(group, LOCKSTEPD, "--config", DIGITS, "--set", "metrics.listen='off'", "--set", f"run.project_dir={self.folder / 'run'}",
                           "--set", "train.max_steps=2", "--set", "eval.every_epochs=0", "--set", "recipe=null")
        self.assertIn("[start] 1 compute thread(s) a rank, by the container's CPU quota of 1; not bound", said)
        self.assertRegex(self.run_in(group, LOCKSTEP, "doctor", "-n", 1), r"cores .*CPU quota of the container: 1\n")

    def test_a_memory_limit_is_the_memory_that_there_is(self):
        group = self.group("memory", v2={"memory.max": 3 << 30}, v1={"memory.limit_in_bytes": 3 << 30})
        self.assertRegex(self.run_in(group, LOCKSTEP, "doctor", "-n", 1), r"memory .*3\.0 GiB, the limit of the container\n")


if __name__ == "__main__":
    unittest.main()
