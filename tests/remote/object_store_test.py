#!/usr/bin/env python3
"""Data in object stores, read from a store on loopback: object_store_test.py READ_SAMPLES VENV_PYTHON"""
import datetime
import http.server
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support"
sys.path.insert(0, str(SUPPORT))
from data_files import npy, png, write_formats  # noqa: E402
from object_store import KEY, SECRET, TOKEN, StoreProcess  # noqa: E402

READ_SAMPLES, VENV_PYTHON = sys.argv[1:3]


ROLES = "/latest/meta-data/iam/security-credentials/"


class Cloud:
    """The services of a cloud that give keys to what runs in it."""

    def __init__(self):
        self.asked, self.bearers, self.lifetime_s, self.is_empty = [], set(), 3600, False
        cloud = self

        class Service(http.server.BaseHTTPRequestHandler):
            def answer(self):
                text = cloud.answer(self.path, self.headers)
                self.send_response(404 if text is None else 200)
                self.end_headers()
                self.wfile.write((text or "").encode())
            do_GET = do_HEAD = do_POST = do_PUT = answer

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def take_asked(self):
        asked, self.asked = self.asked, []
        return asked

    def answer(self, path, headers):
        if "Bearer" in headers.get("Authorization", ""):
            self.bearers.add(headers["Authorization"])
            return None
        self.asked.append(path.partition("?")[0])
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=self.lifetime_s)
        key = {"AccessKeyId": KEY, "SecretAccessKey": SECRET, "Token": TOKEN, "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ")}
        if self.is_empty:
            return None
        if path == "/container" and headers["Authorization"] == "of the pod":
            return json.dumps(key)
        if path == "/latest/api/token" and headers["X-aws-ec2-metadata-token-ttl-seconds"]:
            return "of the session"
        if path.startswith(ROLES) and headers["X-aws-ec2-metadata-token"] == "of the session":
            return "worker" if path == ROLES else json.dumps(key)
        if path.startswith("/?Action=AssumeRoleWithWebIdentity") and "WebIdentityToken=of%20the%20pod" in path and "RoleArn=arn%3Arole%2Fx" in path:
            key["SessionToken"] = key.pop("Token")
            fields = "".join(f"<{name}>{value}</{name}>" for name, value in key.items())
            return f"<AssumeRoleWithWebIdentityResponse><R><Credentials>{fields}</Credentials></R></AssumeRoleWithWebIdentityResponse>"
        if path.startswith("/computeMetadata/v1/") and headers["Metadata-Flavor"] == "Google":
            return json.dumps({"access_token": "of the machine", "expires_in": self.lifetime_s, "token_type": "Bearer"})
        return None


