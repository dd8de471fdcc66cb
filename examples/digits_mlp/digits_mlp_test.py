"""Training saves every 100 batches and resumes where it ended; a restored model gives the same classes."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

PROGRAM = pathlib.Path(os.environ["LOCKSTEP_BUILD"]) / "examples" / "digits_mlp" / "digits_mlp"


def run(*words):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=100)


class DigitsMlp(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name + "/save"

    def train(self, batches):
        done = run("--mode=train", self.folder, str(batches))
        self.assertEqual(done.returncode, 0, done.stderr)
        return re.findall(r"batch (\d+): loss (\S+), saved (\S+)", done.stdout)

    def accuracy(self):
        done = run("--mode=test", self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = re.fullmatch(r"(\S+): accuracy (\S+)\n", done.stdout)
        return found[1], float(found[2])

    def test_saves_goes_on_and_classifies(self):
        first = self.train(300)
        self.assertEqual([(int(b), name) for b, _, name in first],
                         [(100 * i, f"{self.folder}/model.ckpt-{i}") for i in (1, 2, 3)])
        self.assertEqual(self.accuracy()[0], f"{self.folder}/model.ckpt-3")
        second = self.train(700)
        self.assertEqual([name for _, _, name in second], [f"{self.folder}/model.ckpt-{i}" for i in range(4, 11)])
        self.assertEqual(second[-1][0], "1000")
        self.assertLess(float(second[0][1]), 0.5 * float(first[0][1]))  # it did not start over
        newest, accuracy = self.accuracy()
        self.assertEqual(newest, f"{self.folder}/model.ckpt-10")
        self.assertGreaterEqual(accuracy, 0.95)
        kept = sorted(path.name for path in pathlib.Path(self.folder).glob("*.index"))
        self.assertEqual(len(kept), 5, kept)

    def test_an_empty_folder_is_no_model(self):
        done = run("--mode=test", self.folder)
        self.assertEqual(done.returncode, 66)
        self.assertIn("no checkpoints in", done.stderr)

    def test_another_mode_is_told(self):
        for words in (("--mode=eval", self.folder), ("train", self.folder), ("--mode=test", self.folder, "5"), ("--mode=train",), ()):
            done = run(*words)
            self.assertEqual(done.returncode, 64, words)
            self.assertIn("usage: digits_mlp --mode=train FOLDER [BATCHES], or digits_mlp --mode=test FOLDER", done.stderr)


if __name__ == "__main__":
    unittest.main()
