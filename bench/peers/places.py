"""Places of ranks: two on this host, or one or more on each of two hosts with a slow link between (tools/netns)."""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/support"))
from ports import free_port

NETNS = SOURCE / "tools/netns"
NOT_PERMITTED = 77
ANSWER_S = 600


class Failed(Exception):
    pass


class Here:
    """Two ranks on this host."""
    name = "one host"
    settings = ()  # of lockstepd
    world_size = 2

    def ranks(self, num_ranks, command, environment):
        return [([SOURCE / "launch/mpirun.sh", num_ranks, *command], environment)]

    def default_ranks(self, num_ranks, command, environment):
        """Ranks as Open MPI starts them by default: bound to cores, messages copied once if the kernel permits it."""
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [(["mpirun", "-n", num_ranks, "--bind-to", "core", *root, *command], environment)]

    def peers(self, command, environment):
        """Two processes of the peer."""
        port = free_port()
        return [(command, {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo",
                           "RANK": rank, "WORLD_SIZE": self.world_size}) for rank in range(self.world_size)]


class WithBackend(Here):
    """Two ranks on this host whose process group has that backend."""

    def __init__(self, backend):
        self.backend = backend

    def peers(self, command, environment):
        return super().peers(command, {**environment, "LOCKSTEP_BENCH_BACKEND": self.backend, "OMP_NUM_THREADS": 1})


class Gpus(Here):
    """Ranks of this host with a GPU each; NCCL_MULTI_RANK_GPU_ENABLE=1 lets them share GPUs."""
    name = "GPUs"
    settings = ("run.device=cuda",)

    def __init__(self, num_ranks):
        self.world_size = num_ranks

    def peers(self, command, environment):
        return super().peers(command, {**environment, "LOCKSTEP_BENCH_DEVICE": "cuda"})


class Link:
    """Equal numbers of ranks on each of two hosts (tools/netns). Use it with `with`; raises Failed if that is not permitted."""

    settings = ()

    def __init__(self, gbit=1, ranks_a_host=1):
        self.name = f"two hosts, {gbit} Gbit/s"
        self.gbit, self.tag, self.world_size = gbit, f"ls{os.getpid()}", 2 * ranks_a_host

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
                  "GLOO_SOCKET_IFNAME": f"{self.tag}v{host}", "RANK": rank, "WORLD_SIZE": self.world_size})
                for rank, host in enumerate(host for host in "ab" for _ in range(self.world_size // 2))]


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
