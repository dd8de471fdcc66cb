"""Faults around a run that is sound itself; docs/faults.md has the table of all such cases, with the test of each."""
import pathlib
import re
import subprocess
import unittest

from harness import ENDLESS, LOCKSTEPD, PRUNE_EARLY, SOURCE, LockstepTest
from counts import count, counted
from mounts import own_mounts
from skips import missing_tool
from supervised import SupervisedTest

FAKETIME = pathlib.Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
DAY_S = 86400


class BadDays(LockstepTest):
    def on_rank_1(self, lines):
        """A program for all ranks which does this on rank 1 before it is lockstepd."""
        path = self.folder / "lockstepd"
        path.write_text(f'#!/bin/sh\nif [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then\n{lines}\nfi\nexec {LOCKSTEPD} "$@"\n')
        path.chmod(0o755)
        return path

    def test_another_build_on_one_rank(self):
        """The builds have the same version, commit and compiler, and differ in one byte of the linker's digest."""
        found = re.search(r"Build ID: (\w+)", subprocess.run(["readelf", "-n", LOCKSTEPD], capture_output=True, text=True, check=True).stdout)[1]
        content, build_id = LOCKSTEPD.read_bytes(), bytes.fromhex(found)
        self.assertEqual(content.count(build_id), 1)
        other = self.folder / "other"
        other.write_bytes(content.replace(build_id, build_id[:-1] + bytes([build_id[-1] ^ 1])))
        other.chmod(0o755)
        run = self.start(program=self.on_rank_1(f'exec {other} "$@"')).wait()
        self.assertEqual(run.code, 76, run.log)
        self.assertIn(f"rank 0 has build id {found}, rank 1 does not", run.log)
        self.assertIn("start every rank with the same files and programs", run.log)
        self.assertFalse(run.folder.exists())
        count("ranks of another build refused")

    def test_a_folder_that_one_rank_has_for_itself(self):
        (self.folder / "runs").mkdir()
        hidden = f'exec {" ".join(own_mounts())} sh -c \'mount -t tmpfs none {self.folder}/runs && exec "$0" "$@"\' {LOCKSTEPD} "$@"'
        run = self.start(program=self.on_rank_1(hidden), run="runs/run").wait()
        self.assertEqual(run.code, 78, run.log)
        self.assertIn("is not the same folder on all ranks", run.log)
        self.assertRegex(run.log, r"are not visible to rank 1 on \S+")
        self.assertEqual(list(run.folder.glob("checkpoints/*")), [])
        count("folders that are not shared refused")


class Clock(SupervisedTest):
    def test_a_clock_that_jumps_changes_nothing(self):
        """A day forward and two back, under a supervisor, with time limits of seconds: no restart, no alarm, the same bits."""
        if not FAKETIME.exists():
            missing_tool(f"no {FAKETIME}; tools/setup test installs it")
        sets = [PRUNE_EARLY, "train.max_steps=240", "checkpoint.save_checkpoints_steps=20", "sync.timeout_s=5", "watchdog.hang_seconds=5",
                "watchdog.slow_seconds=3", "eval.every_epochs=0"]
        unbroken = self.train(run="unbroken", sets=sets)
        clock = self.folder / "clock"
        clock.write_text("+0\n")
        run = self.supervise(sets=sets, environment={"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1",
                                                     "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"})
        for step, jump_s in counted("jumps of the clock without a restart or an alarm", ((40, DAY_S), (90, -DAY_S), (140, 0))):
            run.wait_for_step(step)
            clock.write_text(f"{jump_s:+d}\n")
        run.wait()
        self.assertEqual(run.code, 0, run.log)
        days = set(re.findall(r"(?m)^(\d{4}-\d\d-\d\d)T", (run.folder / "logs/rank0.log").read_text()))
        self.assertGreaterEqual(len(days), 2, "the clock did not jump for the ranks")
        self.assertEqual(self.restarts_of(run), 0, run.log)
        self.assertNotIn("without progress:", run.log)
        self.assertEqual(run.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])


class Table(unittest.TestCase):
    def test_each_case_names_tests_that_there_are(self):
        page = (SOURCE / "docs/faults.md").read_text()
        rows = re.findall(r"(?m)^\| .* \| `(integration|unit): (\w+)` \|$", page)
        self.assertGreater(len(rows), 12)
        sources = "".join(path.read_text() for path in (SOURCE / "tests").rglob("*_test.*") if path.suffix in (".py", ".cpp"))
        for kind, name in counted("rows of docs/faults.md have a test that there is", rows):
            self.assertRegex(sources, rf"def {name}\(" if kind == "integration" else rf"TEST(_F|_P)?\(\w+, {name}\)")


if __name__ == "__main__":
    unittest.main()
