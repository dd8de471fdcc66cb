"""A run that is scraped ten times a second, compared with one that is not scraped: for bench/run."""
import json
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import time

from contests import Row, in_turn

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PAUSE_S, NUM_STEPS = 0.1, 6000
SHARE = "the thread's share"


def thread_seconds(pid, name):
    """Processor time of a process' thread of that name."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return 1e-9 * int((task / "schedstat").read_text().split()[0])
    return 0.0


def read_answer(connection):
    """Reads one HTTP answer with Content-Length without parsing it, so that the client takes little of the run's cores."""
    head = b""
    while b"\r\n\r\n" not in head:
        part = connection.recv(1 << 16)
        if not part:
            raise ConnectionError
        head += part
    head, _, body = head.partition(b"\r\n\r\n")
    left = int(re.search(rb"(?i)content-length: (\d+)", head)[1]) - len(body)
    while left > 0:
        left -= len(connection.recv(left))


class Scraper(threading.Thread):
    """Asks for /metrics every 0.1 s as long as the run answers, over one open connection, as Prometheus does."""

    def __init__(self, pid, targets):
        super().__init__(daemon=True)
        self.pid, self.targets = pid, targets
        self.num_scrapes, self.share = 0, 0.0

    def run(self):
        while not self.targets.exists():
            time.sleep(0.01)
        host, port = json.loads(self.targets.read_text())[0]["targets"][0].rsplit(":", 1)
        request = f"GET /metrics HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
        begin, begin_s = time.monotonic(), thread_seconds(self.pid, "lockstep-http")
        try:
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                while True:
                    connection.sendall(request)
                    read_answer(connection)
                    self.num_scrapes += 1
                    if self.num_scrapes % 10 == 0:
                        self.share = (thread_seconds(self.pid, "lockstep-http") - begin_s) / (time.monotonic() - begin)
                    time.sleep(PAUSE_S)
        except OSError:  # the run has ended
            pass


def seconds(build, is_scraped):
    """Seconds of 1000 samples on one rank, and the share of this time in which the server's thread computes."""
    with tempfile.TemporaryDirectory() as folder:
        sets = (f"run.project_dir={folder}/run", "run.threads=1", f"train.max_steps={NUM_STEPS}", "metrics.listen='127.0.0.1:0'")
        command = [build / "bin/lockstepd", "--config", SOURCE / "bench/digits.yaml", *(word for one in sets for word in ("--set", one))]
        run = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        scraper = Scraper(run.pid, pathlib.Path(folder, "run/targets.json"))
        if is_scraped:
            scraper.start()
        errors = run.communicate()[1]
        if run.returncode != 0:
            raise SystemExit(errors)
        if is_scraped and scraper.num_scrapes < 10:
            raise SystemExit(f"only {scraper.num_scrapes} scrapes succeeded")
        return 1e3 / json.loads(pathlib.Path(folder, "run/summary.json").read_text())["samples_per_second"], scraper.share


def measure(build, number):
    found = {name: seconds(build, name == "scraped") for name in in_turn(("scraped", "alone"), number)}
    return {"1000 samples, scraped": found["scraped"][0], "1000 samples, alone": found["alone"][0], SHARE: found["scraped"][1]}


ROWS = [Row("time lost at 10 scrapes a second", lambda times: 100 * (times["1000 samples, scraped"] / times["1000 samples, alone"] - 1),
            0.5, at_most=True, unit="%"),
        Row("processor time of the pages' thread", lambda times: 100 * times[SHARE], unit="%")]
