#!/usr/bin/env python3
"""Saves in an object store, with kills and faults at every request: store_saves_test.py STORE_SAVES VENV_PYTHON"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from object_store import StoreProcess  # noqa: E402

STORE_SAVES, VENV_PYTHON = sys.argv[1:3]
WRITES_OF_A_SAVE = 9  # two ranks: two uploads with a part each, the record, two completions, the index, the state file
SAVED_20_AND_30 = ["checkpoint", *(f"model.ckpt-{number}{ending}" for number in (20, 30)
                                   for ending in (".commit", ".data-00000-of-00002", ".data-00001-of-00002", ".index"))]
IS_LONG = os.environ.get("LOCKSTEP_SOAK") == "1"


class Saving:
    """A process that saves numbers one after the other."""

    def __init__(self, variables, prefix, world, keep, *numbers):
        words = [STORE_SAVES, "save", prefix, world, keep, *numbers]
        self.process = subprocess.Popen([str(word) for word in words], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.saved, self.said = [], []

    def next(self):
        """Lets it save one number; False if it was killed meanwhile."""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        line = self.process.stdout.readline()
        self.said.append(line.strip())
        if line.startswith("saved "):
            self.saved.append(int(line.split()[1]))
        return bool(line)

    def end(self):
        out, _ = self.process.communicate()
        self.said += out.split("\n")
        return self.process.returncode


class StoreSaves(unittest.TestCase):
    scheme = "s3"

    @classmethod
    def setUpClass(cls):
        cls.store = StoreProcess(VENV_PYTHON)
        cls.addClassCleanup(cls.store.close)
        cls.store.put("bucket")
        cls.variables = {**cls.store.variables, **cls.store.google_variables, "HOME": "/nonexistent", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}

    def setUp(self):
        self.folder = self.id().rsplit(".", 1)[1]
        self.prefix = f"{self.scheme}://bucket/{self.folder}/model.ckpt"

    def run_program(self, *words):
        process = subprocess.run([STORE_SAVES, *map(str, words)], env=self.variables, capture_output=True, text=True)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        self.log = process.stderr
        return process.stdout

    def saving(self, *words):
        process = Saving(self.variables, self.prefix, *words)
        self.addCleanup(process.end)
        return process

    def restored(self, world=3, prefix=None):
        said = self.run_program("restore", prefix or self.prefix, world)
        self.assertRegex(said, r"^restored -?\d+$")
        return int(said.split()[1])

    def next_refused(self, saving):
        """Lets it save a number that the store refuses."""
        self.store.key("another")
        try:
            self.assertTrue(saving.next())
        finally:
            self.store.key("not/a+secret")
        self.assertIn("access is denied", saving.said[-1])

    def keys(self, folder=None):
        folder = folder or self.folder
        return sorted(key.removeprefix(folder + "/") for key in self.store.objects("bucket", folder + "/"))

    def test_what_is_saved_is_restored_at_another_world_size(self):
        saving = self.saving(2, 2, 10, 20, 30)
        for _ in range(3):
            self.assertTrue(saving.next())
        self.assertEqual(saving.saved, [10, 20, 30], saving.said)
        self.assertEqual(self.restored(), 30)
        self.assertEqual(self.keys(), SAVED_20_AND_30)
        self.assertEqual(self.run_program("verify", self.prefix.rsplit("/", 1)[0]), "")
        self.assertEqual(self.store.num_uploads("bucket", self.folder + "/"), 0)

    def test_a_number_is_saved_again(self):
        for world in (2, 1):
            saving = self.saving(world, 5, 10, 10)
            self.assertTrue(saving.next() and saving.next())
            self.assertEqual(saving.saved, [10, 10], saving.said)
            self.assertEqual(self.restored(), 10)

    def kill_and_look(self, number, when, start_again):
        """Kills a program at a write of its second save; a reader, then another program, finds the store."""
        self.num_kills = getattr(self, "num_kills", 0) + 1
        folder = f"{self.folder}-{self.num_kills}"
        prefix = f"{self.scheme}://bucket/{folder}/model.ckpt"
        saving = Saving(self.variables, prefix, 2, 2, 10, 20, 30)
        self.assertTrue(saving.next())
        self.store.kill_at(saving.process.pid, number, when)
        saving.next()
        self.assertEqual(saving.end(), -9, f"{number} {when}: {saving.said}")
        self.store.kill_at(0, 0, "")
        self.assertEqual(self.run_program("verify", prefix.rsplit("/", 1)[0]), "")
        if not start_again:
            self.assertGreaterEqual(self.restored(3, prefix), max(saving.saved), f"{number} {when}")
        again = Saving(self.variables, prefix, 2, 2, 20, 30)
        self.assertTrue(again.next() and again.next(), again.said)
        again.end()
        self.assertEqual(again.saved, [20, 30], again.said)
        self.assertEqual(self.restored(3, prefix), 30)
        self.run_program("gc", prefix.rsplit("/", 1)[0])
        self.assertEqual(self.store.num_uploads("bucket", folder + "/"), 0)
        self.assertEqual(self.run_program("verify", prefix.rsplit("/", 1)[0]), "")
        self.assertEqual(self.keys(folder), SAVED_20_AND_30)

    def test_a_kill_at_any_write_loses_no_commit(self):
        for repeat in range(4 if IS_LONG else 1):
            for number in range(1, WRITES_OF_A_SAVE + 1):
                for when in ("before", "after") if IS_LONG else ("before",) if number % 2 else ("after",):
                    with self.subTest(number=number, when=when):
                        self.kill_and_look(number, when, start_again=(number + repeat) % 3 == 0)

    def test_of_two_writers_of_one_number_one_wins(self):
        for _ in range(20 if IS_LONG else 3):
            first, second = self.saving(2, 5, 10), self.saving(2, 5, 10)
            for process in (first, second):  # both begin before the other has ended
                process.process.stdin.write("\n")
                process.process.stdin.flush()
            said = [process.process.stdout.readline() for process in (first, second)]
            self.assertIn("saved 10\n", said)
            for line in said:
                self.assertTrue(line.startswith("saved 10") or "another program" in line, line)
            self.assertEqual(self.restored(), 10)
            self.assertEqual(self.run_program("verify", self.prefix.rsplit("/", 1)[0]), "")

    def test_faults_of_the_store_cost_a_try_not_the_save(self):
        saving = self.saving(2, 2, *range(10, 10 + WRITES_OF_A_SAVE * 4))
        for number, fault in enumerate((503, "refused", "lost", 409) * WRITES_OF_A_SAVE):
            self.store.write_faults(*[None] * (number // 4), fault)
            self.assertTrue(saving.next())
            self.assertEqual(saving.saved[-1:], [10 + number], f"{fault} at {number // 4}: {saving.said[-1]}")
        self.assertEqual(self.restored(), 9 + WRITES_OF_A_SAVE * 4)

    def test_a_store_that_refuses_costs_the_save_not_the_others(self):
        saving = self.saving(2, 2, 10, 20, 30)
        self.assertTrue(saving.next())
        self.next_refused(saving)
        self.assertTrue(saving.next())
        self.assertEqual(saving.saved, [10, 30], saving.said)
        self.assertEqual(self.restored(), 30)


class CopiesOnHosts(StoreSaves):
    """The same with copies on two hosts, each with the ranks of one parity."""

    def setUp(self):
        super().setUp()
        self.copies = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.copies)
        self.variables = {**self.variables, "STORE_COPIES": str(self.copies)}

    if not IS_LONG:
        test_of_two_writers_of_one_number_one_wins = None
        test_faults_of_the_store_cost_a_try_not_the_save = None

    def save(self, *numbers, world=4):
        saving = self.saving(world, 5, *numbers)
        for _ in numbers:
            self.assertTrue(saving.next())
        return saving

    def lose_the_shards(self, number):
        for key in self.store.objects("bucket", f"{self.folder}/model.ckpt-{number}.data"):
            self.store.put(f"bucket/{key}", b"cut")

    def names(self, host):
        return sorted(path.name for path in (self.copies / f"host{host}").iterdir())

    def test_hosts_together_restore_what_the_store_has_lost(self):
        self.save(10, 20)
        # Each host has the shards of its ranks.
        for host in (0, 1):
            self.assertEqual(self.names(host), ["model.ckpt-20.commit", *(f"model.ckpt-20.data-0000{shard}-of-00004" for shard in (host, host + 2)),
                                                "model.ckpt-20.index"])
        self.lose_the_shards(20)
        for world in (3, 1, 4):
            self.assertEqual(self.restored(world), 20 if world > 1 else 10, world)  # a single rank sees one host
            if world == 3:  # now each host has every file, also after this rank's turn
                self.assertEqual(self.names(0), self.names(1))
                shutil.rmtree(self.copies / "host0")

    def test_a_new_host_gets_its_copy_from_the_others(self):
        self.save(10, world=1)  # on host 0 alone
        self.lose_the_shards(10)
        self.assertEqual(self.restored(2), 10)
        self.assertEqual(self.names(1), ["model.ckpt-10.commit", "model.ckpt-10.data-00000-of-00001", "model.ckpt-10.index"])

    def test_a_lost_host_leaves_the_store(self):
        self.save(10, 20)
        shutil.rmtree(self.copies / "host1")
        self.assertEqual(self.restored(), 20)
        self.assertNotIn("copies", self.log)

    def test_a_damaged_copy_leaves_the_store(self):
        self.save(10)
        shard = self.copies / "host1/model.ckpt-10.data-00001-of-00004"
        damaged = bytearray(shard.read_bytes())
        for place in (100, len(damaged) // 2):
            damaged[place] ^= 1
        shard.write_bytes(damaged)
        self.assertEqual(self.restored(), 10)
        self.assertIn("model.ckpt-10 is skipped: rank 0: ", self.log)
        (self.copies / "host0/model.ckpt-10.index").write_bytes(b"no index")
        self.assertEqual(self.restored(), 10)

    def test_a_save_that_the_store_refuses_is_restored_from_the_hosts(self):
        saving = self.saving(4, 5, 10, 20, 30)
        self.assertTrue(saving.next())
        self.next_refused(saving)
        self.assertEqual(self.restored(), 20)
        self.assertTrue(saving.next())
        self.assertEqual(saving.saved, [10, 30], saving.said)
        self.assertEqual(self.restored(), 30)

    def test_what_was_removed_from_the_store_does_not_come_back(self):
        self.save(10, 20)
        for key in self.store.objects("bucket", f"{self.folder}/model.ckpt-20."):
            self.store.ask(f"bucket/{key}", "DELETE")
        self.store.ask(f"bucket/{self.folder}/checkpoint", "DELETE")
        self.assertEqual(self.restored(), 10)

    def test_a_number_of_another_history_does_not_count(self):
        self.save(10)
        other = Saving({key: value for key, value in self.variables.items() if key != "STORE_COPIES"}, self.prefix, 2, 5, 10)
        self.assertTrue(other.next())
        self.assertEqual(other.end(), 0)
        self.assertEqual(self.restored(), 10)
        self.assertNotIn("copies", self.log)  # whole, but with another index
        again = self.saving(2, 5, 10)
        self.assertTrue(again.next())
        self.assertEqual(self.restored(), 10)
        self.assertIn("from the copies on the hosts", self.log)

    def test_the_only_copy_survives_a_save_of_its_number_that_fails(self):
        saving = self.saving(2, 5, 10, 20, 20)
        self.assertTrue(saving.next())
        self.store.key("another")
        self.addCleanup(self.store.key, "not/a+secret")
        self.assertTrue(saving.next())  # only the hosts have 20
        before = {path: path.stat().st_ino for path in self.copies.rglob("*-20*")}
        self.assertTrue(saving.next())
        self.assertEqual({path: path.stat().st_ino for path in self.copies.rglob("*-20*")}, before)
        self.store.key("not/a+secret")
        self.assertEqual(self.restored(), 20)

    def test_a_copy_that_the_store_lacks_is_not_passed_by(self):
        """A host without room for it: an older checkpoint would lose steps, and its next save this copy."""
        saving = self.saving(2, 5, 10, 20)
        self.assertTrue(saving.next())
        self.next_refused(saving)
        shutil.rmtree(self.copies / "host1")
        self.assertEqual(self.restored(2), 10)  # a part is lost
        saving = self.saving(1, 5, 30)  # on host 0 alone
        self.next_refused(saving)
        (self.copies / "host1").rmdir()
        (self.copies / "host1").write_text("not a folder")
        done = subprocess.run([STORE_SAVES, "restore", self.prefix, "2"], env=self.variables, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("host1/model.ckpt-30", done.stdout)

    def test_a_number_that_comes_again_replaces_its_copy(self):
        self.save(10)
        for key in self.store.objects("bucket", f"{self.folder}/"):
            self.store.ask(f"bucket/{key}", "DELETE")
        self.assertEqual(self.restored(), -1)  # it is marked as stored
        saving = self.saving(3, 5, 10)
        self.next_refused(saving)
        self.assertEqual(saving.saved, [])
        self.assertEqual(self.names(1), ["model.ckpt-10.data-00001-of-00003", "model.ckpt-10.index"])
        self.assertEqual(self.restored(), 10)

    def test_a_host_that_cannot_keep_a_copy_costs_no_save(self):
        (self.copies / "host1").write_text("not a folder")
        saving = self.save(10, 20)
        self.assertEqual(saving.saved, [10, 20], saving.said)
        self.assertEqual(self.restored(), 20)


class GoogleSaves(StoreSaves):
    """With Google's signatures, conditions and versions."""
    scheme = "gs"
    if not IS_LONG:  # the order of requests is the same
        test_a_kill_at_any_write_loses_no_commit = None


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
