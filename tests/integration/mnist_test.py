"""The configurations for MNIST and for text as they are shipped, on the 5,000 images and the text that packages hold."""
import subprocess
import unittest

from harness import SOURCE, LockstepTest

DATASETS = SOURCE / "datasets"


class Shipped(LockstepTest):
    @classmethod
    def setUpClass(cls):
        for name, file in (("mnist", "train-images-idx3-ubyte"), ("text", "train.bin")):
            if not (DATASETS / name / file).is_file():
                subprocess.run([SOURCE / "tools" / "example_data", name], check=True)

    def shipped(self, name, *sets):
        return self.train(2, config=SOURCE / "configs" / f"{name}.yaml", run=name, sets=sets).summary()

    def test_lenet_learns_mnist(self):
        summary = self.shipped("mnist_lenet")
        self.assertGreaterEqual(summary["eval"]["accuracy"], 0.96)

    def test_mnist_runs_as_shipped(self):
        summary = self.shipped("mnist", "train.max_steps=4")
        self.assertEqual(summary["eval"]["num_samples"], 1000)
        summary = self.shipped("mnist_mlp", "train.max_epochs=1")
        self.assertGreaterEqual(summary["eval"]["accuracy"], 0.85)

    def test_text_runs_as_shipped(self):
        summary = self.shipped("gpt_tiny", "train.max_steps=120", "eval.every_epochs=0")
        self.assertLess(summary["eval"]["loss"], 2.9)  # log 76 = 4.3; by the letters' frequencies alone 3.2


if __name__ == "__main__":
    unittest.main()
