"""A run under attack beside one that is left alone: for bench/run.

One rank of the digits, with its pages, on one core, the attackers on another, as if they came from elsewhere. Each attack goes on as long as
the run does. /livez is asked five times meanwhile, by a client of its own.
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

from contests import Row, in_turn
from scraped_run import SHARE, thread_seconds

SOURCE = pathlib.Path(__file__).resolve().parents[2]
FLOOD = "64-connection flood"
NUM_STEPS, START_S, GROWTH, SLOWEST = 4000, 60, "growth of resident memory", "slowest of 5 answers"
LIMIT, NUM_BARE_ANSWERS, PROBE_LIMIT_S = "64 answers of a bare loop", 64 * 100, 0.1
GET = b"GET /livez HTTP/1.1\r\nHost: t\r\n\r\n"


def connected(port):
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def send_until_cut(port, head, piece):
    with connected(port) as one:
        one.sendall(head)
        for _ in range(200 * (1 << 20) // len(piece)):
            one.sendall(piece)


def huge_body(port):
    send_until_cut(port, b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"b" * 65536 + b"\r\n")


def endless_header(port):
    send_until_cut(port, b"GET / HTTP/1.1\r\nHost: t\r\nX: ", b"a" * 16384)


def slow_connections(port):
    all_60 = [connected(port) for _ in range(60)]
    for one in all_60:
        one.sendall(b"GET / HTTP/1.1\r\nHost: t\r\n")
    for _ in range(40):
        time.sleep(0.1)
        for one in all_60:
            one.sendall(b"X: y\r\n")


def pipelining(port):
    with connected(port) as one:
        one.sendall(GET * 999 + GET[:-2] + b"Connection: close\r\n\r\n")
        while one.recv(1 << 16):
            pass


def bad_json(port):
    with connected(port) as one:
        one.sendall(b"POST /control/set HTTP/1.1\r\nHost: t\r\nX-Lockstep-Control: 1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{\"a\": [[[")
        one.recv(1 << 16)


def flood(port):
    """64 connections, each for one request, one after the other."""
    all_64 = [connected(port) for _ in range(64)]
    for one in all_64:
        one.sendall(GET)
    for one in all_64:
        one.recv(1 << 16)
        one.close()


def refused_flood(port):
    """The same of requests that are refused."""
    all_64 = [connected(port) for _ in range(64)]
    for one in all_64:
        one.sendall(GET.replace(b"GET", b"PUT"))
    for one in all_64:
        one.recv(1 << 16)
        one.close()


ATTACKS = {"200 MiB chunked": huge_body, "endless header": endless_header, "60 slow connections": slow_connections, "pipelining": pipelining,
           "bad JSON": bad_json, FLOOD: flood, "64 refused connections": refused_flood}


def attack(name, port):
    """Until the server is gone."""
    while True:
        try:
            ATTACKS[name](port)
        except ConnectionRefusedError:
            return
        except OSError:  # it was cut
            pass


def answer_ms(port):
    begin = time.monotonic()
    with connected(port) as one:
        one.sendall(GET)
        if b" 200 OK" not in one.recv(1 << 16):
            raise SystemExit("/livez does not answer 200")
    return 1e3 * (time.monotonic() - begin)


def resident_mib(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / (1 << 20)


class Victim(threading.Thread):
    """What a run under attack shows from outside, in the middle of it."""

    def __init__(self, pid, targets, name):
        super().__init__(daemon=True)
        self.pid, self.targets, self.name_of_attack = pid, targets, name
        self.slowest_ms = self.growth_mib = self.share = None

    def run(self):
        while not self.targets.exists():
            time.sleep(0.01)
        port = int(json.loads(self.targets.read_text())[0]["targets"][0].rsplit(":", 1)[1])
        answer_ms(port)
        time.sleep(1)  # until what a run itself takes has stopped growing
        before_mib = resident_mib(self.pid)
        attacker = subprocess.Popen(["taskset", "-c", "1", sys.executable, __file__, self.name_of_attack, str(port)])
        begin_s, begin = thread_seconds(self.pid, "lockstep-http"), time.monotonic()
        try:
            time.sleep(0.5)
            self.slowest_ms = max(answer_ms(port) for _ in range(5))
            time.sleep(3)
            self.growth_mib = resident_mib(self.pid) - before_mib
            self.share = (thread_seconds(self.pid, "lockstep-http") - begin_s) / (time.monotonic() - begin)
            attacker.wait()
        except (OSError, SystemExit):  # the run has ended
            attacker.wait()


def seconds(build, name):
    """Of 1000 samples; what the victim showed."""
    with tempfile.TemporaryDirectory() as folder:
        sets = (f"run.project_dir={folder}/run", "run.threads=1", f"train.max_steps={NUM_STEPS}", "metrics.listen='127.0.0.1:0'")
        command = ["taskset", "-c", "0", build / "bin/lockstepd", "--config", SOURCE / "bench/digits.yaml",
                   *(word for one in sets for word in ("--set", one))]
        run = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        victim = Victim(run.pid, pathlib.Path(folder, "run/targets.json"), name) if name else None
        if victim:
            victim.start()
        errors = run.communicate()[1]
        if run.returncode != 0:
            raise SystemExit(errors)
        if victim:
            victim.join(START_S)
            if victim.growth_mib is None:
                raise SystemExit(f"{name}: the run was over before five answers came")
        return 1e3 / json.loads(pathlib.Path(folder, "run/summary.json").read_text())["samples_per_second"], victim


def bare_answer_seconds(build):
    """Processor time of accept, read, write and close, one flood after the other."""
    server = subprocess.Popen(["taskset", "-c", "0", str(build / "bench/bare_server"), str(NUM_BARE_ANSWERS)], stdout=subprocess.PIPE, text=True)
    port = int(server.stdout.readline())
    for _ in range(NUM_BARE_ANSWERS // 64):
        flood(port)
    return float(server.communicate()[0])


def measure(build, name, number):
    found = {who: seconds(build, name if who == "attacked" else None) for who in in_turn(("attacked", "alone"), number)}
    victim = found["attacked"][1]
    limit = 64 / PROBE_LIMIT_S * bare_answer_seconds(build) if name == FLOOD else None
    return {"1000 samples, attacked": found["attacked"][0], "1000 samples, alone": found["alone"][0],
            SLOWEST: victim.slowest_ms / 1e3, GROWTH: victim.growth_mib, SHARE: victim.share, LIMIT: limit}


def rows_of(name):
    """A probe comes as one more connection of a flood, whose others must be answered as soon."""
    return ROWS + ([Row("64 answers in 100 ms by a bare loop of accept, read, write, close: the limit", lambda times: 100 * times[LIMIT], unit="%")] if name == FLOOD else [])


HIDDEN = (SHARE, SLOWEST, GROWTH, LIMIT)
ROWS = [Row("time lost", lambda times: 100 * (times["1000 samples, attacked"] / times["1000 samples, alone"] - 1), 1, at_most=True, unit="%"),
        Row("processor time of the pages' thread", lambda times: 100 * times[SHARE], 1, at_most=True, unit="%"),
        Row(SLOWEST, lambda times: 1e3 * times[SLOWEST], 1e3 * PROBE_LIMIT_S, at_most=True, unit=" ms"),
        Row(GROWTH, lambda times: times[GROWTH], 10, at_most=True, unit=" MiB")]

if __name__ == "__main__":
    attack(sys.argv[1], int(sys.argv[2]))
