"""Traces of an ending run for monitoring: pages for a last scrape, a file for a node exporter, and its output about starts and clients."""
import hashlib
import json
import os
import re
import socket
import subprocess
import unittest

import moved_series
from harness import BUILD, SOURCE, LockstepTest, metric, stays, wait_for, within
from observe_test import curl

PROMTOOL = SOURCE / ".venv-test" / "bin" / "promtool"
SHORT = ["train.max_steps=30"]


class Linger(LockstepTest):
    def start_lingering(self, *sets):
        """A run of two ranks that has ended but for its pages."""
        run = self.start(2, sets=[*SHORT, *sets])
        wait_for((run.folder / "summary.json").exists, "the end of training")
        wait_for(lambda: (run.folder / "logs/rank1.prom").exists(), "rank 1's last page")
        return run, [one["targets"][0] for one in json.loads((run.folder / "targets.json").read_text())]

    def test_the_pages_stay_until_each_rank_is_scraped(self):
        run, addresses = self.start_lingering("metrics.linger_secs=90")
        page = curl(addresses[0])
        self.assertEqual(metric(page, "lockstep_run_state", state="finished"), 1)
        self.assertEqual(metric(page, "lockstep_step"), 30)
        curl(addresses[1], "/healthz")  # a probe is no scrape
        stays(lambda: run.process.poll() is None, "the wait for a scrape of rank 1", 1)
        self.assertEqual(metric(curl(addresses[1]), "lockstep_steps_total"), 30)
        with within(30, "the end after the last scrape"):
            run.wait()
        self.assertEqual(run.code, 0, run.log)
        self.assertFalse((run.folder / "targets.json").exists())

    def test_a_signal_ends_the_wait(self):
        run, _ = self.start_lingering("metrics.linger_secs=3600")
        run.process.send_signal(10)
        self.assertEqual(run.wait().code, 0, run.log)

    def test_a_run_that_is_watched_waits_for_the_watcher_and_no_other_does(self):
        """The default: if Prometheus has scraped a rank, it gets to see how the run ends."""
        with within(19, "a run that nobody watches"):
            run = self.start(1, sets=SHORT).wait()
        self.assertEqual(run.code, 0, run.log)
        run = self.start(1, sets=["train.max_steps=3000", "eval.every_epochs=0", "recipe=null"], run="watched")
        wait_for((run.folder / "targets.json").exists, "targets.json")
        [address] = [one["targets"][0] for one in json.loads((run.folder / "targets.json").read_text())]
        self.assertIn("lockstep_steps_total", curl(address))
        wait_for((run.folder / "summary.json").exists, "the end of training")
        wait_for(lambda: 'lockstep_run_state{state="finished"} 1' in curl(address), "the page to say so")
        self.assertEqual(run.wait().code, 0, run.log)

    def test_nobody_waits_longer_than_said(self):
        run, _ = self.start_lingering("metrics.linger_secs=0.5")
        with within(5, "the end after half a second"):
            run.wait()
        self.assertEqual(run.code, 0, run.log)

    def test_a_run_that_was_stopped_does_not_linger(self):
        run = self.start_faulty("term", rank=0, step=5, sets=[*SHORT, "metrics.linger_secs=3600", "preemption.grace_seconds=60"]).wait()
        self.assertEqual(run.code, 75, run.log)


class Textfile(LockstepTest):
    def file_of(self, run):
        digits = hashlib.sha256(b"two runs").hexdigest()[:8]  # apart from a run named two_runs
        text = (self.folder / "node" / f"lockstep_two_runs_{digits}.prom").read_text()
        if PROMTOOL.exists():
            checked = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True)
            self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""))
        self.assertEqual(os.listdir(self.folder / "node"), [f"lockstep_two_runs_{digits}.prom"])
        self.assertEqual(set(re.findall(r'run="([^"]*)"', text)), {"two runs"})
        for line in text.splitlines():
            self.assertTrue(line.startswith("#") or 'run="two runs"' in line, line)
        return text

    def sets(self):
        (self.folder / "node").mkdir()
        return [*SHORT, f"metrics.textfile_dir={self.folder / 'node'}", "run.name=two runs"]

    def test_a_finished_run_leaves_its_series(self):
        more = ["eval.every_epochs=1", "eval.metrics=[precision_recall]", "optimizer.weight_decay=0.001"]
        text = self.file_of(self.train(2, sets=[*self.sets(), *more]))
        self.assertEqual(metric(text, "lockstep_weight_decay", group="weights"), 0.001)
        self.assertGreater(metric(text, "lockstep_validation_class_metric", metric="precision"), 0)
        self.assertEqual(metric(text, "lockstep_step"), 30)
        self.assertEqual(metric(text, "lockstep_run_state", state="finished"), 1)
        self.assertNotIn("lockstep_steps_total", text)  # of a rank
        self.assertNotIn("process_", text)  # node exporter has its own

    def test_a_failed_run_says_so(self):
        run = self.start_faulty("fail", rank=0, step=5, sets=self.sets()).wait()
        self.assertEqual(run.code, 74, run.log)
        self.assertEqual(metric(self.file_of(run), "lockstep_run_state", state="failed"), 1)

    def test_a_folder_that_is_not_there_costs_a_warning(self):
        run = self.train(1, sets=[*SHORT, f"metrics.textfile_dir={self.folder / 'none'}"])
        self.assertRegex(run.log, r"W .*\[metrics\] metrics\.textfile_dir: .*none")


class Counted(LockstepTest):
    def test_starts_that_the_launcher_counts_and_clients_that_are_cut(self):
        run = self.start(1, sets=[*SHORT, "metrics.linger_secs=90"], environment={"SLURM_RESTART_COUNT": "2"})
        wait_for((run.folder / "targets.json").exists, "targets.json")
        host, port = json.loads((run.folder / "targets.json").read_text())[0]["targets"][0].rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
            self.assertIn(b"400", client.recv(1000))
        wait_for((run.folder / "logs/rank0.prom").exists, "the end of training")
        page = curl(f"{host}:{port}")
        run.wait()
        moved_series.record(BUILD, page)
        self.assertEqual(metric(page, "lockstep_restarts"), 2)
        self.assertEqual(metric(page, "lockstep_http_rejected_connections_total", reason="header"), 1)

    def test_targets_are_served_as_they_are_written(self):
        run = self.start(2, sets=[*SHORT, "metrics.linger_secs=90"])
        wait_for((run.folder / "logs/rank1.prom").exists, "the end of training")
        written = (run.folder / "targets.json").read_text()
        addresses = [one["targets"][0] for one in json.loads(written)]
        self.assertEqual(curl(addresses[0], "/targets.json"), written)
        self.assertIn("no such page", curl(addresses[1], "/targets.json"))
        for address in addresses:
            curl(address)
        self.assertEqual(run.wait().code, 0, run.log)


if __name__ == "__main__":
    unittest.main()
