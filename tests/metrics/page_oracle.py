"""Readers of others on the formats of a page: the strict OpenMetrics parser of Prometheus' Python library, and a Prometheus with native histograms."""
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as text_format

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "integration"))
from harness import BUILD, wait_for
from prometheus_server import Prometheus

PROGRAM = BUILD / "tests" / "metrics" / "serve_page"
OWN = "lockstep_http_"  # counts the requests for the page, so it differs between two


class Pages(unittest.TestCase):
    def setUp(self):
        self.server = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.server.wait)
        self.addCleanup(self.server.stdin.close)
        self.addCleanup(self.server.stdout.close)
        port, p99_s = self.server.stdout.readline().split()
        self.address, self.p99_s = f"127.0.0.1:{port}", float(p99_s)

    def page(self, accept):
        with urllib.request.urlopen(urllib.request.Request(f"http://{self.address}/metrics", headers={"Accept": accept})) as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    def test_open_metrics_says_what_the_text_says(self):
        (text_type, text), (open_type, opened) = self.page("text/plain"), self.page("application/openmetrics-text;version=1.0.0")
        self.assertIn("version=0.0.4", text_type)
        self.assertTrue(open_type.startswith("application/openmetrics-text; version=1.0.0"), open_type)

        def values(families):
            found = {}
            for family in families:
                for sample in family.samples:
                    labels = {name: float(value) if name == "le" else value for name, value in sample.labels.items()}
                    if not sample.name.startswith((OWN, "process_")):
                        found[(sample.name, *sorted(labels.items()))] = sample.value
            return found
        families = [*open_metrics(opened)]
        self.assertEqual(values(families), values(text_format(text)))
        self.assertGreater(len(values(families)), 150)
        exemplars = [sample.exemplar for family in families for sample in family.samples if sample.exemplar]
        self.assertGreater(len(exemplars), 5)
        for exemplar in exemplars:
            self.assertLessEqual(int(exemplar.labels["step"]), 20000)

    def test_prometheus_reads_native_histograms_and_exemplars(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "targets.json").write_text(f'[{{"targets": ["{self.address}"]}}]')
            server = Prometheus(folder / "prometheus", folder / "targets.json", flags=["--enable-feature=native-histograms,exemplar-storage"])
            self.addCleanup(server.stop)
            count = server.wait_for_value("histogram_count(lockstep_step_duration_seconds)", lambda value: value > 0)
            self.assertEqual(count, 20001)
            p99_s = server.value("histogram_quantile(0.99, lockstep_step_duration_seconds)")
            print(f"p99 of 20,001 steps: {p99_s:.6f} s by Prometheus from the native histogram, {self.p99_s:.6f} s exactly")
            self.assertLess(abs(p99_s / self.p99_s - 1), 0.05)
            for name, wanted in (("lockstep_allreduce_duration_seconds", 40002), ("lockstep_data_wait_duration_seconds", 20001),
                                 ("lockstep_checkpoint_save_duration_seconds", 1)):
                self.assertEqual(server.value(f"histogram_count({name})"), wanted, name)
            self.assertTrue(math.isclose(server.value("histogram_sum(lockstep_data_wait_duration_seconds)"), 20.001, rel_tol=1e-9))
            self.assertEqual(server.value("lockstep_steps_total"), 20001)

            def exemplars():
                found = server.ask("query_exemplars", query="lockstep_step_duration_seconds", start=0, end=4e9)
                return found and [(int(one["labels"]["step"]), float(one["value"])) for series in found for one in series["exemplars"]]
            for step, value in wait_for(exemplars, "exemplars in Prometheus"):
                self.assertTrue(0 < step <= 20000 and 0 < value < 1, (step, value))


if __name__ == "__main__":
    unittest.main()
