#!/usr/bin/env python3
"""A store of objects on loopback (moto, in .venv-test), judged by botocore's signatures: object_store.py; prints its port. StoreProcess
starts it.

Requests with the header x-test are let through unsigned (PUT of buckets and objects). Others must be signed with KEY and SECRET, except
on buckets whose name begins with "public". /-test/faults takes JSON: what the next GETs of objects get, one each: a status, "cut" (half
the body), "shifted" (a wrong Content-Range); /-test/key replaces the secret; below /-base/storage/v1/s3 is the same; /-test/counts answers with how often each kind of request came. Listings come in pages of 5.
"""
import json
import pathlib
import subprocess
import sys
import threading
import urllib.request

KEY, SECRET, TOKEN = "AKTEST", "not/a+secret", "of a session"


class StoreProcess:
    """The program below, run by a Python that has moto, until close()."""

    def __init__(self, python):
        self.process = subprocess.Popen([python, pathlib.Path(__file__)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        self.variables = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": self.url, "no_proxy": "*"}

    def close(self):
        self.process.communicate()  # ends its input

    def ask(self, path, method="GET", data=None):
        request = urllib.request.Request(f"{self.url}/{urllib.request.quote(path)}", data, {"x-test": "1", "Content-Type": "x/x"}, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return answer.read()

    def put(self, path, data=None):
        """An object, or a bucket."""
        self.ask(path, "PUT", data)

    def put_folder(self, bucket, folder):
        self.put(bucket)
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{bucket}/{path.relative_to(folder)}", path.read_bytes())

    def faults(self, *faults):
        self.ask("-test/faults", "POST", json.dumps(faults).encode())

    def key(self, secret, status=403, code="SignatureDoesNotMatch"):
        """Sets the secret of KEY, and the answer to requests that are signed with another one."""
        self.ask("-test/key", "POST", json.dumps([secret, status, code]).encode())

    def counts(self):
        """Since the last call."""
        return json.loads(self.ask("-test/counts"))


class Store:
    def __init__(self, app):
        self.app, self.faults, self.counts, self.lock = app, [], {}, threading.Lock()
        self.secret, self.denied = SECRET, (403, "SignatureDoesNotMatch")

    def __call__(self, environ, start_response):
        path, query = environ["PATH_INFO"], environ["QUERY_STRING"]
        if path == "/-test/faults":
            self.faults = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            return answer(start_response, 200, "")
        if path == "/-test/key":
            self.secret, *self.denied = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            return answer(start_response, 200, "")
        if path == "/-test/counts":
            counts, self.counts = self.counts, {}
            return answer(start_response, 200, json.dumps(counts))
        if "HTTP_X_TEST" in environ:
            return self.let_through(environ, start_response)
        kind = "LIST" if "list-type=2" in query else environ["REQUEST_METHOD"]
        with self.lock:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            fault = self.faults.pop(0) if kind == "GET" and self.faults else None
        if not path.startswith("/public") and not is_signed(environ, self.secret):
            return answer(start_response, self.denied[0], fault_xml(self.denied[1], "The signature does not match."))
        if path.startswith("/-base/storage/v1/s3/"):  # the signature covers it
            for name in ("PATH_INFO", "REQUEST_URI", "RAW_URI"):
                environ[name] = environ[name].replace("/-base/storage/v1/s3", "", 1)
        if isinstance(fault, int):
            return answer(start_response, fault, fault_xml("InternalError", "We encountered an internal error."))
        if kind == "LIST":
            environ["QUERY_STRING"] = query + "&max-keys=5"
        return self.let_through(environ, start_response) if fault is None else self.spoilt(fault, environ, start_response)

    def let_through(self, environ, start_response):
        environ.setdefault("HTTP_AUTHORIZATION", "AWS4-HMAC-SHA256 Credential=x/20130524/us-east-1/s3/aws4_request")  # moto has its own doubts
        return self.app(environ, start_response)

    def spoilt(self, fault, environ, start_response):
        said = []
        body = b"".join(self.app(environ, lambda status, headers, _=None: said.extend((status, headers))))
        headers = {name.title(): value for name, value in said[1]}
        if fault == "shifted":
            headers["Content-Range"] = "bytes 1-" + headers["Content-Range"].split("-", 1)[1]
        start_response(said[0], list(headers.items()))
        return [body[:len(body) // 2] if fault == "cut" else body]


def is_signed(environ, secret):
    """True if botocore signs the same request alike."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
    given = environ.get("HTTP_AUTHORIZATION", "")
    if not given.startswith("AWS4-HMAC-SHA256 "):
        return False
    parts = dict(part.split("=", 1) for part in given.removeprefix("AWS4-HMAC-SHA256 ").split(","))
    key, _, region, service, _ = parts["Credential"].split("/")
    if key != KEY or not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(parts["SignedHeaders"].split(";")):
        return False
    headers = {name: environ["HTTP_" + name.upper().replace("-", "_")] for name in parts["SignedHeaders"].split(";")}
    url = f"http://{environ['HTTP_HOST']}{environ['REQUEST_URI']}"
    request = AWSRequest(environ["REQUEST_METHOD"], url, headers=headers)
    request.context["timestamp"] = environ["HTTP_X_AMZ_DATE"]
    token = environ.get("HTTP_X_AMZ_SECURITY_TOKEN")
    judge = S3SigV4Auth(Credentials(KEY, secret, token), service, region)
    expected = judge.signature(judge.string_to_sign(request, judge.canonical_request(request)), request)
    return expected == parts["Signature"] and token in (None, TOKEN)


def fault_xml(code, message):
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"


def answer(start_response, status, text):
    start_response(f"{status} -", [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
    return [text.encode()]


def main():
    import logging

    from moto.server import create_backend_app
    from werkzeug.serving import make_server
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = make_server("127.0.0.1", 0, Store(create_backend_app("s3")), threaded=True)
    print(server.port, flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()  # ends with who started it
    server.serve_forever()


if __name__ == "__main__":
    main()
