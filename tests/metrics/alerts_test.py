"""metrics/alerts: promtool accepts the rules, every alert has a case that fires and one that does not, and names of series exist."""
import pathlib
import re
import tempfile
import unittest

from promql import SOURCE, exported_types, promtool, series_in

RULES = SOURCE / "metrics" / "alerts"
CASES = SOURCE / "tests" / "metrics" / "alerts"


def alert_names():
    return re.findall(r"^ +- alert: (\w+)$", (RULES / "lockstep_alerts.rules.yml").read_text(), re.MULTILINE)


def expressions(path):
    """Every `expr` of a file of rules, also those of several lines."""
    return [re.sub(r"\s+", " ", found) for found in re.findall(r"expr: (?:\|\n)?(.*?)(?=\n +(?:for|labels|- record|#)|\Z)", path.read_text(), re.S)]


class Alerts(unittest.TestCase):
    def test_promtool_has_no_remark_on_the_rules(self):
        done = promtool("check", "rules", "--lint=all", "--lint-fatal", *sorted(RULES.glob("*.yml")))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_case_holds(self):
        files = sorted(CASES.glob("*.yml"))
        self.assertEqual(len(files), 4)
        done = promtool("test", "rules", *files)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_alert_has_a_case_that_fires_and_one_that_does_not(self):
        cases = "".join(path.read_text() for path in CASES.glob("*.yml"))
        self.assertEqual(len(alert_names()), 17)
        for name in alert_names():
            self.assertRegex(cases, rf"- \{{alertname: {name}, eval_time: \w+, exp_alerts: \[\]\}}", name)
            self.assertRegex(cases, rf"- alertname: {name}\n +eval_time: \w+\n +exp_alerts:\n +- exp_labels:", name)

    def test_a_case_fails_without_its_alert(self):
        """Cases notice the absence of each alert in turn."""
        text = (RULES / "lockstep_alerts.rules.yml").read_text()
        recording = RULES / "lockstep_recording.rules.yml"
        for name in alert_names():
            with self.subTest(name), tempfile.TemporaryDirectory() as temporary:
                folder = pathlib.Path(temporary)
                (folder / "broken.yml").write_text(text.replace(f"alert: {name}\n", f"alert: {name}Not\n"))
                cases = [path for path in CASES.glob("*.yml") if f"alertname: {name}\n" in path.read_text()]
                for path in cases:
                    named = path.read_text().replace("../../../metrics/alerts/lockstep_alerts.rules.yml", str(folder / "broken.yml"))
                    (folder / path.name).write_text(named.replace("../../../metrics/alerts/lockstep_recording.rules.yml", str(recording)))
                done = promtool("test", "rules", *folder.glob("*_test.yml"))
                self.assertIn("FAILED", done.stdout + done.stderr)
                self.assertIn(name, done.stdout + done.stderr)

    def test_a_pod_monitor_gives_the_labels_that_the_rules_ask_for(self):
        """The operator's own job would be `namespace/name`, which job=~"lockstep.*" does not take, and there would be no `run`."""
        text = (SOURCE / "launch/kubernetes/base/pod_monitor.yaml").read_text()
        self.assertIn("  jobLabel: app.kubernetes.io/name ", text)
        self.assertIn("- {sourceLabels: [__meta_kubernetes_pod_label_app_kubernetes_io_instance], targetLabel: run}", text)
        for kind in ("mpijob/job.yaml", "jobset/job.yaml", "trainjob/runtime.yaml"):
            labels = re.findall(r"labels: \{(app[^}]*)\}", (SOURCE / "launch/kubernetes" / kind).read_text())
            self.assertEqual(labels, ["app.kubernetes.io/name: lockstep, app.kubernetes.io/instance: lockstep"] * 2, kind)

    def test_configurations_in_the_docs_are_those_of_prometheus(self):
        """Each YAML block with scrape_configs or job_name, by promtool: one that Prometheus refuses keeps it from starting."""
        number = 0
        for page in sorted((SOURCE / "docs").rglob("*.md")):
            for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
                if "scrape_configs" not in block and "job_name" not in block:
                    continue
                number += 1
                with tempfile.TemporaryDirectory() as temporary:
                    folder = pathlib.Path(temporary)
                    for name in ("password", "token", "server.crt"):
                        (folder / name).write_text("0123456789abcdef\n")
                    config = folder / "prometheus.yml"
                    config.write_text(block if "scrape_configs" in block else "scrape_configs:\n" + block)
                    done = promtool("check", "config", "--syntax-only", config)
                    self.assertEqual(done.returncode, 0, f"{page.name}: {done.stdout}{done.stderr}\n{block}")
        self.assertGreaterEqual(number, 2)
        print(f"\n{number} configurations of Prometheus in the docs pass promtool")

    def test_every_series_exists(self):
        types = exported_types()
        recorded = set()
        for path in sorted(RULES.glob("*.yml"), reverse=True):
            recorded |= set(re.findall(r"- record: (\S+)", path.read_text()))
            found = [name for expression in expressions(path) for name in series_in(expression)]
            self.assertGreater(len(found), 10, path.name)
            self.assertEqual([name for name in found if name not in types], [], path.name)
        used = {name for path in RULES.glob("*.yml") for one in expressions(path) for name in re.findall(r"\bjob_run:[\w:]+", one)}
        self.assertEqual(used - recorded, set())


if __name__ == "__main__":
    unittest.main()
