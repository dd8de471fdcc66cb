"""tools/rows: the table of tests is whole, and what is wrong with one is told."""
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
ROWS = SOURCE / "tools" / "rows"
TABLE = (SOURCE / "tests" / "estimator_rows.txt").read_text()
OTHERS = {"coordinator_rows.txt": 83}


class Rows(unittest.TestCase):
    def rows(self, table, expect, name="estimator_rows.txt"):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / name
            file.write_text(table)
            done = subprocess.run([ROWS, file], capture_output=True, text=True)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_each_row_has_a_test_that_is_there(self):
        self.assertIn("76 rows, each with an existing test", self.rows(TABLE, 0))
        for name, count in OTHERS.items():
            done = subprocess.run([ROWS, SOURCE / "tests" / name], capture_output=True, text=True)
            self.assertIn(f"{count} rows, each with an existing test", done.stdout)
            self.assertEqual(done.returncode, 0)

    def test_what_is_missing_is_told(self):
        lines = TABLE.splitlines()
        self.assertIn("E59: stands 0 times", self.rows("\n".join(lines[:-1]), 1))
        self.assertIn("E59: stands 2 times", self.rows(TABLE + lines[-1], 1))
        self.assertIn("E19: no such test: tests/integration/flag_effects_test.py test_gone",
                      self.rows(TABLE.replace("flag_effects_test.py test_standard_flags", "flag_effects_test.py test_gone"), 1))
        self.assertIn("E3: no such test", self.rows(TABLE.replace("Plugins.AnEstimatorBrings", "Plugins.Brings"), 1))
        self.assertIn("E3: no such test", self.rows(TABLE.replace("plugin_test.cpp", "gone_test.cpp"), 1))
        self.assertIn("E60: no such row", self.rows(TABLE.replace("E59", "E60"), 1))
        self.assertIn("E1: no test", self.rows("E1 | version |\n", 1))

    def test_a_row_of_the_coordinator_stands_in_the_name_of_a_test(self):
        table = (SOURCE / "tests/coordinator_rows.txt").read_text()
        lines = [line if not line.startswith("N26 ") else
                 "N26 | halts | tests/coord/builtins_test.cpp Builtins.N27_collector_gives_three_iterations_at_once" for line in table.splitlines()]
        self.assertIn("N26: none of its tests has N26 in its name", self.rows("\n".join(lines), 1, "coordinator_rows.txt"))


if __name__ == "__main__":
    unittest.main()
