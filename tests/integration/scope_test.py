"""One page for a node or for the run (metrics.scope): a real Prometheus sees all ranks through it, a browser too, and a rank that hangs blocks no reader."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

import moved_series
from harness import BUILD, ENDLESS, SOURCE, wait_for, within
from observe_test import curl
from prometheus_server import Prometheus
from prometheus_test import ScrapedRun

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import browser

PROMTOOL = SOURCE / ".venv-test" / "bin" / "promtool"


def loopback_port(pid):
    """The one port at 127.0.0.1 where a process listens."""
    inodes = {os.readlink(entry) for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ports = [int(row[1][-4:], 16) for row in rows if row[1].startswith("0100007F:") and row[3] == "0A" and f"socket:[{row[9]}]" in inodes]
    assert len(ports) == 1, ports
    return ports[0]


class Scopes(ScrapedRun):
    def start_in(self, scope, *sets):
        """A run of two ranks without end, and the entries of its targets.json."""
        run = self.start(2, config=ENDLESS, sets=["sync.timeout_s=600", f"metrics.scope={scope}", *sets])
        wait_for((run.folder / "targets.json").exists, "targets.json")
        return run, json.loads((run.folder / "targets.json").read_text())

    def test_one_target_holds_the_series_of_all_ranks(self):
        for scope in ("run", "node"):
            with self.subTest(scope=scope):
                run, targets = self.start_in(scope)
                self.assertEqual([{name: value for name, value in one["labels"].items() if name != "__param_process"} for one in targets], [{"run": "digits"}])
                wait_for(lambda: run.ctl("status")["state"] == "training", "the training")
                server = Prometheus(self.folder / f"prometheus-{scope}", run.folder / "targets.json")
                self.addCleanup(server.stop)
                server.wait_for_value("count(lockstep_rank_info)", lambda count: count == 2)
                for rank in ("0", "1"):
                    server.wait_for_value(f'lockstep_steps_total{{rank="{rank}"}}', lambda steps: steps > 0)
                info = {one["rank"]: one for one, _ in server.query("lockstep_rank_info")}
                self.assertEqual(sorted(info), ["0", "1"])
                self.assertTrue(all(one["node"] and one["run"] == "digits" and "exported_rank" not in one for one in info.values()), info)
                self.assertEqual(server.value("max(lockstep_world_ranks) - count(lockstep_rank_info)"), 0)
                self.assertEqual(server.value("max(lockstep_http_missing_ranks)"), 0)
                self.stop(run)
                server.stop()

    def test_promtool_has_no_remark(self):
        run, targets = self.start_in("run")
        page = curl(targets[0]["targets"][0])
        self.assertEqual(len(set(re.findall(r'lockstep_steps_total\{rank="(\d)"', page))), 2)
        checked = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True, text=True, timeout=60)
        self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""))
        self.stop(run)

    def test_a_rank_that_hangs_keeps_nobody(self):
        run, targets = self.start_in("run")
        address = targets[0]["targets"][0]
        pids = run.rank_pids()
        wait_for(lambda: 'rank="1"' in curl(address), "rank 1's series")
        os.kill(pids[1], signal.SIGSTOP)
        try:
            threads = pathlib.Path(f"/proc/{pids[1]}/task")
            wait_for(lambda: all(") T " in (one / "stat").read_text() for one in threads.iterdir()), "rank 1 to stand still")
            with within(5, "the page of the other ranks"):
                page = curl(address)
            self.assertNotIn('lockstep_steps_total{rank="1"', page)
            self.assertIn('lockstep_steps_total{rank="0"', page)
            moved_series.record(BUILD, page)
            self.assertRegex(page, r'lockstep_http_missing_ranks\{rank="0",node="[^"]+"\} 1\n')
            with within(1, "a probe"):
                curl(address, "/livez")
        finally:
            os.kill(pids[1], signal.SIGCONT)
        wait_for(lambda: 'lockstep_steps_total{rank="1"' in curl(address), "rank 1 to be back")
        self.stop(run)

    def test_the_page_for_people_shows_all_ranks_through_one_port(self):
        run, targets = self.start_in("run")
        wait_for((run.folder / "train/steps.csv").exists, "a step")
        seen = browser.look_at(f"http://{targets[0]['targets'][0]}/")
        self.assertEqual(seen.complaints, [])
        self.assertEqual([row[0] for row in seen.rows()], ["0", "1"])
        for row in seen.rows():
            self.assertRegex(" ".join(row[2:]), r"^[\d.,]+ [\d.,]+ [\d.]+ % [\d.]+ % \d+ MB$")
        self.stop(run)

    def test_others_pages_open_to_nobody_else(self):
        run, _ = self.start_in("run")
        answer = curl(f"127.0.0.1:{loopback_port(run.rank_pids()[1])}")
        self.assertIn("needs a password or a token", answer)
        self.stop(run)


if __name__ == "__main__":
    unittest.main()
