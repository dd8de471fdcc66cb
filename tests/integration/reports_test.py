"""Progress that a run reports to the object of its job."""
import datetime
import http.server
import json
import re
import ssl
import subprocess
import threading
import unittest

from harness import LockstepTest


class Status(http.server.BaseHTTPRequestHandler):
    """The controller's side: keeps received reports."""
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
        self.assertEqual(len(re.findall(r" W \[metrics\] the progress is not reported to the TrainJob: .* status 403", run.log)), 1)


if __name__ == "__main__":
    unittest.main()
