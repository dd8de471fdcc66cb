"""Errors of `lockstep infer` for bad callbacks, names, disks and files: exit code, callback, key; nothing is written outside the results' folder.
Exports and feeds that do not fit, signals and worlds of several processes: infer_test.py."""
import itertools
import json
import pathlib
import sys
import unittest

from harness import BUILD, SOURCE
from inference import InferTest
from stored import examples

sys.path.insert(0, str(SOURCE / "tests/support"))
from data_files import npy  # noqa: E402

FOLDER = pathlib.Path(__file__).parent / "programs/python"
FEED = "{type: digits, split: test}"
FAULT_CALLS = BUILD / "tests/integration/libfault_calls.so"
SAVER = "{type: tfrecords_saver, keys: [logits], max_samples_per_file: 50}"


def node(reads, makes, **args):
    """A callback that reads these keys and makes those."""
    return f"{{type: python, path: {FOLDER}/callbacks.py, name: Node, args: {json.dumps(dict(reads=reads, makes=makes, **args))}}}"


class InferBadInput(InferTest):
    numbers = itertools.count()

    def ends(self, code, callbacks, *said, feed=FEED, run_config="queue_size: 2", environment=None):
        """Ends with the exit code and says all that; gives the results' folder."""
        entries = ", ".join(f"{name}: {callback}" for name, callback in callbacks.items())
        config, results = self.config(f"batch_size: 50, run_config: {{{run_config}}}, callbacks: {{{entries}}}", f"results_{next(self.numbers)}.yaml")
        log = self.infer("--saved_model", self.digits().folder / "saved_models/46", "--config", config, "--feed", feed, expect=code,
                         environment=environment)
        for text in said:
            self.assertIn(text, log)
        return results

    def refused(self, callbacks, *said, **more):
        """Refusal before the start."""
        self.assertFalse(self.ends(78, callbacks, *said, **more).exists())

    def test_an_unknown_callback_or_key(self):
        self.refused({"lgo": "{keys: [logits]}"}, "unknown callback 'lgo' (did you mean 'log'?)")
        self.refused({"mine": "{type: lgo}"}, "error: unknown callback 'lgo'")
        self.refused({"log": "{evry: 3}"}, "unknown key 'evry' in 'inferer.callbacks.log'")
        self.refused({"log": "{modes: [inferr]}"}, "unknown mode 'inferr' (did you mean 'infer'?)")
        self.refused({"log": "{}"}, "unknown key 'output_dir'", run_config="output_dir: elsewhere")

    def test_N55_keys_that_make_no_order(self):
        self.refused({"a": node(["logits", "z"], ["x"]), "b": node(["x"], ["y"]), "c": node(["y"], ["z"])},
                  "callbacks wait for each other: 'a' -> 'b' -> 'c' -> 'a'")
        self.refused({"a": node(["logist"], ["x"]), "b": node(["x"], [])},
                  "callback 'a' reads 'logist', which no callback generates (did you mean 'logits'?); the chain is 'logist' -> 'a' -> 'b'")
        self.refused({"a": node(["logits"], ["x"]), "b": node(["logits"], ["x"])}, "key 'x' is generated twice: by callback 'a' and by callback 'b'")
        self.refused({"a": node(["inputs"], ["logits"])}, "key 'logits' is generated twice: by the iteration itself and by callback 'a'")

    def test_samples_that_differ_in_number(self):
        self.ends(65, {"a": node(["logits"], ["less"], cut=1), "saver": "{type: tfrecords_saver, keys: [less, logits]}"},
                  "callback 'saver', iteration 0", "49", "50")
        self.ends(65, {"a": node(["logits"], ["save_names"], texts=["{sample}"] * 3), "saver": SAVER},
                  "save_names has 48 names for 50 samples; give one per sample", "callback 'saver', iteration 0")

    def test_names_that_lead_elsewhere(self):
        outside = self.folder / "outside"
        for name, said in (("", "the name of a sample is empty"), ("../outside{sample}", "no leading '/', no '..'"),
                           (f"{outside}{{sample}}", "no leading '/', no '..'"), ("same", "the name 'same' is given to two samples of one epoch")):
            self.ends(65, {"a": node(["logits"], ["save_names"], texts=[name]), "saver": "{type: prediction_saver, keys: [logits]}"},
                      said, "callback 'saver', iteration 0")
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name.startswith("outside")], [])

    def test_feeds_of_nothing(self):
        zero = self.folder / "zero.npy"
        zero.write_bytes(npy("<f4", (0, 1, 8, 8), b""))
        nothing = self.folder / "nothing"
        nothing.mkdir()
        self.refused({}, "'feed' names no data: give its type", feed="{}")
        for feed in (zero, f"{{type: npy, path: {zero}}}"):
            self.assertFalse(self.ends(0, {"saver": SAVER}, "0 iteration(s), 0 sample(s)", feed=feed).exists())
        for feed in (nothing, f"{{type: images, path: {nothing}}}"):
            self.ends(66, {}, f"{nothing}: the folder contains no files", feed=feed)

    def test_a_training_of_nothing(self):
        for name, content in (("x", npy("<f4", (0, 3), b"")), ("y", npy("<i8", (0,), b""))):
            (self.folder / f"{name}.npy").write_bytes(content)
        run = self.train(1, sets=[f"data.train={{type: npy, path: {self.folder}/x.npy, targets: {self.folder}/y.npy, num_classes: 10}}",
                                  "data.eval=null", "recipe=null", "train.max_steps=3"], expect=65)
        self.assertIn("data.train contains no samples", run.log)

    def test_a_full_disk(self):
        full = {"LD_PRELOAD": str(FAULT_CALLS), "LOCKSTEP_FAULT_PATH": "results_", "LOCKSTEP_FAULT_CALL": "any", "LOCKSTEP_FAULT_AT": "20+",
                "LOCKSTEP_FAULT_DO": "ENOSPC"}
        results = self.ends(74, {"saver": SAVER}, "No space left on device", "callback 'saver'", environment=full)
        for path in results.glob("*.tfrecord"):
            self.assertEqual(len(examples(path)), 50)

    def test_what_a_stage_throws_ends_all_and_finished_files_stay(self):
        raises = f"{{type: python, path: {FOLDER}/callbacks.py, name: Bad, args: {{fault: raises}}}}"
        torn = f"{{type: python, path: {FOLDER}/sets.py, name: Squares, args: {{damaged: 230}}}}"
        for way in ("use_multiprocessing: true", "use_multiprocessing: false"):
            results = self.ends(78, {"bad": raises, "saver": SAVER}, "KeyError: 'third iteration'", "(callback 'bad', iteration 2)", run_config=way)
            files = list(results.glob("*.tfrecord"))
            self.assertGreaterEqual(len(files), 1)  # of the two iterations before
            torn_results = self.ends(65, {"saver": SAVER}, "sample 230 of Squares", "OSError: this square is torn", feed=torn, run_config=way)
            for path in (*files, *torn_results.glob("*.tfrecord")):
                self.assertEqual(len(examples(path)), 50, path)


if __name__ == "__main__":
    unittest.main()
