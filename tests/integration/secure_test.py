"""Pages that ask who reads them: TLS, passwords and tokens of a real run, read by Prometheus, curl and openssl; promtool reads the same file."""
import crypt
import json
import re
import subprocess
import sys
import unittest

from harness import ENDLESS, SOURCE, wait_for
from prometheus_server import PROGRAM, Prometheus
from prometheus_test import ScrapedRun

sys.path.insert(0, str(SOURCE / "tests" / "support"))
import skips
from counts import counted

PASSWORD = "a plain password"
TOKEN = "0123456789abcdef0123456789abcdef"


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


def curl(*arguments):
    """Code of the answer (0: none) and what curl printed."""
    done = subprocess.run(["curl", "-s", "-m", "10", "-w", "\n%{http_code}", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    body, _, code = done.stdout.rpartition("\n")
    return int(code), body


class Secured(ScrapedRun):
    def setUp(self):
        super().setUp()
        self.web = self.folder / "web"
        self.web.mkdir()
        self.certificate("server", "/CN=server", "subjectAltName=DNS:localhost,IP:127.0.0.1")
        (self.web / "token").write_text(TOKEN + "\n")

    def certificate(self, name, subject, names):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", subject,
                "-addext", names, "-keyout", self.web / f"{name}.key", "-out", self.web / f"{name}.crt")

    def config(self, text):
        """The settings of a run whose web config has this text."""
        path = self.web / "web.yml"
        path.write_text(text)
        return f"metrics.web_config={path}"

    def users(self, cost=10):
        return f"basic_auth_users: {{ada: '{crypt.crypt(PASSWORD, crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=2 ** cost))}'}}\n"

    def address(self, run):
        """Address of rank 0, as soon as targets.json has it."""
        path = run.folder / "targets.json"
        wait_for(path.exists, "targets.json")
        return json.loads(path.read_text())[0]["targets"][0]

    def test_prometheus_scrapes_over_tls_with_a_password(self):
        setting = self.config("tls_server_config: {cert_file: server.crt, key_file: server.key}\n" + self.users())
        promtool = PROGRAM.with_name("promtool")
        if not promtool.exists():
            skips.missing_tool(f"no {promtool} (tools/setup test makes it)")
        done = subprocess.run([promtool, "check", "web-config", self.web / "web.yml"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        run = self.start(2, config=ENDLESS, sets=[setting])
        address = self.address(run)
        trusted = ["--cacert", self.web / "server.crt"]
        server = Prometheus(self.folder / "prometheus", run.folder / "targets.json",
                            f"basic_auth: {{username: ada, password: {PASSWORD}}}\n    tls_config: {{ca_file: {self.web}/server.crt}}")
        self.addCleanup(server.stop)
        server.wait_for_value("count(up == 1)", lambda count: count == 2)
        server.wait_for_value("lockstep_step", lambda step: step > 0)
        self.assertEqual(curl(*trusted, f"https://{address}/metrics")[0], 401)
        self.assertEqual(curl(*trusted, "-u", f"ada:{PASSWORD}", f"https://{address}/livez"), (200, "ok\n"))
        login = ["-u", f"ada:{PASSWORD}"]
        for what, words in counted("connections that are not safe refused", (("a certificate that nobody trusts", [*login, f"https://{address}/livez"]),
                                                                             ("without TLS", [*login, f"http://{address}/livez"]),
                                                                             ("an old version of TLS", [*trusted, "--tls-max", "1.1", f"https://{address}/livez"]))):
            self.assertEqual(curl(*words)[0], 0, what)
        page = curl(*trusted, "-u", f"ada:{PASSWORD}", f"https://{address}/metrics")[1]
        self.assertRegex(page, r'lockstep_http_rejected_connections_total\{reason="credentials"\} [1-9]')
        self.assertRegex(page, r'lockstep_http_rejected_connections_total\{reason="tls"\} [1-9]')
        self.stop(run)
        self.assertIn(f"https://{address}/metrics", run.log)

    def test_clients_show_certificates(self):
        self.certificate("client", "/CN=client", "subjectAltName=DNS:prometheus.lan")
        self.certificate("other", "/CN=other", "subjectAltName=DNS:other.lan")
        (self.web / "clients.crt").write_text("".join((self.web / f"{name}.crt").read_text() for name in ("client", "other")))
        run = self.start(1, config=ENDLESS, sets=[self.config(
            "tls_server_config: {cert_file: server.crt, key_file: server.key, client_ca_file: clients.crt,\n"
            "  client_auth_type: RequireAndVerifyClientCert, client_allowed_sans: [prometheus.lan]}\n")])
        url, trusted = f"https://{self.address(run)}/livez", ["--cacert", self.web / "server.crt"]

        def code_with(name):
            return curl(*trusted, "--cert", self.web / f"{name}.crt", "--key", self.web / f"{name}.key", url)[0]
        self.assertEqual(code_with("client"), 200)
        for name in counted("clients without the right certificate refused", ("other", "server")):  # a name that is not allowed, one that is not trusted
            self.assertEqual(code_with(name), 0, name)
        self.assertEqual(curl(*trusted, url)[0], 0, "no certificate")
        self.stop(run)

    def test_a_renewed_certificate_is_read_while_the_run_goes_on(self):
        run = self.start(1, config=ENDLESS, sets=[self.config("tls_server_config: {cert_file: server.crt, key_file: server.key}\n")])
        url, first = f"https://{self.address(run)}/livez", self.web / "first.crt"
        first.write_bytes((self.web / "server.crt").read_bytes())
        self.assertEqual(curl("--cacert", first, url)[0], 200)
        key = (self.web / "server.key").read_bytes()
        (self.web / "server.key").write_text("half a key")
        self.assertEqual(curl("--cacert", first, url)[0], 200, "the old one stays where the new one cannot be used")
        (self.web / "server.key").write_bytes(key)
        self.certificate("server", "/CN=renewed", "subjectAltName=IP:127.0.0.1")
        self.assertEqual(curl("--cacert", self.web / "server.crt", url)[0], 200)
        self.assertEqual(curl("--cacert", first, url)[0], 0, "the old one is shown no more")
        self.stop(run)
        self.assertIn("keeping the previous certificate", run.log)
        self.assertIn("server.crt was reloaded", run.log)

    def test_a_token_lets_a_run_listen_everywhere(self):
        refused = self.start(1, sets=["metrics.listen=':0'", "train.max_steps=2"]).wait()
        self.assertEqual(refused.code, 78, refused.log)
        self.assertIn("name 'metrics.token_file'", refused.log)
        self.assertFalse(refused.folder.exists())
        run = self.start(2, config=ENDLESS, sets=["metrics.listen=':0'", f"metrics.token_file={self.web}/token"])
        port = self.address(run).rpartition(":")[2]
        url = f"http://127.0.0.1:{port}/healthz"
        self.assertEqual(curl(url)[0], 401)
        self.assertEqual(curl("-H", f"Authorization: Bearer {TOKEN}", url)[0], 200)
        self.stop(run)
        self.assertNotIn(TOKEN, run.log + "".join(path.read_text() for path in run.folder.glob("logs/*")))

    def test_faulty_files_end_every_rank_with_78(self):
        for text, told in counted("faulty files end both ranks", (("tls_server_config: {cert_file: none.crt, key_file: server.key}\n", "cert_file"),
                           ("tls_server_config: {cert_file: server.crt, key_file: server.crt}\n", "key_file"),
                           ("basic_auth_users: {ada: secret}\n", "is not a bcrypt hash"), ("users: {}\n", "unknown key"))):
            with self.subTest(text):
                run = self.start(2, sets=[self.config(text), "train.max_steps=2"], run=re.sub(r"\W", "", text)).wait()
                self.assertEqual(run.code, 78, run.log)
                self.assertIn(told, run.log)


if __name__ == "__main__":
    unittest.main()
