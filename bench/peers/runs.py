"""Starts the same training on both sides, lockstepd and its peers, here or on two hosts with a slow link between.

Plain Python: the peers' packages (numpy, PyTorch) are only needed by the programs that are started.
"""
import array
import contextlib
import csv
import dataclasses
import functools
import json
import os
import pathlib
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

from places import ANSWER_S, SOURCE, Failed, Here, Link, finish  # noqa: F401, of which some are for importers of this file
import python_package  # noqa: E402, of tests/support, which places.py adds to the path

PEERS = SOURCE / "bench/peers"
PEER_PYTHON = pathlib.Path(os.environ.get("LOCKSTEP_PEER_PYTHON", SOURCE / ".venv-test/bin/python"))
BUCKETS_MB = (1, 4, 25)  # that DDP's bucket_cap_mb is tried with
# Python's way to what Lockstep sets itself: large tensors come from the heap, which is never given back.
MALLOC_SETTINGS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 26)}


@dataclasses.dataclass(frozen=True)
class Job:
    """A training that both sides can do; batch is that of each rank."""
    name: str
    batch: int
    widths: tuple = ()  # of an MLP
    activation: str = "relu"
    network: str = "Cnn"  # where there are no widths: a class of networks.py
    arguments: str = "{}"  # JSON, of the class
    model: str = ""  # our own network, as in a run file; none: the class in Python, as the peers have it
    shape: tuple = ()  # of one input; none: the MLP's
    context: int = 0  # tokens of one sample; then the classes are the vocabulary, and the data are tokens instead
    tokens: str = ""  # a file of them; none: random ones
    keywords: tuple = ()  # of tokens and targets: the network in Python takes them by name, and returns its loss
    num_classes: int = 10
    samples: int = 512
    learning_rate: float = 0.01
    optimizer: str = "momentum"  # or adamw, muon, without decay of weights
    precision: str = "fp32"  # or bf16, on both sides
    sparsity: float = 0  # of fixed masks
    shard_optimizer: bool = False
    steps: int = 100
    warm: int = 30  # steps that do not count: Lockstep's `auto` has made up its mind by then
    peer_steps: int = 0  # 0: as many
    peer_warm: int = 10

    def settings(self):
        """Settings of lockstepd, in addition to bench/step.yaml."""
        return [f"model={self.model or self.model_in_python()}", f"data.train={self.data()}",
                f"data.batch_size_per_rank={self.batch}", f"optimizer={self.optimizer_section()}", f"train.precision={self.precision}",
                f"sync.shard_optimizer={str(self.shard_optimizer).lower()}", f"train.loss={'own' if self.keywords else 'auto'}"]

    def optimizer_section(self):
        epsilon = ", opt_epsilon: 1.0e-8" if self.optimizer == "adamw" else ""  # PyTorch's default
        return f"{{type: {self.optimizer}, learning_rate: {self.learning_rate}{epsilon}}}"

    def model_in_python(self):
        if self.widths:
            return f"{{type: mlp, layers: {list(self.widths)}, activation: {self.activation}}}"
        return f"{{type: python, path: '{PEERS}/networks.py', name: {self.network}, args: {self.arguments}}}"

    def data(self):
        if self.keywords:
            arguments = json.dumps({"path": str(self.tokens or token_file(self)), "context": self.context, "keywords": self.keywords})
            return f"{{type: python, path: '{PEERS}/token_samples.py', name: Samples, args: {arguments}}}"
        if self.context:
            return f"{{type: tokens, path: '{self.tokens or token_file(self)}', context: {self.context}, vocabulary: {self.num_classes}}}"
        return f"{{type: random, shape: {list(self.shape or self.widths[:1])}, samples: {self.samples}, classes: {self.classes()}}}"

    def request(self):
        """Settings of ddp.py."""
        network = ({"network": "Mlp", "arguments": {"widths": self.widths, "activation": self.activation}} if self.widths
                   else {"network": self.network, "arguments": json.loads(self.arguments)})
        data = ({"tokens": str(self.tokens or token_file(self)), "context": self.context, "keywords": self.keywords} if self.context
                else {"shape": self.shape or self.widths[:1], "classes": self.classes()})
        return {**network, **data, "samples": self.samples, "batch": self.batch, "learning_rate": self.learning_rate, "optimizer": self.optimizer,
                "sparsity": self.sparsity, "precision": self.precision, "warm": self.peer_warm}

    def classes(self):
        return self.widths[-1] if self.widths else self.num_classes

    def recipe(self):
        """Masks of one sparsity from the first step on, computed again every 50 steps."""
        return (f"version: 1.0.0\nmodifiers:\n  - !GradualKSModifier {{params: __ALL__, init_sparsity: {self.sparsity}, "
                f"final_sparsity: {self.sparsity}, start_step: 0, end_step: 1000000, update_frequency_steps: 50}}\n")


