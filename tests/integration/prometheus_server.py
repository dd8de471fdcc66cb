"""A real Prometheus for a test: started with our rules and a list of targets, queried over its own API."""
import json
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

from harness import SOURCE, wait_for

sys.path.insert(0, str(SOURCE / "tests" / "support"))
import skips
from ports import free_port

PROGRAM = SOURCE / ".venv-test" / "bin" / "prometheus"
ALERTS = SOURCE / "metrics" / "alerts"
CONFIG = """
global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}
rule_files: ["rules/*.yml"]
scrape_configs:
  - job_name: lockstep
    %s
"""


def shortened(rules):
    """Our rules, so that they fire within seconds: each time is a hundredth or less, and no rule waits before it fires."""
    rules = rules.replace("> 600\n", "> 3\n")
    return re.sub(r"^( +for:) \w+$", r"\1 0s", rules.replace("[10m]", "[10s]").replace("[15m]", "[10s]"), flags=re.MULTILINE)


class Prometheus:
    """Runs in `folder` until stop(); scrapes what the file or the page `targets` lists, four times a second."""

    def __init__(self, folder, targets, scrape="", flags=()):
        """`scrape`: further keys of the scrape's configuration, in one line. `flags`: further ones of the program."""
        is_page = str(targets).startswith("http:")
        found_by = f"http_sd_configs: [{{url: '{targets}'" if is_page else f"file_sd_configs: [{{files: ['{targets}']"
        if not PROGRAM.exists():
            skips.missing_tool(f"no {PROGRAM} (tools/setup test makes it)")
        (folder / "rules").mkdir(parents=True)
        for path in ALERTS.glob("*.yml"):
            (folder / "rules" / path.name).write_text(shortened(path.read_text()))
        (folder / "prometheus.yml").write_text(CONFIG % f"{found_by}, refresh_interval: 1s}}]\n    {scrape}")
        self.address = f"127.0.0.1:{free_port()}"
        self.log = folder / "log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([PROGRAM, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                             f"--web.listen-address={self.address}", "--log.level=warn", *flags], stdout=log, stderr=log)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def ask(self, path, **parameters):
        """The `data` of an answer of /api/v1; None if it is an error, or if Prometheus does not answer yet."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as fault:
            if fault.code == 503:  # it starts
                return None
            raise AssertionError(f"{url}: {fault.read().decode()}") from fault
        except OSError:
            return None

    def query(self, expression):
        """[(labels, value)] at this moment."""
        data = self.ask("query", query=expression)
        return [(one["metric"], float(one["value"][1])) for one in data["result"]] if data else []

    def value(self, expression):
        """Value of a query with one answer; None if it has none."""
        found = self.query(expression)
        assert len(found) <= 1, f"{expression}: {found}"
        return found[0][1] if found else None

    def firing(self):
        """Names of alerts that fire."""
        data = self.ask("alerts")
        return {one["labels"]["alertname"] for one in data["alerts"] if one["state"] == "firing"} if data else set()

    def wait_for_value(self, expression, holds, timeout_s=60):
        """The value once `holds` says so of it."""
        def asked():
            value = self.value(expression)
            return (value,) if value is not None and holds(value) else None
        return wait_for(asked, f"'{expression}' in Prometheus", timeout_s)[0]
