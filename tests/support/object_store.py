#!/usr/bin/env python3
"""A store of objects on loopback (moto, in .venv-test), judged by botocore's signatures: object_store.py; prints its address.
StoreProcess starts it.

Requests with the header x-test are let through unsigned (PUT of buckets and objects). Others must be signed with KEY and SECRET, except
on buckets whose name begins with "public". /-test/faults takes JSON: what the next GETs of objects get, one each: a status, "cut" (half
the body), "shifted" (a wrong Content-Range); /-test/write-faults: what the next writes get: a status, "refused" (the connection is reset, nothing
is done), "lost" (it is done, then the connection is reset), "slow"; null: no fault. /-test/kill kills a process at its n-th write, before or
after it is done; /-test/key replaces the secret; below /-base/storage/v1/s3 is the same; /-test/counts answers with how often each kind of
request came, /-test/bytes with how many bytes ranges of objects had. Listings come in pages of 5. Requests with Google's signature get Google's conditions and versions.
"""
import argparse
import hashlib
import hmac
import io
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

KEY, SECRET, TOKEN = "AKTEST", "not/a+secret", "of a session"


class StoreProcess:
    """The program below, run by a Python that has moto, until close()."""

    def __init__(self, python, arguments=("--bucket", "bucket"), before=(), environment=None):
        """before: words of a command that starts the program elsewhere. arguments: see main()."""
        command = [*before, python, pathlib.Path(__file__), *arguments]
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.url = self.process.stdout.readline().strip()
        self.variables = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": self.url, "no_proxy": "*",
                          "AWS_EC2_METADATA_DISABLED": "true"}
        self.google_variables = {"GS_ACCESS_KEY_ID": KEY, "GS_SECRET_ACCESS_KEY": SECRET, "GS_ENDPOINT_URL": self.url, "no_proxy": "*"}

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

    def write_faults(self, *faults):
        self.ask("-test/write-faults", "POST", json.dumps(faults).encode())

    def kill_at(self, pid, number, when):
        """Kills the process at its write of this number from now on: "before" it is done or "after"."""
        self.ask("-test/kill", "POST", json.dumps([pid, number, when]).encode())

    def objects(self, bucket, beginning=""):
        """Sizes by key."""
        import xml.etree.ElementTree as tree
        page = tree.fromstring(self.ask_raw(f"{bucket}?list-type=2&max-keys=1000&prefix={urllib.parse.quote(beginning)}"))
        name = "{http://s3.amazonaws.com/doc/2006-03-01/}"
        return {one.find(name + "Key").text: int(one.find(name + "Size").text) for one in page.iter(name + "Contents")}

    def num_uploads(self, bucket, beginning=""):
        import re
        keys = re.findall(rb"<Upload>\s*<Key>([^<]*)</Key>", self.ask_raw(f"{bucket}?uploads"))
        return sum(key.decode().startswith(beginning) for key in keys)

    def ask_raw(self, path):
        request = urllib.request.Request(f"{self.url}/{path}", headers={"x-test": "1"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return answer.read()

    def key(self, secret, status=403, code="SignatureDoesNotMatch"):
        """Sets the secret of KEY, and the answer to requests that are signed with another one."""
        self.ask("-test/key", "POST", json.dumps([secret, status, code]).encode())

    def counts(self):
        """Since the last call."""
        return json.loads(self.ask("-test/counts"))

    def num_bytes_read(self):
        """Since the last call."""
        return json.loads(self.ask("-test/bytes"))


class Store:
    def __init__(self, app, keeps_conditions, page_keys):
        self.keeps_conditions, self.page_keys = keeps_conditions, page_keys
        self.app, self.faults, self.counts, self.lock = app, [], {}, threading.Lock()
        self.write_faults, self.victim, self.num_writes = [], None, 0
        self.num_bytes = 0
        self.one_write = threading.Lock()  # a condition and its write are one step, as in a real store
        self.secret, self.denied = SECRET, (403, "SignatureDoesNotMatch")

    def __call__(self, environ, start_response):
        path, query = environ["PATH_INFO"], environ["QUERY_STRING"]
        if path == "/-test/faults":
            self.faults = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            return answer(start_response, 200, "")
        if path == "/-test/write-faults":
            self.write_faults = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            return answer(start_response, 200, "")
        if path == "/-test/kill":
            self.victim, self.num_writes = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))), 0
            return answer(start_response, 200, "")
        if path == "/-test/key":
            self.secret, *self.denied = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            return answer(start_response, 200, "")
        if path == "/-test/bytes":
            num_bytes, self.num_bytes = self.num_bytes, 0
            return answer(start_response, 200, json.dumps(num_bytes))
        if path == "/-test/counts":
            counts, self.counts = self.counts, {}
            return answer(start_response, 200, json.dumps(counts))
        if "HTTP_X_TEST" in environ:
            return self.let_through(environ, start_response)
        kind = "LIST" if "list-type=2" in query else environ["REQUEST_METHOD"]
        with self.lock:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            first, _, last = environ.get("HTTP_RANGE", "").removeprefix("bytes=").partition("-")
            if kind == "GET" and last:
                self.num_bytes += int(last) + 1 - int(first)
            fault = self.faults.pop(0) if kind == "GET" and self.faults else None
            is_write = kind not in ("GET", "HEAD", "LIST")
            write_fault = self.write_faults.pop(0) if is_write and self.write_faults else None
        if self.page_keys == 5 and not path.startswith("/public") and not is_signed(environ, self.secret):
            return answer(start_response, self.denied[0], fault_xml(self.denied[1], "The signature does not match."))
        if path.startswith("/-base/storage/v1/s3/"):  # the signature covers it
            for name in ("PATH_INFO", "REQUEST_URI", "RAW_URI"):
                environ[name] = environ[name].replace("/-base/storage/v1/s3", "", 1)
        if is_write:
            return self.write(write_fault, environ, start_response)
        if isinstance(fault, int):
            return answer(start_response, fault, fault_xml("InternalError", "We encountered an internal error."))
        if kind == "LIST":
            environ["QUERY_STRING"] = query + f"&max-keys={self.page_keys}"
        if self.page_keys > 5 and kind == "GET" and "HTTP_RANGE" in environ:
            return part_of_object(environ, start_response)
        return self.let_through(environ, start_response) if fault is None else self.spoilt(fault, environ, start_response)

    def write(self, fault, environ, start_response):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        if self.page_keys == 5 and not is_intact(environ, body):
            return answer(start_response, 400, fault_xml("BadDigest", "The checksum did not match."))
        with self.lock:
            self.num_writes += 1
            pid, number, when = self.victim or (0, 0, "")
        is_last = pid and self.num_writes >= number
        if is_last and when == "before":
            os.kill(pid, signal.SIGKILL)
        if is_last and (when == "before" or self.num_writes > number):
            return self.reset(environ)
        if isinstance(fault, int):
            return answer(start_response, fault, fault_xml("SlowDown", "Please reduce your request rate."))
        if fault == "refused":
            return self.reset(environ)
        if fault == "slow":
            time.sleep(1)
        if self.page_keys > 5:
            done = self.let_through(environ, start_response)
        else:
            with self.one_write:
                done = list(self.let_through(environ, start_response))
        if is_last:
            os.kill(pid, signal.SIGKILL)
        return self.reset(environ) if fault == "lost" or is_last else done

    @staticmethod
    def reset(environ):
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return []

    def let_through(self, environ, start_response):
        if not self.keeps_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        environ.setdefault("HTTP_AUTHORIZATION", "AWS4-HMAC-SHA256 Credential=x/20130524/us-east-1/s3/aws4_request")  # moto has its own doubts
        return with_google_names(environ, start_response, lambda start: self.app(environ, start))

    def spoilt(self, fault, environ, start_response):
        said = []
        body = b"".join(self.app(environ, lambda status, headers, _=None: said.extend((status, headers))))
        headers = {name.title(): value for name, value in said[1]}
        if fault == "shifted":
            headers["Content-Range"] = "bytes 1-" + headers["Content-Range"].split("-", 1)[1]
        start_response(said[0], list(headers.items()))
        return [body[:len(body) // 2] if fault == "cut" else body]


def part_of_object(environ, start_response):
    """The answer to a GET with Range. moto copies the whole object for each."""
    from moto.s3.models import s3_backends
    bucket, key = urllib.parse.unquote(environ["PATH_INFO"]).lstrip("/").split("/", 1)
    found = s3_backends["123456789012"]["aws"].get_object(bucket, key)
    first, last = (int(number) for number in environ["HTTP_RANGE"].removeprefix("bytes=").split("-"))
    with found.lock:
        found._value_buffer.seek(first)
        body = found._value_buffer.read(last + 1 - first)
    start_response("206 -", [("Content-Length", str(len(body))), ("Content-Range", f"bytes {first}-{first + len(body) - 1}/{found.contentsize}"),
                             ("ETag", found.etag), ("Last-Modified", found.last_modified_RFC1123)])
    return [body]


def is_signed(environ, secret):
    """True if botocore signs the same request alike."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
    given = environ.get("HTTP_AUTHORIZATION", "")
    if given.startswith("GOOG4-HMAC-SHA256 "):
        return is_signed_for_google(environ, secret, given.removeprefix("GOOG4-HMAC-SHA256 "))
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


def is_signed_for_google(environ, secret, given):
    """By Google's description of V4 signatures with an HMAC key."""
    parts = dict(part.split("=", 1) for part in given.split(","))
    key, day, region, service, end = parts["Credential"].split("/")
    names = parts["SignedHeaders"].split(";")
    if key != KEY or (service, end) != ("storage", "goog4_request") or not {"host", "x-goog-date", "x-goog-content-sha256"} <= set(names):
        return False
    headers = {name: environ["HTTP_" + name.upper().replace("-", "_")] for name in names}
    if any(name.startswith("x-amz-") for name in names):
        return False  # Google refuses a mixture
    path, _, query = environ["REQUEST_URI"].partition("?")
    query = "&".join(sorted(query.split("&"))) if query else ""
    canonical = "\n".join([environ["REQUEST_METHOD"], path, query, *(f"{name}:{headers[name]}" for name in names), "", ";".join(names),
                           headers["x-goog-content-sha256"]])
    text = "\n".join(["GOOG4-HMAC-SHA256", headers["x-goog-date"], f"{day}/{region}/{service}/{end}",
                      hashlib.sha256(canonical.encode()).hexdigest()])
    signing = ("GOOG4" + secret).encode()
    for word in (day, region, service, end):
        signing = hmac.new(signing, word.encode(), "sha256").digest()
    return hmac.new(signing, text.encode(), "sha256").hexdigest() == parts["Signature"]


def with_google_names(environ, start_response, run):
    """Runs a request. With Google's signature, versions and conditions are generations, which are made from the ETag here."""
    is_google = environ.get("HTTP_AUTHORIZATION", "").startswith("GOOG4")
    wanted = environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None)
    if wanted == "0":
        environ["HTTP_IF_NONE_MATCH"] = "*"
    elif wanted is not None:
        environ["HTTP_IF_MATCH"] = f'"{int(wanted):032x}"'
    if is_google:
        environ["HTTP_AUTHORIZATION"] = "AWS4-HMAC-SHA256 Credential=x/20130524/us-east-1/s3/aws4_request"

    def start(status, headers, *more):
        return start_response(status, headers + generation_of(headers) if is_google else headers, *more)
    return run(start)


def generation_of(headers):
    tags = [value.strip('"') for name, value in headers if name.lower() == "etag"]
    return [("x-goog-generation", str(int(tags[0], 16)))] if tags and "-" not in tags[0] else []


def is_intact(environ, body):
    """True if the digest and the checksum of a request are those of its body."""
    digest = environ.get("HTTP_X_AMZ_CONTENT_SHA256") or environ.get("HTTP_X_GOOG_CONTENT_SHA256")
    if digest not in (None, "UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
        return False
    checksum = environ.get("HTTP_X_AMZ_CHECKSUM_CRC32C") or environ.get("HTTP_X_GOOG_HASH", "").removeprefix("crc32c=")
    if digest == "UNSIGNED-PAYLOAD" and not checksum:
        return False  # nothing would protect the bytes
    most = 1 << 16  # slow in Python
    return not checksum or len(body) > most or checksum == crc32c_text(body)


def crc32c_text(body):
    import base64
    crc = 0xFFFFFFFF
    for byte in body:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return base64.b64encode((crc ^ 0xFFFFFFFF).to_bytes(4, "big")).decode()


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
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on")
    parser.add_argument("--bucket", help="a bucket to begin with")
    parser.add_argument("--no-conditions", action="store_true", help="ignore If-None-Match, as old stores do")
    parser.add_argument("--unlimited", action="store_true", help="list in long pages, take any signature and digest")
    options = parser.parse_args()
    app = create_backend_app("s3")
    if options.bucket:
        from werkzeug.test import Client
        Client(app).put(f"/{options.bucket}", headers={"Authorization": "AWS4-HMAC-SHA256 Credential=x/20130524/us-east-1/s3/aws4_request"})
    server = make_server(options.host, 0, Store(app, not options.no_conditions, 1000 if options.unlimited else 5), threaded=True)
    print(f"http://{options.host}:{server.port}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()  # ends with who started it
    server.serve_forever()


if __name__ == "__main__":
    main()