@dataclasses.dataclass
class Steps:
    """Results of one run: mean seconds of the steps that count, and the loss of every step."""
    seconds: float
    losses: list  # none: no training, but what limits it
    unhidden: float = 0  # seconds of forward, of backward before anything travels, and of the update; 0: not known
    each: list = dataclasses.field(default_factory=list)  # seconds of every step of a peer


def lockstep(build, job, place, ranks=None, sets=(), source=SOURCE):
    """lockstepd's steps, whole turns of its loop."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        folder = pathlib.Path(folder)
        settings = [*job.settings(), f"run.project_dir={folder}/run", f"train.max_steps={job.steps + 1}", *place.settings, *sets]
        if job.sparsity:
            (folder / "recipe.yaml").write_text(job.recipe())
            settings.append(f"recipe={folder}/recipe.yaml")
        command = [build / "bench/timed_lockstepd", "--config", source / "bench/step.yaml"]
        for one in settings:
            command += ["--set", one]
        finish(place.ranks(ranks or place.world_size, command,
                           {"LOCKSTEP_BENCH_TIMES": folder / "times", "OMP_NUM_THREADS": 1, **packages_of(job)}))
        seconds = [float(line) for line in (folder / "times").read_text().split()]
        with open(folder / "run/train/steps.csv") as file:
            losses = [float(row["loss"]) for row in csv.DictReader(file)]
        return Steps(mean(seconds[job.warm:]), losses[:job.steps],
                     unhidden_seconds((folder / "run/logs/rank0.prom").read_text()))


def unhidden_seconds(page):
    """Seconds of a step that cannot overlap with communication, from a metrics page: the mean over all steps of the run. Too high rather than
    too low, since `sync.overlap: auto` tries steps without overlap first. A limit computed from it can be beaten by some per cent."""
    def value(name):
        return float(re.search(rf"^lockstep_{re.escape(name)} (\S+)$", page, re.MULTILINE)[1])
    def phase(name):
        return value(f'step_phase_seconds_total{{phase="{name}"}}')
    before = phase("forward") + phase("backward") - value("allreduce_overlapped_seconds_total")
    return (before + phase("optimizer")) / value("steps_total")


class Ddp:
    """PyTorch's ranks at a place (ddp.py). They stay, so that their imports and warm memory are paid for once, and wait
    without using a core while others run."""

    def __init__(self, place, environment):
        self.folder = tempfile.TemporaryDirectory(prefix="lockstep-bench-")
        self.said = open(pathlib.Path(self.folder.name) / "stderr", "w+")
        self.processes = []
        for command, own in place.peers([PEER_PYTHON, PEERS / "ddp.py"], {**peer_environment(), **environment}):
            own = {**os.environ, **{key: str(value) for key, value in own.items()}}
            self.processes.append(subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                   stderr=self.said, env=own, text=True, start_new_session=True))

    def train(self, request):
        """Answer of rank 0."""
        try:
            for process in self.processes:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
        except BrokenPipeError:
            self.fail("a rank has ended")
        return [json.loads(self.answer(process)) for process in self.processes][0]

    def answer(self, process):
        end = time.monotonic() + ANSWER_S
        while not select.select([process.stdout], [], [], 1)[0]:
            if any(one.poll() is not None for one in self.processes):
                self.fail("a rank has ended")
            if time.monotonic() > end:
                self.fail(f"no answer for {ANSWER_S} s")
        return process.stdout.readline() or self.fail("a rank has ended")

    def fail(self, why):
        time.sleep(1)  # the other rank's message
        self.said.seek(0)
        raise Failed(f"ddp.py: {why}:\n{self.said.read()}")

    def close(self):
        for process in self.processes:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdout.close()
        self.said.close()
        self.folder.cleanup()


class DdpPeers:
    """Ranks for each environment that modes ask for (malloc as it comes, or tuned), started when they are needed. Use it with `with`."""

    def __init__(self, place):
        self.place, self.started = place, {}

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for ranks in self.started.values():
            if kind is not None:
                for process in ranks.processes:
                    process.kill()
            ranks.close()

    def train(self, build, job, mode, bucket_mb=None, steps=None, **more):
        """Steps of the job; mode and further keys as in ddp.py."""
        environment = {} if mode == "default" else dict(MALLOC_SETTINGS)
        if mode == "graphed":
            environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # its watchdog asks for events, which a recording forbids
        kind = tuple(sorted(environment.items()))
        if kind not in self.started:
            self.started[kind] = Ddp(self.place, environment)
        found = self.started[kind].train({**job.request(), "mode": mode, "weights": str(initial_weights(build, job)),
                                              "steps": steps or job.peer_steps or job.steps, "bucket_mb": bucket_mb, **more})
        return Steps(mean(found["seconds"][job.peer_warm:]), found["losses"], each=found["seconds"])

    def tune(self, build, job, mode):
        """Seconds of a step by bucket_cap_mb, from short trials."""
        counted = (job.peer_steps or job.steps) - job.peer_warm
        steps = job.peer_warm + max(3, counted // 3)
        return {bucket_mb: self.train(build, job, mode, bucket_mb, steps).seconds for bucket_mb in BUCKETS_MB}


def ddp(build, job, place, mode):
    """One training by PyTorch alone."""
    with DdpPeers(place) as peers:
        return peers.train(build, job, mode)


def c10d(build, job, place, bucket_mb):
    """c10d's Reducer over gloo, driven from C++ (c10d_ddp.cpp)."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        out = pathlib.Path(folder) / "out.json"
        command = [build / "bench/c10d_ddp", "--widths", ",".join(map(str, job.widths)), f"--samples={job.samples}",
                   f"--batch={job.batch}", f"--learning-rate={job.learning_rate}", f"--bucket-mb={bucket_mb}",
                   f"--steps={job.peer_steps or job.steps}", f"--weights={initial_weights(build, job)}",
                   f"--store={folder}/store", f"--out={out}"]
        finish(place.peers(command, {"OMP_NUM_THREADS": 1, **MALLOC_SETTINGS}))
        found = json.loads(out.read_text())
        return Steps(mean(found["seconds"][job.peer_warm:]), found["losses"])


