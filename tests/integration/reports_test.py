"""What a run tells other programs of itself: its result to a Pushgateway, its progress to the object of its job."""
import datetime
import http.server
import json
import re
import ssl
import subprocess
import sys
import threading
import unittest
import urllib.request

from harness import SOURCE, LockstepTest, metric, wait_for

sys.path.insert(0, str(SOURCE / "tests" / "support"))
import skips
from ports import free_port

PUSHGATEWAY = SOURCE / ".venv-test" / "bin" / "prometheus-pushgateway"


class Pushgateway(LockstepTest):
    def setUp(self):
        super().setUp()
        if not PUSHGATEWAY.exists():
            skips.missing_tool(f"no {PUSHGATEWAY} (tools/setup test makes it)")
        self.url = f"http://127.0.0.1:{free_port()}"
        server = subprocess.Popen([PUSHGATEWAY, f"--web.listen-address={self.url[7:]}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        wait_for(lambda: self.page() is not None, "the Pushgateway")

    def page(self):
        try:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            return None

    def ours(self):
        return [line for line in self.page().splitlines() if line.startswith("lockstep_")]

    def test_the_result_of_a_run_and_of_the_next_one_of_its_name(self):
        name = "a%b ü c"  # no name for a path of a URL
        sets = [f"metrics.pushgateway={self.url}", f"run.name={name}"]
        self.train(2, sets=[*sets, "train.max_steps=6"], run="first")
        self.assertEqual(metric(self.page(), "lockstep_step", instance="", job="lockstep", run=name), 6)
        self.train(1, sets=[*sets, "train.max_steps=4"], run="second")
        self.assertEqual(metric(self.page(), "lockstep_step", instance="", job="lockstep", run=name), 4)
        for line in self.ours():
            self.assertIn('instance="",job="lockstep"', line)
            self.assertIn(f'run="{name}"', line)
        self.assertEqual([line for line in self.ours() if "process_" in line or "lockstep_rank_info" in line], [], "of the run alone")
        self.assertEqual(metric(self.page(), "lockstep_run_state", instance="", job="lockstep", run=name, state="finished"), 1)

    def test_one_that_is_not_there_costs_a_warning(self):
        run = self.train(1, sets=[f"metrics.pushgateway=http://127.0.0.1:{free_port()}", "train.max_steps=3"])
        self.assertRegex(run.log, r" W \[metrics\] metrics.pushgateway: .*onnect")


class Status(http.server.BaseHTTPRequestHandler):
    """The controller's side: keeps what comes."""
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.reports.append((self.path, dict(self.headers), json.loads(body)))
        self.send_response(self.server.answers)
        self.end_headers()

    def log_message(self, *_):
        pass


class TrainJob(LockstepTest):
    def serve(self, answers=200):
        certificate, key, token = (self.folder / name for name in ("ca.crt", "server.key", "token"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=status",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate], check=True, capture_output=True)
        token.write_text("a-token\n")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Status)
        server.reports, server.answers = [], answers
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server, {"KUBEFLOW_TRAINER_SERVER_URL": f"https://127.0.0.1:{server.server_port}/apis/status",
                        "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(certificate), "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token)}

    def test_the_object_of_the_job_hears_how_far_it_is(self):
        server, environment = self.serve()
        run = self.train(2, sets=["train.max_steps=46", "eval.every_epochs=1"], environment=environment)
        self.assertEqual(len(server.reports), 1, "a short run reports its end")
        path, headers, body = server.reports[0]
        self.assertEqual((path, headers["Authorization"], headers["Content-Type"]), ("/apis/status", "Bearer a-token", "application/json"))
        status = body["trainerStatus"]
        self.assertEqual((status["progressPercentage"], status["estimatedRemainingSeconds"]), (100, 0))
        values = {one["name"]: one["value"] for one in status["metrics"]}
        self.assertEqual((values["step"], values["epoch"]), ("46", "2"))
        self.assertAlmostEqual(float(values["eval_accuracy"]), run.summary()["eval"]["accuracy"], delta=1e-5)
        self.assertAlmostEqual(float(values["loss"]), run.steps()[-1]["loss"], delta=1e-4)
        told = datetime.datetime.fromisoformat(status["lastUpdatedTime"].replace("Z", "+00:00"))
        self.assertLess(abs((datetime.datetime.now(datetime.timezone.utc) - told).total_seconds()), 100)

    def test_a_server_that_refuses_costs_a_warning(self):
        server, environment = self.serve(answers=403)
        run = self.train(1, sets=["train.max_steps=5"], environment=environment)
        self.assertEqual(len(server.reports), 1)
        self.assertEqual(len(re.findall(r" W \[metrics\] the TrainJob is not told of the progress: .* answers 403", run.log)), 1)


if __name__ == "__main__":
    unittest.main()
