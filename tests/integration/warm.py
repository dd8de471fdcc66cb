"""Runs and programs in Python whose processes have imported torch already, which takes each rank 1.5 s of CPU time.

Runs are jobs of servers (lockstepd serve), one server for each number of ranks and test file. A job gives the bits of a run of its own
(tests/integration/serve_test.py) and loads the user's modules anew. Programs are forks of one interpreter.
"""
import atexit
import json
import os
import pathlib
import signal
import subprocess
import tempfile

from harness import ANSWER_S, BUILD, DIGITS, LOCKSTEPD, MPIRUN, SOURCE, LockstepTest, Run, wait_for

FORKS = SOURCE / "tests/support/forked_python.py"


class Server:
    """lockstepd serve on so many ranks."""

    def __init__(self, num_ranks, folder):
        self.queue, self.num_jobs, self.said = folder / f"queue{num_ranks}", 0, open(folder / f"server{num_ranks}.log", "w+")
        command = [MPIRUN, num_ranks, LOCKSTEPD, "serve", "--queue", self.queue, "--listen", "off"]
        self.process = subprocess.Popen([*map(str, command)], stdout=self.said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=SOURCE)
        wait_for(lambda: (self.queue / "server.json").exists() or self.process.poll() is not None, "the server")

    def submit(self, config, sets, folder):
        """The file of a job as `lockstep submit` writes it, which imports torch for its check."""
        self.num_jobs += 1
        job = {"version": 1, "run": "job", "project_dir": str(folder), "file": str(config), "folder": str(SOURCE), "sets": list(map(str, sets)),
               "estimator": "", "flags": [], "submitted": "", "tries": 0, "last_save": "", "text": pathlib.Path(config).read_text()}
        new = self.queue / "new.json"
        new.write_text(json.dumps(job))
        new.rename(self.queue / f"queued/{self.num_jobs}.json")
        return Job(self, self.queue / f"jobs/{self.num_jobs}", folder)

    def end(self):
        self.process.send_signal(signal.SIGUSR1)  # mpirun forwards it; the ranks end between two jobs
        try:
            self.process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.said.close()


class Job(Run):
    """A run on the ranks of a server. Its log is that of rank 0; if it ends the server, what all ranks said."""

    def __init__(self, server, place, folder):
        super().__init__(server.process, folder)
        self.server, self.place, self.begin = server, place, server.said.seek(0, os.SEEK_END)

    def wait(self, timeout_s=ANSWER_S):
        result = self.place / "result.json"
        wait_for(lambda: result.exists() or self.process.poll() is not None, f"the end of {self.folder.name}", timeout_s)
        if result.exists():
            self.log, self.code = (self.place / "log").read_text(), json.loads(result.read_text())["exit_code"]
        else:
            self.log, self.code = self.output(), self.process.returncode
        self.record_series()
        return self

    def output(self):
        """What mpirun has forwarded of all ranks, with what the user's code prints."""
        self.server.said.seek(self.begin)
        return self.server.said.read()


class WarmTest(LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.servers = {}
        cls.addClassCleanup(lambda: [server.end() for server in cls.servers.values()])

    def start(self, ranks=2, config=DIGITS, run="run", sets=(), is_cold=False, **more):
        """is_cold: with processes of its own, for tests of how ranks end."""
        if is_cold or more:
            return super().start(ranks, config, run, sets, **more)
        if ranks not in self.servers or self.servers[ranks].process.poll() is not None:
            self.servers[ranks] = Server(ranks, pathlib.Path(tempfile.mkdtemp(dir=self.shared_folder)))
        return self.servers[ranks].submit(config, ["metrics.listen='127.0.0.1:0'", "run.threads=1", *sets], self.folder / run)


class Python:
    """An interpreter that has done `imports`, whose forks run programs."""

    def __init__(self, interpreter, imports, path=()):
        self.process = subprocess.Popen([interpreter, FORKS, imports, *map(str, path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "LOCKSTEP_BUILD": str(BUILD)})
        atexit.register(self.process.communicate)  # it ends with its input

    def run(self, *arguments):
        """Exit code, stdout and stderr of a program with its arguments."""
        self.process.stdin.write(json.dumps([*map(str, arguments)]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())
