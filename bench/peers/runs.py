"""Starts the same training on both sides, lockstepd and PyTorch's DDP, here or on two hosts with a slow link between.

Plain Python: the peers' packages (numpy, PyTorch) are only needed by the programs that are started.
"""
import contextlib
import csv
import dataclasses
import functools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PEERS = SOURCE / "bench/peers"
NETNS = SOURCE / "tools/netns"
PEER_PYTHON = SOURCE / ".venv-test/bin/python"
NOT_PERMITTED = 77
ANSWER_S = 600
# Python's way to what Lockstep sets itself: large tensors come from the heap, which is never given back.
MALLOC_SETTINGS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 26)}


@dataclasses.dataclass(frozen=True)
class Job:
    """A training that both sides can do; batch is that of each rank."""
    name: str
    batch: int
    widths: tuple = ()  # of an MLP; none: the cnn
    activation: str = "relu"
    shape: tuple = ()  # of one input; none: the MLP's
    samples: int = 512
    learning_rate: float = 0.01
    sparsity: float = 0  # of fixed masks
    steps: int = 100
    warm: int = 30  # steps that do not count: Lockstep's `auto` has made up its mind by then
    peer_steps: int = 0  # 0: as many
    peer_warm: int = 10

    def settings(self):
        """For lockstepd, on top of bench/step.yaml."""
        shape = self.shape or self.widths[:1]
        model = (["model.type=mlp", f"model.layers={list(self.widths)}", f"model.activation={self.activation}"] if self.widths
                 else ["model.type=cnn"])
        return model + [f"data.train.shape={list(shape)}", f"data.train.samples={self.samples}",
                        f"data.train.classes={self.classes()}", f"data.batch_size_per_rank={self.batch}",
                        f"optimizer.learning_rate={self.learning_rate}"]

    def peer_arguments(self):
        network = (["--widths", ",".join(map(str, self.widths)), "--activation", self.activation] if self.widths
                   else ["--network", "cnn"])
        if self.shape:
            network += ["--shape", ",".join(map(str, self.shape))]
        return network + [f"--samples={self.samples}", f"--classes={self.classes()}", f"--batch={self.batch}",
                          f"--learning-rate={self.learning_rate}", f"--sparsity={self.sparsity}"]

    def classes(self):
        return self.widths[-1] if self.widths else 10

    def recipe(self):
        """Masks of one sparsity from the first step on, computed anew every 50 steps."""
        return (f"version: 1.0.0\nmodifiers:\n  - !GradualKSModifier {{params: __ALL__, init_sparsity: {self.sparsity}, "
                f"final_sparsity: {self.sparsity}, start_step: 0, end_step: 1000000, update_frequency_steps: 50}}\n")


@dataclasses.dataclass
class Steps:
    """Of one run: mean seconds of the steps that count, and the loss of every step."""
    seconds: float
    losses: list
    unhidden: float = 0  # seconds of forward, of backward before anything travels, and of the update; 0: not known


class Failed(Exception):
    pass


class Here:
    """Two ranks on this host."""
    name = "one host"

    def ranks(self, num_ranks, command, environment):
        return [([SOURCE / "launch/mpirun.sh", num_ranks, *command], environment)]

    def peers(self, command, environment):
        """Two processes of the peer."""
        port = free_port()
        return [(command, {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo",
                           "RANK": rank, "WORLD_SIZE": 2}) for rank in range(2)]


class Link:
    """One rank on each of two hosts (tools/netns). Use it with `with`; Failed if that is not permitted."""

    def __init__(self, gbit=1):
        self.name = f"two hosts, {gbit} Gbit/s"
        self.gbit, self.tag = gbit, f"ls{os.getpid()}"

    def __enter__(self):
        self.hosts = subprocess.Popen([NETNS, "exec", "--gbit", str(self.gbit), "sh", "-c", "echo ready; exec cat"],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment())
        if self.hosts.stdout.readline() != b"ready\n":
            raise Failed("network namespaces are not permitted here (they need root, ip and tc)"
                         if self.hosts.wait() == NOT_PERMITTED else "tools/netns failed")
        return self

    def __exit__(self, *_):
        self.hosts.stdin.close()
        self.hosts.wait(20)

    def environment(self):
        return {**os.environ, "LOCKSTEP_NETNS": self.tag}

    def ranks(self, num_ranks, command, environment):
        return [([NETNS, "mpirun", num_ranks, *command], {**environment, "LOCKSTEP_NETNS": self.tag})]

    def peers(self, command, environment):
        port = free_port()
        return [([NETNS, "on", host, *command],
                 {**environment, "LOCKSTEP_NETNS": self.tag, "MASTER_ADDR": "10.231.7.1", "MASTER_PORT": port,
                  "GLOO_SOCKET_IFNAME": f"{self.tag}v{host}", "RANK": rank, "WORLD_SIZE": 2})
                for rank, host in enumerate("ab")]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def finish(started):
    """Runs the (command, environment) pairs side by side; their output together. Failed if one of them fails."""
    with contextlib.ExitStack() as stack:
        processes = []
        for command, environment in started:
            out = stack.enter_context(tempfile.TemporaryFile("w+"))
            environment = {**os.environ, **{key: str(value) for key, value in environment.items()}}
            processes.append((subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=out,
                                               stderr=subprocess.STDOUT, env=environment, start_new_session=True), out))
        try:
            codes = [process.wait(ANSWER_S) for process, _ in processes]
        finally:
            for process, _ in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        text = ""
        for _, out in processes:
            out.seek(0)
            text += out.read()
        if any(codes):
            raise Failed(f"{started[0][0]} ended with {codes}:\n{text}")
        return text


