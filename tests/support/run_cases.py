"""Runs the cases of one Python test file and says of each skipped one why: python3 tests/support/run_cases.py FILE [options of unittest]

CTest starts each test file so. By hand `python3 FILE -k word` does the same without the lines that tools/run_tests reads:

    CASE launch_test.Launch.test_usage 0.3 s
    SKIPPED launch_test.Launch.test_on_two_hosts: network namespaces are not permitted here

Exit code: 77 if every case was skipped, 1 if one failed, else 0.
"""
import os
import pathlib
import runpy
import sys
import time
import unittest

ALL_SKIPPED = 77  # the tests' SKIP_RETURN_CODE


class Result(unittest.TextTestResult):
    """Notes how long each case takes."""

    def startTest(self, test):
        super().startTest(test)
        self.begin_s = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        print(f"CASE {name_of(test)} {time.monotonic() - self.begin_s:.1f} s", flush=True)


def name_of(test):
    """launch_test.Launch.test_usage. A class that is skipped as a whole has the name of its class."""
    return test.id().replace("__main__", pathlib.Path(sys.argv[0]).stem)


class Runner(unittest.TextTestRunner):
    resultclass = Result


def run(argv=None):
    """Replaces unittest.main()."""
    result = unittest.TestProgram(module="__main__", argv=argv, exit=False, testRunner=Runner).result
    for test, reason in result.skipped:
        print(f"SKIPPED {name_of(test)}: {reason}", flush=True)
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(ALL_SKIPPED if result.skipped and len(result.skipped) >= result.testsRun else 0)


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    unittest.main = run
    runpy.run_path(sys.argv[0], run_name="__main__")
