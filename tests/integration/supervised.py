"""Common part of the tests of `lockstep run`: a supervised run, and whether any part of it is left."""
import os
import pathlib
import re
import signal
import subprocess

from harness import DIGITS, LOCKSTEP, SOURCE, LockstepTest, Run, wait_for


def processes_of(folder):
    """Process numbers whose command line names the folder, zombies left out."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass  # it has ended meanwhile
    return found


class SupervisedTest(LockstepTest):
    def supervise(self, ranks=2, config=DIGITS, run="run", sets=(), arguments=(), environment=None, before=()):
        """`lockstep run` as it is started by hand, in a session of its own; `before` stands before the command."""
        folder = self.folder / run
        command = [*before, LOCKSTEP, "run", config, "-n", ranks, "--set", f"run.project_dir={folder}", "--set",
                   "metrics.listen='127.0.0.1:0'", "--set", "run.threads=1"]
        for one in sets:
            command += ["--set", one]
        process = subprocess.Popen([*map(str, command), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, text=True, cwd=SOURCE, env={**os.environ, **(environment or {})})
        self.started.append(process)
        self.addCleanup(self._end_processes_of, folder)
        return Run(process, folder)

    @staticmethod
    def _end_processes_of(folder):
        for pid in processes_of(folder):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def assert_nothing_runs(self, run):
        wait_for(lambda: not processes_of(run.folder), "all processes of the run to end", timeout_s=10)

    @staticmethod
    def restarts_of(run):
        return len(re.findall(r"\[launch\] the ranks ended with .*: restart", run.log))
