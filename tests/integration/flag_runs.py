"""Small runs that flags describe, for the tests of flags."""
import re
import sys

from harness import SOURCE, LockstepTest

sys.path.insert(0, str(SOURCE / "tests/support"))
from data_files import png, record  # noqa: E402

SAMPLES, SIDE = 12, 8
NETWORK = ["--model", "mlp", "--set", f"model.layers=[{3 * SIDE * SIDE}, 5, 3]", "--set", "eval.batch_size=4"]


class FlagRuns(LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data, cls.ran = cls.shared_folder / "data", {}
        cls.write_data()

    @classmethod
    def write_data(cls):
        """train-0.csv, train-1.csv and eval.csv; records-0, records-1 (no ending) and held_out.tfrecord: 12 images of 3 classes. The same
        54 times: many.csv and many-0, with 10 batches of 64 images."""
        cls.data.mkdir()
        lines, records = [], []
        for i in range(SAMPLES):
            image, label = png(SIDE, 20 * i), i % 3
            (cls.data / f"{i}.png").write_bytes(image)
            lines.append(f"{i}.png,{label}\n")
            records.append(record(image__encoded=image, image__class__label=label))
        half = SAMPLES // 2
        for name, part in (("train-0.csv", lines[:half]), ("train-1.csv", lines[half:]), ("eval.csv", lines), ("many.csv", 54 * lines)):
            (cls.data / name).write_text("".join(part))
        for name, part in (("records-0", records[:half]), ("records-1", records[half:]), ("held_out.tfrecord", records), ("many-0", 54 * records)):
            (cls.data / name).write_bytes(b"".join(part))

    def described(self, **flags):
        """The words of a small run, with these flags in place of its own or in addition; None removes one."""
        usual = {"train_metadata": self.data / "train*", "eval_metadata": self.data / "eval*", "batch_size": 4, "train_steps": 6,
                 "image_size": SIDE, "optimizer": "momentum", "learning_rate": 0.1,
                 "eval_freq": 3}
        return [f"--{name}={value}" for name, value in {**usual, **flags}.items() if value is not None]

    def run_with(self, *words, ranks=1, network=NETWORK, expect=0, **flags):
        """A finished run; the same words run once."""
        words = [*network, *self.described(**flags), *words]
        key = (ranks, expect, *map(str, words))
        if key not in self.ran:
            name = self.shared_folder / f"run{len(self.ran)}"
            self.ran[key] = self.train(ranks, config=None, run=name, arguments=words, expect=expect)
        return self.ran[key]

    def reference(self):
        """Output of `lockstep reference` for keys and flags; called once."""
        if not hasattr(type(self), "pages"):
            type(self).pages = self.tool("reference"), self.tool("reference", "--flags")
        return type(self).pages

    def rates(self, run):
        return [step["learning_rate"] for step in run.steps()]