def gloo_allreduce(place, mib=64, calls=5, alone=False):
    """Median seconds of gloo's all-reduce, or of what every all-reduce has to do: ranks read and write their values, each alone."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        out = pathlib.Path(folder) / "out.json"
        command = [PEER_PYTHON, PEERS / "gloo_allreduce.py", f"--mib={mib}", f"--calls={calls}", f"--out={out}", *["--alone"] * alone]
        finish(place.peers(command, peer_environment()))
        seconds = sorted(json.loads(out.read_text())["seconds"])
        return seconds[len(seconds) // 2]


def plain_tcp(place, num_bytes, steps=9):
    """Mean seconds for so many bytes both ways at once, by TCP alone."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        out = pathlib.Path(folder) / "out.json"
        finish(place.peers([sys.executable, PEERS / "plain_tcp.py", f"--bytes={num_bytes}", f"--steps={steps}", f"--out={out}"], {}))
        return mean(json.loads(out.read_text())["seconds"])


@contextlib.contextmanager
def package_of(build):
    """Makes `import lockstep` possible in programs that are started."""
    with tempfile.TemporaryDirectory(prefix="lockstep-package-") as folder:
        python_package.install(build, pathlib.Path(folder), python_package.version_of(peer_environment()["LOCKSTEP_TORCH"]))
        os.environ["PYTHONPATH"] = ":".join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        yield


def packages_of(job):
    """The environment in which lockstepd's Python finds transformers, which the peers' has."""
    if not job.keywords:
        return {}
    packages = next((PEER_PYTHON.parents[1] / "lib").glob("python3*/site-packages/transformers"), None)
    if packages is None:
        raise Failed(f"{PEER_PYTHON} has no transformers; run `tools/setup test`")
    return {"PYTHONPATH": packages.parent, "PYTHONDONTWRITEBYTECODE": 1}


def peer_environment():
    torch = os.environ.get("LOCKSTEP_TORCH") or next((SOURCE / ".venv").glob("lib/python3*/site-packages/torch"), "")
    if not PEER_PYTHON.exists() or not pathlib.Path(torch, "__init__.py").exists():
        raise Failed("PyTorch for Python not found; run `tools/setup test` (.venv, .venv-test)")
    return {"LOCKSTEP_TORCH": torch, "OMP_NUM_THREADS": 1, "PYTHONDONTWRITEBYTECODE": 1}


_kept_folder = tempfile.TemporaryDirectory(prefix="lockstep-bench-weights-")


@functools.cache
def token_file(job):
    """Random tokens, uint16, for the job's samples."""
    path = pathlib.Path(_kept_folder.name) / f"{job.name}.tokens"
    draw = random.Random(1)
    path.write_bytes(array.array("H", (draw.randrange(job.num_classes) for _ in range(job.samples * job.context + 1))).tobytes())
    return path


@functools.cache
def initial_weights(build, job):
    """A file with the weights of the job's step 0, exported from a save that is made for it."""
    folder = pathlib.Path(_kept_folder.name) / f"{len(list(pathlib.Path(_kept_folder.name).iterdir()))}"
    command = [build / "bin/lockstepd", "--config", SOURCE / "bench/step.yaml"]
    for one in (*job.settings(), f"run.project_dir={folder}", "train.max_steps=0", "checkpoint.save_at_end=true",
                "run.device=cpu"):
        command += ["--set", one]
    finish([(command, packages_of(job))])
    out = folder / "weights.safetensors"
    finish([([build / "bin/lockstep", "ckpt", "export", folder / "checkpoints", "-o", out], {})])
    return out


def mean(values):
    return sum(values) / len(values)


def largest_difference(ours, theirs, num_steps):
    """Largest relative difference of the first losses."""
    return max(abs(a - b) / abs(b) for a, b in zip(ours[:num_steps], theirs[:num_steps], strict=True))
