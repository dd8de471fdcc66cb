"""A real Prometheus scrapes a run of two ranks through targets.json: values move, every panel has data, a stalled rank raises the alerts."""
import html
import json
import os
import re
import signal
import sys
import time
import unittest

from harness import ENDLESS, SOURCE, LockstepTest, wait_for
from prometheus_server import Prometheus

sys.path.insert(0, str(SOURCE / "tools/dashboard"))
import draw

# Panels that stay empty in the run below: it has none of what they show.
EMPTY = {"Evaluation metrics", "Callback KPIs", "Per-class metrics", "Layer sparsity", "Layer sparsity table", "Gradient norm", "GPU memory",
         "GPU memory reserved", "Failed GPU allocations"}


class ScrapedRun(LockstepTest):
    def start_scraped(self, *sets):
        """A run without end on two ranks, and a Prometheus that sees both."""
        run = self.start(2, config=ENDLESS, sets=["sync.timeout_s=600", *sets])
        server = Prometheus(self.folder / "prometheus", run.folder / "targets.json")
        self.addCleanup(server.stop)
        server.wait_for_value("count(up == 1)", lambda count: count == 2)
        return run, server

    def stop(self, run):
        run.process.send_signal(signal.SIGUSR1)
        run.wait()
        self.assertEqual(run.code, 75, run.log)


class Scraped(ScrapedRun):
    def test_values_move_and_carry_the_ranks_labels(self):
        run, server = self.start_scraped()
        targets = {(one["run"], one["rank"]): one["node"] for one, _ in server.query("up")}
        self.assertEqual(sorted(targets), [("digits", "0"), ("digits", "1")])
        self.assertEqual({one["node"] for one, _ in server.query("lockstep_rank_info")}, set(targets.values()))
        for name in ("lockstep_step", "sum(lockstep_samples_total)", "min(lockstep_steps_total)", "sum(lockstep_allreduce_bytes_total)"):
            before = server.wait_for_value(name, lambda value: value > 0)
            server.wait_for_value(name, lambda value, before=before: value > before)
        server.wait_for_value("sum(rate(lockstep_samples_total[5s]))", lambda speed: speed > 0)
        self.assertEqual(server.value('lockstep_run_state{state="training"}'), 1)
        self.assertEqual(server.value("max(lockstep_world_ranks) - count(lockstep_rank_info)"), 0)
        server.wait_for_value("job_run:lockstep_samples:rate10m", lambda speed: speed > 0)
        self.assertNotIn("LockstepRunStalled", server.firing())
        self.stop(run)
        wait_for(lambda: server.query("up") == [], "the targets to go")

    def test_rank_0_alone_tells_where_all_are(self):
        run = self.start(2, config=ENDLESS)
        targets = run.folder / "targets.json"
        wait_for(targets.exists, "targets.json")
        root = json.loads(targets.read_text())[0]["targets"][0]
        server = Prometheus(self.folder / "prometheus", f"http://{root}/targets.json")
        self.addCleanup(server.stop)
        server.wait_for_value("count(up == 1)", lambda count: count == 2)
        self.assertEqual(sorted((one["run"], one["rank"]) for one, _ in server.query("up")), [("digits", "0"), ("digits", "1")])
        self.stop(run)

    def test_every_panel_of_the_dashboard_has_data(self):
        run, server = self.start_scraped("data.eval.type=digits", "data.eval.split=test", "eval.every_epochs=1",
                                         "checkpoint.save_checkpoints_secs=1", "data.loader_threads=1",
                                         self.recipe("version: 1.0.0\nmodifiers:\n  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.1,"
                                                     " final_sparsity: 0.6, start_step: 1, end_step: 90000, update_frequency_steps: 30}\n"))
        server.wait_for_value("count_over_time(lockstep_validation_loss[1m])", lambda count: count > 8)
        server.wait_for_value("lockstep_checkpoint_saves_total", lambda count: count > 1)
        begin = time.time() - 5
        dashboard = json.loads((SOURCE / "metrics/grafana/lockstep.json").read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                expression = re.sub(r"\$(job|run|node|instance)", ".*", target["expr"].replace("$__rate_interval", "5s"))
                with self.subTest(panel["title"], expression=expression):
                    if panel["title"] not in EMPTY:
                        wait_for(lambda asked=expression: server.query(asked), f"data of '{panel['title']}': {expression}", timeout_s=10)
        self.assert_drawn(draw.page(draw.Source(server.ask, begin, time.time(), rate_interval="5s")), dashboard)
        self.stop(run)

    def assert_drawn(self, page, dashboard):
        """The page that tools/dashboard_picture makes: every open panel with its data."""
        self.assertIsNone(re.search(r"https?:|<script|<link|@import|[> ](nan|inf)\b", page), "it needs nobody, and holds numbers")
        shown = {html.unescape(title): inside for title, inside in re.findall(r'<div class="panel".*?><h3>(.*?)</h3>(.*?)</div>', page, re.S)}
        opened = {panel["title"]: panel["type"] for panel in dashboard["panels"] if panel["type"] != "row"}
        self.assertEqual(set(opened), set(shown))
        self.assertEqual({title for title, inside in shown.items() if "none in this run" in inside}, EMPTY)
        for title, inside in shown.items():
            kind = opened[title]
            if title not in EMPTY and kind in ("timeseries", "heatmap"):
                drawn = re.findall(r'<path d="M[\d.]+ [\d.]+', inside) if kind == "timeseries" else re.findall("<rect ", inside)
                self.assertTrue(drawn, title)
        self.assertRegex(shown["State"], r'<p class="number">(training|saving|validating)</p>')
        self.assertRegex(shown["Throughput"], r"digits <b>[\d.]+ K? ?samples/s</b>")

    def test_a_stalled_rank_raises_the_alerts_and_its_return_ends_them(self):
        run, server = self.start_scraped()
        server.wait_for_value("lockstep_step", lambda step: step > 10)
        stalled = run.rank_pids()[1]
        os.kill(stalled, signal.SIGSTOP)
        try:
            wait_for(lambda: {"LockstepRunStalled", "LockstepTargetDown"} <= server.firing(), "the alerts")
            down = [labels["rank"] for labels, _ in server.query('ALERTS{alertname="LockstepTargetDown", alertstate="firing"}')]
            self.assertEqual(down, ["1"])
        finally:
            os.kill(stalled, signal.SIGCONT)
        wait_for(lambda: server.ask("alerts") is not None and
                 not {"LockstepRunStalled", "LockstepTargetDown"} & server.firing(), "the alerts to end")
        self.stop(run)


if __name__ == "__main__":
    unittest.main()
