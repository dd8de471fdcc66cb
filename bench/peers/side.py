"""A program that saves and restores on request, on its own cores: bench/saves, or a peer's program with the same commands."""
import os
import subprocess

import runs


class Side:
    """A process that answers commands."""

    def __init__(self, command, environment, cores):
        command = ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]
        environment = {**os.environ, **runs.peer_environment(), "OMP_NUM_THREADS": str(len(cores)), **environment}
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={key: str(value) for key, value in environment.items()})

    def ask(self, command, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.process.stdin.write(f"{command} {folder}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            words = line.removeprefix("result ").split()
            if words and words[0].lstrip("-").replace(".", "").isdigit():
                return [float(word) for word in words]
        raise SystemExit(f"{self.process.args}: ended at '{command} {folder}'")

    def end(self):
        self.process.kill()
        self.process.wait()
