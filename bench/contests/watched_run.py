"""CPU time of the watchdog's and the control API's threads during training: for bench/run.

Rank 0 of the digits on 2 ranks, with the control API at a Unix socket that is asked for the status once a second. The processor time is the
scheduler's own, in nanoseconds; its share of the time is its share of a step, whose time it is counted in.
"""
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

from contests import Row

SOURCE = pathlib.Path(__file__).resolve().parents[2]
WATCHED_S, START_S = 10, 60
THREADS = {"lockstep-watch": "watchdog", "lockstep-stop": "stop notice", "lockstep-ctl": "control API"}


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=5)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def status(path):
    """The run's, with the process that answers."""
    connection = UnixConnection(path)
    try:
        connection.request("GET", "/control/status")
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def pid_behind(path):
    """The process that listens at the socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        return int.from_bytes(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little")


def thread_seconds(pid):
    """Processor time by thread, of those that are watched."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        if name in THREADS:
            found[name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    if set(found) != set(THREADS):
        raise SystemExit(f"no threads of these names in rank 0: {set(THREADS) - set(found)}")
    return found


def watch(path):
    """Shares of the time by thread, and milliseconds of a step."""
    pid = pid_behind(path)
    began, before, first = time.monotonic(), thread_seconds(pid), status(path)["step"]
    for _ in range(WATCHED_S):
        time.sleep(1)
        last = status(path)["step"]
    passed_s, after = time.monotonic() - began, thread_seconds(pid)
    shares = {THREADS[name]: (after[name] - before[name]) / passed_s for name in THREADS}
    return {**shares, "a step": passed_s / (last - first)}


def measure(build, _number):
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        path = pathlib.Path(folder, "run/control.sock")
        command = [SOURCE / "launch/mpirun.sh", 2, build / "bin/lockstepd", "--config", SOURCE / "bench/digits.yaml"]
        for one in (f"run.project_dir={folder}/run", "run.threads=1", "train.max_steps=1000000", "metrics.listen='off'", "control.listen=unix"):
            command += ["--set", one]
        run = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_S
            while not path.exists() or status(path)["step"] < 100:
                if time.monotonic() > deadline or run.poll() is not None:
                    raise SystemExit("the run for the thread measurement did not start")
                time.sleep(0.05)
            return watch(path)
        finally:
            if run.poll() is None:
                os.kill(run.pid, signal.SIGUSR1)
            run.wait(60)


ROWS = [Row("processor time of watchdog and control, of a step", lambda times: 100 * sum(times[name] for name in THREADS.values()), 0.2,
            at_most=True, unit="%"),
        *(Row(f"of these the {name}", lambda times, name=name: 100 * times[name], unit="%") for name in THREADS.values())]
