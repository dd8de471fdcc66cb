"""Missing programs fail if oracles are required, forbidden ones skip, case by case (tests/support/run_cases.py)."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]

CASE = """
import sys, unittest
sys.path.insert(0, {support!r})
from skips import missing_tool, require_tool, skip
class Case(unittest.TestCase):
    def test_one(self):
        {body}
    {more}
if __name__ == "__main__":
    unittest.main()
"""
ALL_SKIPPED = 77


def run(body, required, more=""):
    """Exit code and what is printed of a test file with this one case, and perhaps more."""
    environment = {**os.environ, "LOCKSTEP_REQUIRE_ORACLES": "ON" if required else ""}
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "small_test.py")
        file.write_text(CASE.format(support=str(TESTS / "support"), body=body, more=more))
        done = subprocess.run([sys.executable, TESTS / "support/run_cases.py", file, "-v"], capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout + done.stderr


class Skips(unittest.TestCase):
    def test_what_is_forbidden_is_skipped_always(self):
        for required in (False, True):
            code, printed = run("skip('no mounts here')", required)
            self.assertEqual(code, ALL_SKIPPED, printed)
            self.assertIn("SKIPPED small_test.Case.test_one: no mounts here\n", printed)

    def test_a_file_of_which_one_case_is_skipped_has_passed_and_names_that_case(self):
        code, printed = run("skip('no mounts here')", False, "def test_two(self): pass")
        self.assertEqual(code, 0, printed)
        self.assertIn("SKIPPED small_test.Case.test_one: no mounts here\n", printed)
        self.assertRegex(printed, r"CASE small_test.Case.test_two \d+\.\d s\n")

    def test_a_file_of_which_one_case_fails_fails_though_the_others_are_skipped(self):
        code, printed = run("skip('no mounts here')", False, "def test_two(self): self.fail('broken')")
        self.assertEqual(code, 1, printed)

    def test_what_is_missing_fails_where_it_is_required(self):
        for body in ("missing_tool('no PyTorch')", "require_tool('no-such-program-of-ours')"):
            code, printed = run(body, required=False)
            self.assertEqual(code, ALL_SKIPPED, printed)
            code, printed = run(body, required=True)
            self.assertEqual(code, 1, printed)
            self.assertNotIn("\nSKIPPED", printed)
            self.assertIn("LOCKSTEP_REQUIRE_ORACLES is ON", printed)

    def test_what_is_there_is_found_and_counts_as_passed(self):
        code, printed = run("self.assertTrue(require_tool('sh').endswith('/sh'))", required=True)
        self.assertEqual(code, 0, printed)
        self.assertNotIn("\nSKIPPED", printed)


if __name__ == "__main__":
    unittest.main()