def lockstep(build, job, place, ranks=2, sets=()):
    """lockstepd's steps, whole turns of its loop."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        folder = pathlib.Path(folder)
        settings = [*job.settings(), f"run.project_dir={folder}/run", f"train.max_steps={job.steps + 1}", *sets]
        if job.sparsity:
            (folder / "recipe.yaml").write_text(job.recipe())
            settings.append(f"recipe={folder}/recipe.yaml")
        command = [build / "bench/timed_lockstepd", "--config", SOURCE / "bench/step.yaml"]
        for one in settings:
            command += ["--set", one]
        finish(place.ranks(ranks, command, {"LOCKSTEP_BENCH_TIMES": folder / "times", "OMP_NUM_THREADS": 1}))
        seconds = [float(line) for line in (folder / "times").read_text().split()]
        with open(folder / "run/train/steps.csv") as file:
            losses = [float(row["loss"]) for row in csv.DictReader(file)]
        return Steps(mean(seconds[job.warm:]), losses[:job.steps],
                     unhidden_seconds((folder / "run/logs/rank0.prom").read_text()))


def unhidden_seconds(page):
    """What no overlap can hide, from a metrics page: the mean over all steps of the run."""
    def value(name):
        return float(re.search(rf"^lockstep_{re.escape(name)} (\S+)$", page, re.MULTILINE)[1])
    def phase(name):
        return value(f'step_phase_seconds_total{{phase="{name}"}}')
    before = phase("forward") + phase("backward") - value("allreduce_overlapped_seconds_total")
    return (before + phase("optimizer")) / value("steps_total")


def ddp(build, job, place, mode):
    """PyTorch's steps; mode as in ddp.py."""
    num_steps = job.peer_steps or job.steps
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        out = pathlib.Path(folder) / "out.json"
        command = [PEER_PYTHON, PEERS / "ddp.py", "--mode", mode, *job.peer_arguments(), f"--steps={num_steps}",
                   f"--weights={initial_weights(build, job)}", f"--out={out}"]
        finish(place.peers(command, peer_environment() | ({} if mode == "default" else MALLOC_SETTINGS)))
        found = json.loads(out.read_text())
        return Steps(mean(found["seconds"][job.peer_warm:]), found["losses"])


def gloo_allreduce(place, mib=64, calls=5):
    """Median seconds of gloo's all-reduce."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        out = pathlib.Path(folder) / "out.json"
        command = [PEER_PYTHON, PEERS / "gloo_allreduce.py", f"--mib={mib}", f"--calls={calls}", f"--out={out}"]
        finish(place.peers(command, peer_environment()))
        seconds = sorted(json.loads(out.read_text())["seconds"])
        return seconds[len(seconds) // 2]


def peer_environment():
    torch = os.environ.get("LOCKSTEP_TORCH") or next((SOURCE / ".venv").glob("lib/python3*/site-packages/torch"), "")
    if not PEER_PYTHON.exists() or not pathlib.Path(torch, "__init__.py").exists():
        raise Failed("PyTorch in Python is not here: `tools/setup test` fetches what is missing (.venv, .venv-test)")
    return {"LOCKSTEP_TORCH": torch, "OMP_NUM_THREADS": 1, "PYTHONDONTWRITEBYTECODE": 1}


_kept_folder = tempfile.TemporaryDirectory(prefix="lockstep-bench-weights-")


@functools.cache
def initial_weights(build, job):
    """A file with the weights of the job's step 0, exported from a save that is made for it."""
    folder = pathlib.Path(_kept_folder.name) / f"{len(list(pathlib.Path(_kept_folder.name).iterdir()))}"
    command = [build / "bin/lockstepd", "--config", SOURCE / "bench/step.yaml"]
    for one in (*job.settings(), f"run.project_dir={folder}", "train.max_steps=0", "checkpoint.save_at_end=true"):
        command += ["--set", one]
    finish([(command, {})])
    out = folder / "weights.safetensors"
    finish([([build / "bin/lockstep", "ckpt", "export", folder / "checkpoints", "-o", out], {})])
    return out


def mean(values):
    return sum(values) / len(values)


def largest_difference(ours, theirs, num_steps):
    """Largest relative difference of the first losses."""
    return max(abs(a - b) / abs(b) for a, b in zip(ours[:num_steps], theirs[:num_steps], strict=True))
