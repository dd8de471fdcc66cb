"""tests/mutants.txt fits the code: each change still changes its file, and each test is there. `make soak` runs the mutants (tools/mutants)."""
import importlib.machinery
import importlib.util
import re
import subprocess
import unittest
import pathlib

SOURCE = pathlib.Path(__file__).resolve().parents[2]
loader = importlib.machinery.SourceFileLoader("mutants", str(SOURCE / "tools/mutants"))
mutants = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutants", loader))
loader.exec_module(mutants)


def tests_of(program):
    """The text of the sources of a GoogleTest program's folder."""
    [cmake] = [path for path in (SOURCE / "tests").rglob("CMakeLists.txt") if re.search(rf"lockstep_test\({program}\b", path.read_text())]
    return "".join(path.read_text() for path in cmake.parent.rglob("*_test.cpp"))


class Mutants(unittest.TestCase):
    def test_each_changes_its_file(self):
        found = mutants.mutants()
        self.assertGreaterEqual(len(found), 12)
        for mutant in found:
            with self.subTest(mutant.file):
                before = (SOURCE / mutant.file).read_text()
                after = subprocess.run(["sed", mutant.change], input=before, capture_output=True, text=True, check=True).stdout
                self.assertNotEqual(before, after, mutant.change)

    def test_each_has_a_test(self):
        for mutant in mutants.mutants():
            program, cases = mutant.test
            with self.subTest(program, cases=cases):
                if program.endswith(".py"):
                    self.assertRegex((SOURCE / program).read_text(), rf"def test_\w*{cases}")
                    continue
                suite, _, case = cases.partition(".")
                pattern = rf"\b{suite.rstrip('*')}\b" if suite.endswith("*") else rf"TEST(?:_F|_P)?\({suite}, {case.replace('*', '')}"
                self.assertRegex(tests_of(program), pattern)

    def test_what_ran_is_told_from_what_did_not(self):
        for text in ("Ran 0 tests in 0.0s\n", "[==========] 0 tests from 0 test suites ran.", "Ran 1 test\nOK (skipped=1)", "[  SKIPPED ] 1 test."):
            self.assertFalse(mutants.ran(text), text)
        self.assertTrue(mutants.ran("Ran 1 test in 0.1s\n\nOK\n"))


if __name__ == "__main__":
    unittest.main()
