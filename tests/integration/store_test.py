"""Runs whose checkpoints are in an object store: hosts without a shared folder, commands on paths of a store, refusals."""
import csv
import json
import os
import signal
import subprocess
import sys
import unittest

from harness import ANSWER_S, DIGITS, LOCKSTEP, LOCKSTEPD, SOURCE, LockstepTest, wait_for

sys.path.insert(0, str(SOURCE / "tests/support"))
import skips  # noqa: E402
from object_store import SECRET, StoreProcess  # noqa: E402

NETNS = SOURCE / "tools/netns"
PYTHON = SOURCE / ".venv-test/bin/python"
STEPS = ["checkpoint.save_checkpoints_steps=20", "run.deterministic=elastic"]
PREFIX = "checkpoint.prefix=s3://bucket/run/model.ckpt"
LOST_HOST = """#!/bin/sh
# Each host has its own folder at the place of the run's folder.
[ "$(hostname)" = lockstep-a ] || exec unshare --mount sh -c 'mount --bind "$1" "$2" && shift 2 && exec "$@"' host FOLDER/of_b FOLDER/run LOCKSTEPD "$@"
exec LOCKSTEPD "$@"
"""


class InStore(LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not PYTHON.exists():
            skips.missing_tool("no .venv-test; `tools/setup test` makes it")

    def store(self, **more):
        store = StoreProcess(PYTHON, **more)
        self.addCleanup(store.close)
        return store

    def lockstep(self, store, *words, expect=0):
        done = subprocess.run([LOCKSTEP, *map(str, words)], env={**os.environ, **store.variables}, capture_output=True, text=True, timeout=ANSWER_S,
                              check=False)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_another_folder_and_world_size_continue_to_the_same_bits(self):
        store = self.store()
        unbroken = self.train(2, run="unbroken", sets=STEPS)
        for ranks, run, steps in ((2, "first", ["train.max_steps=50"]), (1, "second", [])):
            trained = self.train(ranks, run=run, sets=[*STEPS, *steps, PREFIX], environment=store.variables)
        self.assertIn("resuming from step 50 (s3://bucket/run/model.ckpt-50)", trained.log)
        self.assertEqual(trained.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
        self.assertFalse(list((self.folder / "second/checkpoints").glob("model.ckpt*")))

    def test_ranks_read_each_byte_once(self):
        store = self.store()
        sets = [PREFIX, "model={type: mlp, layers: [64, 2048, 2048, 1024, 10]}", "checkpoint.copy_on_hosts=false"]
        self.train(1, run="first", sets=[*sets, "train.max_steps=2"], environment=store.variables)
        num_bytes = sum(size for key, size in store.objects("bucket", "run/model.ckpt-2").items() if ".data-" in key)
        self.assertGreater(num_bytes, 20 << 20)
        store.num_bytes_read()
        resumed = self.train(2, run="second", sets=[*sets, "train.max_steps=3"], environment=store.variables)
        self.assertIn("resuming from step 2", resumed.log)
        # All need the block of the texts, and a block in which one rank's part ends and another's begins is read by both.
        self.assertLess(store.num_bytes_read(), num_bytes + (9 << 20))

    def test_commands_take_paths_of_a_store(self):
        store = self.store()
        sets = [*STEPS, "train.max_steps=60", PREFIX]
        self.train(2, sets=sets, environment=store.variables)
        where = "s3://bucket/run"
        rows = json.loads(self.lockstep(store, "ckpt", "ls", where, "--json"))
        self.assertEqual([(row["number"], row["defect"]) for row in rows], [(20, None), (40, None), (60, None)])
        self.assertEqual(self.lockstep(store, "ckpt", "latest", where).strip(), f"{where}/model.ckpt-60")
        self.assertIn("model/", self.lockstep(store, "ckpt", "show", where))
        self.assertEqual(self.lockstep(store, "ckpt", "verify", where).count("sound"), 3)
        self.lockstep(store, "ckpt", "diff", f"{where}/model.ckpt-40", where, expect=1)
        self.assertIn("2 checkpoints kept", self.lockstep(store, "ckpt", "gc", where, "--keep", 2))
        self.lockstep(store, "ckpt", "export", where, "-o", self.folder / "w.safetensors", "--format", "safetensors")
        flags = [word for one in sets for word in ("--set", one)] + ["--set", f"run.project_dir={self.folder}/run"]
        self.assertIn("accuracy", self.lockstep(store, "eval", DIGITS, *flags))
        warm = self.train(1, run="warm", sets=["train.max_steps=5", "checkpoint.warm_start_ckpt=" + where], environment=store.variables)
        self.assertIn(f"{where}/model.ckpt-60", warm.log)
        # What the store lists as a checkpoint is damaged: the one before it counts.
        shard = "run/model.ckpt-60.data-00000-of-00002"
        store.put(f"bucket/{shard}", b"cut")
        self.assertIn("truncated", self.lockstep(store, "ckpt", "verify", where, expect=65))
        self.assertIn(f"{where}/model.ckpt-40", self.lockstep(store, "ckpt", "latest", where).splitlines())

    def test_what_cannot_be_written_is_refused_before_training(self):
        store = self.store()
        for variables, prefix, code, words in (
                ({}, "s3://none/run/model.ckpt", 66, "no such bucket"),
                ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "s3://bucket/run/model.ckpt", 66, "access is denied"),
                ({"GS_ACCESS_KEY_ID": "x"}, "gs://bucket/run/model.ckpt", 78, "GS_SECRET_ACCESS_KEY is not set"),
                ({}, "s3://bucket", 78, "s3://BUCKET/FOLDER/model.ckpt"),
                ({}, "ftp://bucket/run/model.ckpt", 78, "scheme (s3, gs)"),
                ({}, "s3://bucket/run/model.ckpt.index", 78, "ends in '.index'"),
                ({}, "s3://bucket/run/", 78, "has no file name")):
            with self.subTest(prefix=prefix):
                environment = {**store.variables, **variables}
                run = self.train(2, run="refused", sets=[f"checkpoint.prefix={prefix}"], environment=environment, expect=code)
                self.assertIn(words, run.log)
                done = subprocess.run([LOCKSTEP, "check", DIGITS, "--set", f"checkpoint.prefix={prefix}"], env={**os.environ, **environment},
                                      capture_output=True, text=True, timeout=ANSWER_S, check=False)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(words, done.stderr)

    def test_a_store_without_conditions_is_refused(self):
        store = self.store(arguments=["--bucket", "bucket", "--no-conditions"])
        run = self.train(2, sets=[PREFIX], environment=store.variables, expect=78)
        self.assertIn("ignores conditions of writes", run.log)

    def test_a_store_that_fails_costs_saves_not_the_run(self):
        store = self.store()
        run = self.start(2, sets=[*STEPS, PREFIX, "data.remote_timeout_s=0.5"], environment=store.variables)
        wait_for(lambda: store.objects("bucket", "run/model.ckpt-20.index"), "the first save")
        store.key("another")
        run.wait()
        self.assertEqual(run.code, 74, run.log)  # the last checkpoint is missing
        self.assertIn("could not be saved", run.log)
        self.assertIn("not_saved after 690 steps", run.log)

    def test_a_store_that_is_down_stops_training_once(self):
        store = self.store()
        run = self.start(2, sets=[*STEPS, PREFIX, "eval.every_epochs=0", "data.remote_timeout_s=2"], environment=store.variables)
        wait_for(lambda: store.objects("bucket", "run/model.ckpt-20.index"), "the first save")
        store.close()
        run.wait()
        self.assertEqual(run.code, 74, run.log)
        # The second waits for the first, later ones do not, and the last two are waited for: four times 2 s, of 33 saves.
        with open(run.folder / "goodput.csv", encoding="utf-8") as file:
            self.assertLess(sum(float(row["save_stall"]) for row in csv.DictReader(file)), 16)
        self.assertIn("of 2 s, data.remote_timeout_s)", run.log)

    def test_a_run_continues_from_its_hosts_what_the_store_does_not_have(self):
        store = self.store()
        sets = [*STEPS, PREFIX, "data.remote_timeout_s=0.5"]
        run = self.start(2, sets=sets, environment=store.variables)
        wait_for(lambda: store.objects("bucket", "run/model.ckpt-20.index"), "the first save")
        store.key("another")
        copies = self.folder / "run/host_copies/s3%2Fbucket%2Frun"
        wait_for(lambda: [path for path in copies.glob("*.index") if int(path.stem.rsplit("-", 1)[1]) >= 100], "a copy")
        for pid in run.rank_pids().values():
            os.kill(pid, signal.SIGKILL)
        run.wait()
        saved = max(int(key.rsplit("-", 1)[1].removesuffix(".index")) for key in store.objects("bucket", "run/") if key.endswith(".index"))
        self.assertLess(saved, 100)
        store.key(SECRET)
        for key in store.objects("bucket", "run/"):
            store.ask(f"bucket/{key}", "DELETE")
        refused = self.train(2, sets=sets, arguments=["--resume", "never"], environment=store.variables, expect=78)
        self.assertIn("host_copies", refused.log)
        again = self.train(2, sets=sets, environment=store.variables)
        self.assertRegex(again.log, rf"resuming from step [1-9]\d\d \({copies}/model.ckpt-")
        self.assertIn("the store does not have this checkpoint", again.log)
        unbroken = self.train(2, run="unbroken", sets=STEPS)
        self.assertEqual(again.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
        self.assertEqual(json.loads(self.lockstep(store, "ckpt", "ls", "s3://bucket/run", "--json"))[-1]["number"], again.summary()["steps"])
        sets = ["train.max_steps=20", "checkpoint.copy_on_hosts=false", "checkpoint.prefix=s3://bucket/without/model.ckpt"]
        self.train(1, run="without", sets=sets, environment=store.variables)
        self.assertFalse((self.folder / "without/host_copies").exists())

    def test_hosts_without_a_shared_folder(self):
        """The walk through of docs/running.md: a host is killed, a new one takes its place."""
        if subprocess.run([NETNS, "exec", NETNS, "on", "a", "true"], capture_output=True, check=False).returncode == 77:
            self.skipTest("network namespaces are not permitted here")
        namespaces = subprocess.Popen([NETNS, "exec", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.addCleanup(namespaces.communicate)  # ends its input
        environment = {**os.environ, "LOCKSTEP_NETNS": f"ls{namespaces.pid}", "LOCKSTEP_NETNS_HOSTS": "a b"}
        wait_for(lambda: subprocess.run([NETNS, "on", "b", "true"], env=environment, capture_output=True, check=False).returncode == 0, "the hosts")
        store = self.store(before=[NETNS, "on", "a"], arguments=["--host", "10.231.7.1", "--bucket", "bucket"], environment=environment)
        program = self.folder / "rank"
        program.write_text(LOST_HOST.replace("FOLDER", str(self.folder)).replace("LOCKSTEPD", str(LOCKSTEPD)))
        program.chmod(0o755)
        (self.folder / "run").mkdir()
        sets = [*STEPS, PREFIX, f"run.project_dir={self.folder}/run"]
        command = [NETNS, "mpirun", 2, program, "--config", DIGITS, *(word for one in sets for word in ("--set", one))]

        def train(**more):
            (self.folder / "of_b").mkdir()  # a new host has nothing
            return subprocess.Popen(list(map(str, command)), env={**environment, **store.variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                    **more)
        log = self.folder / "run/logs/rank0.log"
        first = train()
        wait_for(lambda: log.exists() and "saved step 40" in log.read_text(), "a checkpoint")
        for pid in subprocess.run(["ip", "netns", "pids", f"ls{namespaces.pid}b"], capture_output=True, text=True, check=True).stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        said = first.communicate(timeout=ANSWER_S)[0]
        self.assertNotEqual(first.returncode, 0, said)
        (self.folder / "of_b").rename(self.folder / "of_lost_b")
        second = train()
        said = second.communicate(timeout=ANSWER_S)[0]
        self.assertEqual(second.returncode, 0, said)
        self.assertRegex(said, r"resuming from step \d+ \(s3://bucket/run/model.ckpt-")
        self.assertTrue((self.folder / "of_b/logs/rank1.log").exists())
        self.assertFalse((self.folder / "run/logs/rank1.log").exists())
        unbroken = self.train(2, run="unbroken", sets=STEPS)
        summary = json.loads((self.folder / "run/summary.json").read_text())
        self.assertEqual(summary["parameters_sha256"], unbroken.summary()["parameters_sha256"])


if __name__ == "__main__":
    unittest.main()