class ObjectStores(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
        cls.store = StoreProcess(VENV_PYTHON)
        cls.addClassCleanup(cls.store.close)
        cls.set = cls.folder / "a set+more"
        cls.set.mkdir()
        cls.formats = write_formats(cls.set, 12, 8)
        (cls.set / "text.bin").write_bytes(bytes(i % 7 if i % 2 == 0 else 0 for i in range(400)))
        (cls.set / "cifar.bin").write_bytes(b"".join(bytes([i]) + bytes([i * 9]) * 3072 for i in range(10)))
        cls.formats["tokens"] = [f"path={cls.set}/text.bin", "type=tokens", "context=8", "num_classes="]
        cls.formats["cifar"] = [f"path={cls.set}/cifar.bin", "type=cifar10"]
        cls.formats["pattern"] = [f"path={cls.set}/s.tf*"]
        for bucket in ("bucket", "public-bucket"):
            cls.store.put_folder(bucket, cls.folder)

    def reader(self, **variables):
        """A process that reads sections; afterwards its environment is what `variables` say."""
        out = tempfile.mkdtemp(dir=self.folder)
        usual = {**self.store.variables, "HOME": str(self.folder), "PATH": "/usr/bin"}
        settings = {key: value for key, value in {**usual, **variables}.items() if value is not None}
        process = subprocess.Popen([READ_SAMPLES, out], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings)
        self.addCleanup(process.communicate)

        def read(section):
            process.stdin.write(section + "\n")
            process.stdin.flush()
            said = process.stdout.readline().strip()
            return [(pathlib.Path(out) / name).read_bytes() for name in ("inputs.bin", "targets.bin")] if said == "done" else said
        return read

    def section(self, keys, place=None):
        type_of = [key for key in keys if key.startswith("type=")] or ["type=files"]
        settings = [*type_of, *(["num_classes=3"] if "num_classes=" not in keys and "type=cifar10" not in keys else []),
                    *(key for key in keys if not key.startswith(("type=", "num_classes=")))]
        pairs = [key.split("=", 1) for key in settings]
        text = "{" + ", ".join(f'{key}: "{value}"' if "/" in value else f"{key}: {value}" for key, value in pairs) + "}"
        return text.replace(str(self.folder), place) if place else text

    def refused(self, read, section, code, *words):
        said = read(section)
        if not isinstance(said, str):
            self.fail(f"it was read: {section}")
        self.assertEqual(said.split()[0], str(code), said)
        for word in words:
            self.assertIn(word, said)
        for secret in (SECRET, TOKEN):
            self.assertNotIn(secret, said)

    def test_every_format_gives_the_bits_of_the_disk(self):
        ours = self.reader()
        google = self.reader(GS_ACCESS_KEY_ID=KEY, GS_SECRET_ACCESS_KEY=SECRET, GS_ENDPOINT_URL=self.store.url + "/", AWS_ACCESS_KEY_ID=None,
                             AWS_SECRET_ACCESS_KEY=None)
        for name, keys in self.formats.items():
            with self.subTest(format=name):
                expected = ours(self.section(keys))
                self.assertIsInstance(expected, list, expected)
                self.assertEqual(ours(self.section(keys, "s3://bucket")), expected)
                self.assertEqual(google(self.section(keys, "gs://bucket")), expected)

    def test_keys_are_found_where_others_look_for_them(self):
        section = self.section(self.formats["records"], "s3://bucket")
        self.assertIsInstance(self.reader(AWS_SESSION_TOKEN=TOKEN)(section), list)
        (self.folder / "keys").write_text(f"[default]\naws_access_key_id = x\n[mine]\naws_access_key_id = {KEY}\naws_secret_access_key={SECRET}\n")
        file_only = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "AWS_SHARED_CREDENTIALS_FILE": str(self.folder / "keys")}
        self.assertIsInstance(self.reader(AWS_PROFILE="mine", **file_only)(section), list)
        self.refused(self.reader(AWS_PROFILE="yours", **file_only), section, 78, "profile 'yours'", "keys")
        self.refused(self.reader(**file_only), section, 78, "profile 'default'")
        self.refused(self.reader(AWS_SECRET_ACCESS_KEY=None), section, 78, "AWS_SECRET_ACCESS_KEY is not set")
        nobody = self.reader(AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None)
        self.assertIsInstance(nobody(section.replace("bucket", "public-bucket")), list)
        self.refused(nobody, section, 66, "s3://bucket/", "none was found", "AWS_PROFILE")
        self.refused(self.reader(AWS_SECRET_ACCESS_KEY="wrong"), section, 66, "SignatureDoesNotMatch", "(AWS_ACCESS_KEY_ID)")
        self.refused(self.reader(AWS_ENDPOINT_URL="here"), section, 78, "'here' must begin with http")

    def test_keys_of_roles(self):
        """Of a container, a Kubernetes service account, a machine: they are asked for again before they expire, and after a denial."""
        section = self.section(self.formats["records"], "s3://bucket")
        cloud = Cloud()
        self.addCleanup(cloud.close)
        (self.folder / "token").write_text("of the pod\n")
        nothing = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
        container = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": cloud.url + "/container", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(self.folder / "token")}
        account = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(self.folder / "token"), "AWS_ROLE_ARN": "arn:role/x", "AWS_ENDPOINT_URL_STS": cloud.url}
        machine = {"AWS_EC2_METADATA_DISABLED": None, "AWS_EC2_METADATA_SERVICE_ENDPOINT": cloud.url + "/"}
        for name, variables, asked in (("container", container, ["/container"]), ("account", account, ["/"]),
                                       ("machine", machine, ["/latest/api/token", ROLES, ROLES + "worker"])):
            with self.subTest(key=name):
                read = self.reader(**nothing, **variables)
                self.assertIsInstance(read(section), list)
                self.assertEqual(cloud.take_asked(), asked)
                self.assertIsInstance(read("again"), list)
                self.assertEqual(cloud.take_asked(), [])  # valid for an hour
                cloud.lifetime_s = 30
                read = self.reader(**nothing, **variables)
                self.assertIsInstance(read(section), list)
                self.assertGreater(len(cloud.take_asked()), len(asked))  # each request finds an old key
                cloud.lifetime_s = 3600
        cloud.is_empty = True
        self.refused(self.reader(**nothing, **container), section, 78, "/container gives no key")
        self.refused(self.reader(**nothing, **account), section, 78, "gives no key")
        self.refused(self.reader(**nothing, **machine), section, 66, "none was found")

    def test_a_token_of_a_google_machine_is_sent(self):
        cloud = Cloud()
        self.addCleanup(cloud.close)
        read = self.reader(GS_ENDPOINT_URL=cloud.url, GCE_METADATA_HOST=cloud.url.removeprefix("http://"))
        self.refused(read, "{type: files, path: 'gs://bucket/x'}", 66, "gs://bucket/x")
        self.assertEqual(cloud.bearers, {"Bearer of the machine"})

    def test_what_is_not_there(self):
        read = self.reader()
        self.refused(read, "{type: files, path: 's3://none/x'}", 66, "s3://none/x")
        self.refused(read, "{type: files, path: 's3://none/x-*'}", 66, "s3://none/x-", "no such bucket")
        self.refused(read, "{type: files, path: 's3://bucket/x-*'}", 66, "s3://bucket/x-*: no such file")
        self.refused(read, "{type: tfrecord, path: 's3://bucket/x.tfrecord'}", 66, "no such file")
        self.refused(read, "{type: files, path: 's3:///x'}", 78, "BUCKET")
        self.refused(read, "{type: files, path: 'ftp://bucket/x'}", 78, "gs://, s3://")
        self.store.put("bucket/l.csv", b"a set+more/set/0/00.png,0\ns3://bucket/gone.png,1\n")
        self.refused(read, "{type: files, path: 's3://bucket/l.csv'}", 66, "l.csv:2: s3://bucket/gone.png does not exist")

    def test_keys_that_xml_cannot_hold(self):
        for i in range(2):
            self.store.put(f"bucket/odd/\x01 & +%41/{i}.png", png(2))
        self.assertIsInstance(self.reader()("{type: image_folder, path: 's3://bucket/odd'}"), list)

    def test_a_listing_of_many_pages_is_asked_for_once(self):
        read = self.reader()
        self.store.counts()
        self.assertIsInstance(read(self.section(["path=" + str(self.set / "set"), "type=image_folder"], "s3://bucket")), list)
        self.assertEqual(self.store.counts(), {"LIST": 3, "GET": 12})  # pages of 5, 5 and 2

    def test_requests_are_tried_again(self):
        section = self.section(self.formats["records"], "s3://bucket")
        expected = self.reader()(section)
        for faults in ((500, 503), ("cut", 429)):
            self.store.faults(*faults)
            self.assertEqual(self.reader()(section), expected)
        self.store.faults(*[500] * 20)
        self.refused(self.reader(), section, 74, "status 500", "1 s", "data.remote_timeout_s")
        self.store.faults("shifted")
        self.refused(self.reader(), section, 74, "bytes 0-", "bytes 1-")
        self.store.faults()
        self.refused(self.reader(AWS_ENDPOINT_URL="http://127.0.0.1:9"), section, 74, "127.0.0.1:9", "onnect")

    def test_an_object_that_is_replaced_is_not_mixed_with_the_old_one(self):
        read = self.reader(CACHE_BYTES="1")  # nothing stays
        y, section = npy("|u1", (4,), bytes(range(4))), "{type: npy, path: 's3://bucket/x.npy', targets: 's3://bucket/y.npy'}"
        self.store.put("bucket/y.npy", y)
        self.store.put("bucket/x.npy", npy("|u1", (4, 2, 2), bytes(16)))
        self.assertIsInstance(read(section), list)
        self.assertIsInstance(read("again"), list)
        self.store.put("bucket/x.npy", npy("|u1", (4, 2, 2), bytes([1] * 16)))
        self.refused(read, "again", 65, "s3://bucket/x.npy", "replaced")

    def test_what_was_replaced_between_two_jobs_is_read_anew(self):
        read, section = self.reader(), "{type: npy, path: 's3://bucket/nightly.npy', targets: 's3://bucket/n.npy'}"
        self.store.put("bucket/n.npy", npy("|u1", (4,), bytes(range(4))))
        for night in (1, 2, 3):
            self.store.put("bucket/nightly.npy", npy("|u1", (4, 2, 2), bytes([night] * 16)))
            self.assertEqual(read("forget") if night > 1 else read(section), read("again"))  # an open set keeps what it has
            said = read(section)
            self.assertIsInstance(said, list, said)
            self.assertEqual(said, self.reader()(section), f"night {night}: as a process of its own reads it")

    def test_a_key_that_was_replaced_is_read_again(self):
        keys, section = self.folder / "rotated", self.section(self.formats["records"], "s3://bucket")
        keys.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
        read = self.reader(AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None, AWS_SHARED_CREDENTIALS_FILE=str(keys), CACHE_BYTES="1")
        expected = read(section)
        self.assertIsInstance(expected, list, expected)
        try:
            for withdrawn, code in ((403, "InvalidAccessKeyId"), (400, "ExpiredToken")):
                secret = f"of {code}"
                self.store.key(secret, withdrawn, code)
                self.refused(read, "again", 66 if withdrawn == 403 else 74, code)  # the file holds no other yet
                keys.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {secret}\n")
                self.assertEqual(read("again"), expected)
        finally:
            self.store.key(SECRET)

    def test_an_endpoint_with_a_path_is_signed_with_it(self):
        section = self.section(self.formats["records"], "s3://bucket")
        expected = self.reader()(section)
        self.assertIsInstance(expected, list)
        self.assertEqual(self.reader(AWS_ENDPOINT_URL=f"{self.store.url}/-base/storage/v1/s3/")(section), expected)
        for endpoint in (f"http://user:{SECRET}@127.0.0.1:9", "http://127.0.0.1:9/a?b", "http://127.0.0.1:9/a%20b"):
            self.refused(self.reader(AWS_ENDPOINT_URL=endpoint), section, 78, "AWS_ENDPOINT_URL", "may contain a host")

    def test_a_small_cache_reads_the_same(self):
        section = self.section(self.formats["archive"], "s3://bucket")
        self.assertEqual(self.reader(CACHE_BYTES="1")(section), self.reader()(section))

    def test_a_huge_image_takes_no_memory(self):
        self.store.put("bucket/huge/a/0.png", png(8).replace(bytes([0, 0, 0, 8, 0, 0, 0, 8]), bytes([0, 1, 0x86, 0xA0, 0, 1, 0x86, 0xA0])))
        said = self.reader()("{type: files, path: 's3://bucket/huge'}")
        self.assertRegex(said, r"^65 \[data\] s3://bucket/huge/a/0.png")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
