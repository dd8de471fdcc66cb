"""The contract of all communicators where /dev/shm is as small as in a container: a mount of its own in a namespace."""
import os
import pathlib
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCE / "tests/support"))
from mounts import own_mounts
from soak import rounds

PROGRAM = pathlib.Path(os.environ["LOCKSTEP_BUILD"]) / "tests/dist/dist_rank_test"
NO_SPACE = "the ranks of this host exchange messages instead of sharing memory"


def unshare(script):
    return subprocess.run([*own_mounts(), "sh", "-c", script], capture_output=True, text=True, timeout=200)


def keep_the_contract(size, ranks):
    return unshare(f"mount -t tmpfs -o size={size} tmpfs /dev/shm && "
                   f"{SOURCE}/launch/mpirun.sh {ranks} {PROGRAM} --gtest_filter='*KeepsTheContract*:*UsesTheWindow*'")


class SmallShm(unittest.TestCase):
    def test_what_does_not_fit_goes_by_message(self):
        for size, ranks in rounds([("16m", 4)], [("1m", 2)]):
            with self.subTest(size=size, ranks=ranks):
                done = keep_the_contract(size, ranks)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn("PASSED", done.stdout)
                self.assertRegex(done.stderr, rf"/dev/shm has \d+\.\d MiB free: {NO_SPACE}")

    def test_what_fits_is_used(self):
        done = keep_the_contract("64m", 2)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn(NO_SPACE, done.stderr)


if __name__ == "__main__":
    unittest.main()
