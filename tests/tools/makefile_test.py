"""The Makefile: what `make run` and `make test` print and judge."""
import os
import pathlib
import re
import subprocess
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]


OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "PRESET", "SLOW", "TEST_LIMIT_S", "SOAK", "BENCH", "RESULT")


def commands_of(*words):
    """Lists what make would do for a newcomer: nothing comes from a make that runs this test."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    return subprocess.run(["make", "-n", *words], cwd=SOURCE, env=environment, capture_output=True, text=True, check=True).stdout


class Makefile(unittest.TestCase):
    def test_no_clock_fails_the_tests_of_a_newcomer(self):
        self.assertNotIn("--limit-s", commands_of("test"))
        self.assertIn("tools/run_tests default --limit-s 900 --slow", commands_of("test", "SLOW=1", "TEST_LIMIT_S=900"))
        self.assertIn("TEST_LIMIT_S=", (SOURCE / ".ci/run").read_text())

    def test_a_first_run_reads_nothing_of_tests(self):
        self.assertIn("grep -vE '.' ||", commands_of("run"))
        self.assertNotIn("grep -vE '.' ||", commands_of("build"))
        for path in (*(SOURCE / "tests").rglob("CMakeLists.txt"), *(SOURCE / "bench").rglob("CMakeLists.txt")):
            self.assertIsNone(re.search(r"message\(STATUS", path.read_text()), f"{path}: what is left out is VERBOSE, or FATAL_ERROR where it is required")


if __name__ == "__main__":
    unittest.main()
