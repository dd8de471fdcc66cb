"""`lockstep compress`: a trained network is pruned and quantized, exported and measured; the command continues, and refuses what cannot work."""
import json
import re
import shutil
import subprocess
import unittest

from harness import ANSWER_S, DIGITS, SOURCE, LockstepTest
import skips

PYTHON = SOURCE / ".venv-test/bin/python3"
PHOTOS = """
import csv, pathlib, sys
import numpy as np
from PIL import Image
for i, row in enumerate(csv.reader(open(sys.argv[1]))):
    values = np.array(row, dtype=int)
    folder = pathlib.Path(sys.argv[2]) / str(values[64])
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray((values[:64].reshape(8, 8) * 15).astype(np.uint8)).resize((40, 40)).convert("RGB").save(folder / f"{i:04}.png")
"""
IMAGES = """version: 1.0.0
run: {{name: photos, project_dir: {folder}/run, seed: 3, threads: 1}}
model: {{type: {network}}}
data:
  train: {{type: image_folder, path: {photos}, image_size: 32}}
  eval: {{type: image_folder, path: {photos}, image_size: 32}}
  global_batch_size: 64
optimizer: {{type: adam, learning_rate: 0.003}}
train: {{max_epochs: 3}}
eval: {{every_epochs: 0}}
metrics: {{listen: off}}
"""
ROW = re.compile(r"^(before|after) +(optimized|sparse) +([\d.]+|-) +([\d.]+) +([\d.]+) +([\d.]+)$", re.MULTILINE)


class Compress(LockstepTest):
    def dense(self):
        return self.shared("dense", 2, config=DIGITS, sets=["recipe=null", "train.max_epochs=12", "eval.every_epochs=0"])

    def compress(self, *arguments, expect=0):
        """From a copy of the dense run's folder, whose settings are those of the run file."""
        folder = self.folder / "run"
        if not folder.exists():
            shutil.copytree(self.dense().folder, folder)
        return self.tool("compress", DIGITS, "--set", f"run.project_dir={folder}", "--set", "run.threads=1", "--set", "metrics.listen=off",
                         *arguments, expect=expect)

    def rows(self, told):
        """{(network, engine): [accuracy, MB, ms of 1, ms of 8]}"""
        return {found[:2]: [None if value == "-" else float(value) for value in found[2:]] for found in ROW.findall(told)}

    def test_pruned_networks_keep_their_accuracy_in_every_engine(self):
        told = self.compress("--target", "80%", "--epochs", 8, "-n", 2)
        rows = self.rows(told)
        self.assertEqual(sorted(rows), [("after", "optimized"), ("after", "sparse"), ("before", "optimized")], told)
        self.assertGreater(rows["before", "optimized"][0], 0.93)
        self.assertLess(rows["before", "optimized"][0] - rows["after", "optimized"][0], 0.02)
        self.assertEqual(rows["after", "optimized"][0], rows["after", "sparse"][0])
        self.assertTrue(all(value > 0 for row in rows.values() for value in row))
        folder = self.folder / "run/compressed"
        self.assertIn("final_sparsity: 0.8", (folder / "recipe.yaml").read_text())
        self.assertIn("sparsity 0.8000", self.tool("curves", folder / "run"))
        with self.subTest("again: nothing is trained twice"):
            self.assertEqual({key: row[:2] for key, row in self.rows(self.compress("--target", "80%", "--epochs", 8, "-n", 2)).items()},
                             {key: row[:2] for key, row in rows.items()})
        with self.subTest("another target"):
            told = self.compress("--target", "0.7", expect=73)
            self.assertIn("recipe.yaml is another recipe: remove ", told)

    def test_a_quantized_network_is_smaller(self):
        rows = self.rows(self.compress("--target", "0.5", "--quantize", "--epochs", 4, "--output", self.folder / "small"))
        self.assertLess(rows["before", "optimized"][0] - rows["after", "optimized"][0], 0.03)
        self.assertLess(rows["after", "optimized"][1], 0.5 * rows["before", "optimized"][1])

    def test_networks_of_image_folders_keep_their_accuracy_from_training_to_the_engine(self):
        if not PYTHON.exists():
            skips.missing_tool(f"there is no {PYTHON} (tools/setup test makes it)")
        photos = self.folder / "photos"
        subprocess.run([PYTHON, "-c", PHOTOS, SOURCE / "data/digits/digits.csv", photos], check=True)
        for network in ("resnet18", "mobilenet_v1"):
            with self.subTest(network):
                config = self.folder / f"{network}.yaml"
                config.write_text(IMAGES.format(folder=self.folder, photos=photos, network=network))
                run = self.train(2, config=config, run=f"{network}-run")
                rows = self.rows(self.tool("compress", config, "--set", f"run.project_dir={run.folder}", "--target", "60%", "--quantize", "--epochs", 4,
                                           "-n", 2, timeout_s=4 * ANSWER_S))
                trained = json.loads((run.folder / "compressed/run/summary.json").read_text())["eval"]["accuracy"]
                print(f"\n{network}: training {trained:.4f}, {rows}")
                self.assertGreater(trained, 0.6)
                for engine in ("optimized", "sparse"):
                    self.assertAlmostEqual(rows["after", engine][0], trained, delta=0.00101)  # one image of 1,797 is 0.0006

    def test_what_cannot_work_is_refused_before_the_training(self):
        for arguments, code, why in (((), 64, "nothing to do: give --target"), (("--target", "100%"), 64, "'100%' is no share below 1"),
                                     (("--target", "90 %"), 64, "'90 %' is no share below 1"),
                                     (("--target", "90%", "--set", "data.eval=null"), 78, "data.eval is missing"),
                                     (("--target", "90%", "--checkpoint", self.folder / "none"), 66, "none"),
                                     (("--target", "90%", "--set", "model.type=vgg"), 78, "vgg")):
            with self.subTest(arguments):
                self.assertIn(why, self.compress(*arguments, expect=code))
                self.assertFalse((self.folder / "run/compressed/run").exists())


if __name__ == "__main__":
    unittest.main()
