"""tools/run_tests: how it counts cases in CTest's log, what excuses a skip, and what it judges."""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import unittest
import unittest.mock

PATH = pathlib.Path(__file__).resolve().parents[2] / "tools/run_tests"
loader = importlib.machinery.SourceFileLoader("run_tests", str(PATH))
run_tests = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_tests", loader))
loader.exec_module(run_tests)

LOG = """Start testing: Nov 27 12:00 UTC
----------------------------------------------------------
1/4 Testing: integration.launch
1/4 Test: integration.launch
Output:
----------------------------------------------------------
CASE launch_test.Launch.test_usage 0.3 s
CASE launch_test.Launch.test_a_cut_link 1.5 s
SKIPPED launch_test.Launch.test_a_cut_link: no namespaces here
Ran 2 tests in 1.8s
<end of output>
Test time =   1.90 sec
----------------------------------------------------------
Test Passed.
----------------------------------------------------------
2/4 Testing: TwoUsers
Output:
----------------------------------------------------------
[ RUN      ] TwoUsers.May
save_lock_test.cpp:263: Skipped
only root may become other users

[  SKIPPED ] TwoUsers.May (0 ms)
[  PASSED  ] 3 tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] TwoUsers.May
<end of output>
Test time =   0.10 sec
----------------------------------------------------------
Test Passed.
----------------------------------------------------------
3/4 Testing: rules
Output:
----------------------------------------------------------
8 rules hold
<end of output>
Test time =   0.20 sec
----------------------------------------------------------
Test Passed.
----------------------------------------------------------
4/4 Testing: broken
Output:
----------------------------------------------------------
CASE broken_test.One.test_it 0.1 s
FAIL: test_it (__main__.One.test_it)
AssertionError: 1 != 2
<end of output>
Test time =   0.20 sec
----------------------------------------------------------
Test Failed.
"""


class Cases(unittest.TestCase):
    def setUp(self):
        self.found = run_tests.entries(LOG)

    def test_cases_of_each_kind_are_counted(self):
        self.assertEqual([(entry.name, entry.num_passed, entry.skipped) for entry in self.found],
                         [("integration.launch", 1, {"launch_test.Launch.test_a_cut_link": "no namespaces here"}),
                          ("TwoUsers", 3, {"TwoUsers.May": "only root may become other users"}), ("rules", 1, {})])
        self.assertEqual(self.found[0].cases, [("launch_test.Launch.test_usage", 0.3), ("launch_test.Launch.test_a_cut_link", 1.5)])
        self.assertEqual(self.found[0].seconds, 1.9)

    def test_failed_tests_are_told_again_with_their_errors(self):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            run_tests.tell_failed(LOG)
        self.assertEqual(said.getvalue(), "\nfailed: broken\n  FAIL: test_it (__main__.One.test_it)\n  AssertionError: 1 != 2\n")

    def told(self, lacking, **environment):
        said = io.StringIO()
        with unittest.mock.patch.object(run_tests, "lacking", lambda: lambda need: need in lacking), contextlib.redirect_stdout(said):
            wrong = run_tests.tell_cases(self.found, is_part=False)
            with unittest.mock.patch.dict(os.environ, environment):
                code = run_tests.verdict(0, wrong, used_s=10, limit_s=None)
        return code, wrong, said.getvalue()

    def test_a_skip_is_excused_by_what_the_machine_lacks(self):
        code, wrong, said = self.told({"root", "netns"}, LOCKSTEP_REQUIRE_ORACLES="ON")
        self.assertEqual((code, wrong), (0, []))
        self.assertIn("5 cases passed, 2 skipped:\n  launch_test.Launch.test_a_cut_link: no namespaces here\n", said)

    def test_a_skip_that_is_not_excused_fails_where_oracles_are_required(self):
        code, wrong, said = self.told({"netns"}, LOCKSTEP_REQUIRE_ORACLES="ON")
        self.assertEqual((code, wrong), (4, ["TwoUsers.May"]))
        self.assertIn("UNEXCUSED TwoUsers.May: only root may become other users", said)
        self.assertEqual(self.told({"netns"}, LOCKSTEP_REQUIRE_ORACLES="")[0], 0)

    def test_time_is_judged_by_what_the_processors_did(self):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(run_tests.verdict(0, [], used_s=10, limit_s=9), 3)
            self.assertEqual(run_tests.verdict(8, [], used_s=10, limit_s=9), 8)
            self.assertEqual(run_tests.verdict(0, [], used_s=10, limit_s=None), 0)
        self.assertIn("10 s of processor time, at most 9 s are allowed", said.getvalue())

    def test_what_each_line_of_the_list_needs_is_known(self):
        lines = run_tests.lines_of(run_tests.MAY_SKIP)
        self.assertGreater(len(lines), 10)
        for pattern, need in lines:
            self.assertIn(need, {*run_tests.needs.NEEDS, *run_tests.needs.OF_THE_RUN}, pattern)
        for name, has in run_tests.needs.NEEDS.items():
            self.assertIn(bool(has()), (True, False), name)


if __name__ == "__main__":
    unittest.main()
