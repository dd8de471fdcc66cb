"""A job server under test, and its clients."""
import json
import os
import signal
import subprocess

from harness import ANSWER_S, DIGITS, LOCKSTEP, LOCKSTEPD, MPIRUN, PRUNE_EARLY, SOURCE, LockstepTest, Run, wait_for
from supervised import processes_of

PLAIN = ["run.threads=1", "metrics.listen='127.0.0.1:0'", "eval.every_epochs=0"]
ONE = [*PLAIN, PRUNE_EARLY, "train.max_steps=40", "checkpoint.save_checkpoints_steps=20"]
OTHER = [*PLAIN, "recipe=null", "run.seed=5", "optimizer={type: adam, learning_rate: 0.01, ema_decay: 0.9}", "train.max_steps=24",
         "train.precision=bf16", "run.deterministic=true"]
RARE = [*PLAIN, "checkpoint.save_checkpoints_steps=1000000"]
TINY = [*PLAIN, "recipe=null", "train.max_steps=4"]


class ServeTest(LockstepTest):
    def setUp(self):
        super().setUp()
        self.queue = self.folder / "queue"
        self.addCleanup(self._kill_servers)

    def _kill_servers(self):
        for pid in processes_of(self.queue):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def serve(self, *arguments, ranks=2, program=LOCKSTEPD, environment=None):
        command = [MPIRUN, ranks, program, "serve", "--queue", self.queue, "--listen", "127.0.0.1:0", *arguments]
        return self.begin(command, environment)

    def begin(self, command, environment=None):
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                                   cwd=SOURCE, env={**os.environ, **(environment or {})})
        self.started.append(process)
        return Run(process, self.queue)

    def client(self, *words, expect=0, cwd=SOURCE):
        done = subprocess.run([LOCKSTEP, *map(str, words)], capture_output=True, text=True, timeout=ANSWER_S, cwd=cwd, check=False,
                              env={**os.environ, "LOCKSTEP_QUEUE": str(self.queue)})
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def submit(self, config=DIGITS, sets=(), expect=0, **kwargs):
        said = self.client("submit", config, *(word for one in sets for word in ("--set", one)), expect=expect, **kwargs)
        return int(said.split()[0]) if expect == 0 else said  # what Python's start says comes behind it

    def wait(self, job, expect=0):
        return self.client("wait", job, "--timeout", ANSWER_S, expect=expect)

    def run_of(self, job):
        """The job's own folder, as that of a plain run."""
        return Run(None, self.queue / f"jobs/{job}/run")

    def result(self, job):
        return json.loads((self.queue / f"jobs/{job}/result.json").read_text())

    def states(self):
        return {job["id"]: job["state"] for job in json.loads(self.client("ps", "--json"))}

    def wait_for_state(self, job, state):
        wait_for(lambda: self.states().get(job) == state, f"job {job} to be {state}")

    def ended(self, server, expect):
        server.wait()
        self.assertEqual(server.code, expect, server.log)
        return server
