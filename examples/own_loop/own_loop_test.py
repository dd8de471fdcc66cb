"""A recipe works in a loop that is not Lockstep's, with an optimizer that is not either."""
import os
import pathlib
import re
import subprocess
import unittest

FOLDER = pathlib.Path(__file__).parent
PROGRAM = pathlib.Path(os.environ["LOCKSTEP_BUILD"]) / "examples" / "own_loop" / "own_loop"


def run(recipe):
    return subprocess.run([PROGRAM, recipe], capture_output=True, text=True, timeout=50)


class OwnLoop(unittest.TestCase):
    def test_prunes_and_learns(self):
        done = run(FOLDER / "recipe.yaml")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = re.findall(r"epoch (\d+): loss (\S+), learning rate (\S+), sparsity (\S+)", done.stdout)
        self.assertEqual([int(line[0]) for line in lines], list(range(1, 11)))
        self.assertLess(float(lines[-1][1]), 0.5 * float(lines[0][1]))
        self.assertEqual([float(line[2]) for line in lines], [0.2] * 8 + [0.02] * 2)
        self.assertEqual(float(lines[1][3]), 0)
        self.assertAlmostEqual(float(lines[-1][3]), 0.9, places=3)
        self.assertIn("0.weight: 1152 of 1280 weights are zero", done.stdout)

    def test_a_recipe_that_is_not_there(self):
        done = run("/nonexistent.yaml")
        self.assertEqual(done.returncode, 66)
        self.assertIn("/nonexistent.yaml", done.stderr)


if __name__ == "__main__":
    unittest.main()
