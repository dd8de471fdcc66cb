"""What is missing fails where oracles are required; what is forbidden is skipped, and CTest can tell it from what passed."""
import os
import pathlib
import re
import subprocess
import sys
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]

CASE = """
import sys, unittest
sys.path.insert(0, {support!r})
from skips import missing_tool, require_tool, skip
class Case(unittest.TestCase):
    def test_one(self):
        {body}
unittest.main()
"""


def run(body, required):
    """Exit code and what is printed of a test file with this one case."""
    environment = {**os.environ, "LOCKSTEP_REQUIRE_ORACLES": "ON" if required else ""}
    done = subprocess.run([sys.executable, "-c", CASE.format(support=str(TESTS / "support"), body=body)],
                          capture_output=True, text=True, env=environment)
    return done.returncode, done.stderr


def ctest_skips(printed):
    regex = re.search(r'LOCKSTEP_PYTHON_SKIPPED "(.*)"', (TESTS / "CMakeLists.txt").read_text())[1]
    return re.search(regex, printed) is not None


class Skips(unittest.TestCase):
    def test_what_is_forbidden_is_skipped_always(self):
        for required in (False, True):
            code, printed = run("skip('no mounts here')", required)
            self.assertEqual(code, 0, printed)
            self.assertTrue(ctest_skips(printed), printed)

    def test_what_is_missing_fails_where_it_is_required(self):
        for body in ("missing_tool('no PyTorch')", "require_tool('no-such-program-of-ours')"):
            code, printed = run(body, required=False)
            self.assertEqual(code, 0, printed)
            self.assertTrue(ctest_skips(printed), printed)
            code, printed = run(body, required=True)
            self.assertEqual(code, 1, printed)
            self.assertFalse(ctest_skips(printed), printed)
            self.assertIn("LOCKSTEP_REQUIRE_ORACLES is ON", printed)

    def test_what_is_there_is_found_and_counts_as_passed(self):
        code, printed = run("self.assertTrue(require_tool('sh').endswith('/sh'))", required=True)
        self.assertEqual(code, 0, printed)
        self.assertFalse(ctest_skips(printed), printed)


if __name__ == "__main__":
    unittest.main()
