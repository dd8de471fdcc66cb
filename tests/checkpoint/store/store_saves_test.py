#!/usr/bin/env python3
"""Saves in an object store, with kills and faults at every request: store_saves_test.py STORE_SAVES VENV_PYTHON"""
import os
import pathlib
import subprocess
import sys
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
        process = subprocess.run([STORE_SAVES, *map(str, words)], env=self.variables, stdout=subprocess.PIPE, text=True)
        self.assertEqual(process.returncode, 0, process.stdout)
        return process.stdout

    def saving(self, *words):
        process = Saving(self.variables, self.prefix, *words)
        self.addCleanup(process.end)
        return process

    def restored(self, world=3, prefix=None):
        said = self.run_program("restore", prefix or self.prefix, world)
        self.assertRegex(said, r"^restored -?\d+$")
        return int(said.split()[1])

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
        folder = f"{self.folder}-{number}-{when}-{start_again}"
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
        for number in range(1, WRITES_OF_A_SAVE + 1):
            for when in ("before", "after") if IS_LONG else ("before",) if number % 2 else ("after",):
                with self.subTest(number=number, when=when):
                    self.kill_and_look(number, when, start_again=number % 3 == 0)

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
        self.store.key("another")
        self.addCleanup(self.store.key, "not/a+secret")
        self.assertTrue(saving.next())
        self.assertIn("access is denied", saving.said[-1])
        self.store.key("not/a+secret")
        self.assertTrue(saving.next())
        self.assertEqual(saving.saved, [10, 30], saving.said)
        self.assertEqual(self.restored(), 30)


class GoogleSaves(StoreSaves):
    """With Google's signatures, conditions and versions."""
    scheme = "gs"
    if not IS_LONG:  # the order of requests is the same
        test_a_kill_at_any_write_loses_no_commit = None


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
