"""`lockstep infer` is fed with files that have no targets."""
import json
import re
import shlex
import shutil
import struct
import sys
import unittest

from harness import SOURCE
from inference import InferTest
from stored import stored

sys.path.insert(0, str(SOURCE / "tests/support"))
from data_files import npy, png  # noqa: E402

COUNT = 6


class InferFeed(InferTest):
    def write_files(self):
        (self.folder / "runs").mkdir()
        (self.folder / "runs/digits").symlink_to(self.digits().folder)
        (self.folder / "photos").mkdir()
        for i in range(COUNT):
            (self.folder / f"photos/{i}.png").write_bytes(png(side=16, shift=i))
        values = struct.pack(f"<{COUNT * 64}f", *(i / (COUNT * 64) for i in range(COUNT * 64)))
        (self.folder / "inputs.npy").write_bytes(npy("<f4", (COUNT, 1, 8, 8), values))
        header = json.dumps({"x": {"dtype": "F32", "shape": [COUNT, 1, 8, 8], "data_offsets": [0, len(values)]}}).encode()
        (self.folder / "inputs.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + values)

    def test_files_without_targets_as_the_page_says(self):
        self.write_files()
        page = (SOURCE / "docs/inference.md").read_text()
        commands = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1].splitlines()
        found = []
        for number, line in enumerate(commands):
            config, results = self.config("callbacks: {tfrecords_saver: {keys: [logits, _targets]}}", f"{number}.yaml")
            self.assertIn(f"1 iteration(s), {COUNT} sample(s)", self.infer(*shlex.split(line)[2:], "--config", config))
            found.append(stored(results, "logits"))
            with self.assertRaises(KeyError):
                stored(results, "targets")
        images, array, tensor = found
        self.assertEqual(array, tensor)
        self.assertEqual([len(images), len({str(one) for one in images})], [COUNT, COUNT])

    def test_a_file_of_feeds_names_files_beside_it(self):
        self.write_files()
        config, results = self.config("callbacks: {tfrecords_saver: {keys: [logits]}}")
        source = ("--saved_model", "runs/digits/saved_models/46", "--config", config)
        (self.folder / "lists").mkdir()
        (self.folder / "inputs.npy").rename(self.folder / "lists/inputs.npy")
        (self.folder / "lists/feed.yaml").write_text("[inputs.npy, inputs.npy]\n")
        self.assertIn(f"1 iteration(s), {2 * COUNT} sample(s)", self.infer(*source, "--feed", "lists/feed.yaml"))
        answers = [str(one) for one in stored(results, "logits")]
        self.assertEqual([len(answers), len(set(answers)), answers[:COUNT]], [2 * COUNT, COUNT, answers[COUNT:]])
        (self.folder / "lists/more.yaml").write_text("[feed.yaml]\n")
        self.assertIn("must name data, not another file of feeds", self.infer(*source, "--feed", "lists/more.yaml", expect=78))

    def test_a_list_in_one_argument_is_what_several_arguments_are(self):
        self.write_files()
        config, _ = self.config("batch_size: 3")
        source = ("--saved_model", "runs/digits/saved_models/46", "--config", config)
        self.assertIn("0 iteration(s), 0 sample(s)", self.infer(*source, "--feed", "[]"))
        section = "{type: safetensors, path: inputs.safetensors, inputs: x}"
        for feeds in (("--feed", f"[inputs.npy, {section}]"), ("--feed", "inputs.npy", "--feed", section)):
            self.assertIn(f"2 iteration(s), {2 * COUNT} sample(s)", self.infer(*source, *feeds))

    def test_the_training_data_are_answered_as_they_are(self):
        self.write_files()
        (self.folder / "set").mkdir()
        (self.folder / "photos").rename(self.folder / "set/only")
        section = "{type: image_folder, path: set, channels: 1, image_size: 8"
        answers = []
        for feed in ("train", section + "}"):
            config, results = self.config("callbacks: {tfrecords_saver: {keys: [logits, inputs]}}", f"{len(answers)}.yaml")
            config.write_text(config.read_text() + f"data: {{train: {section}, augment: {{horizontal_flip: 1, mixup: 1}}}}, global_batch_size: 2}}\n")
            self.infer("--saved_model", "runs/digits/saved_models/46", "--config", config, "--feed", feed)
            answers.append([stored(results, "inputs"), stored(results, "logits")])
        self.assertEqual(answers[0], answers[1])

    def test_the_training_data_need_not_be_named(self):
        self.write_files()
        path = self.folder / "run.yaml"
        path.write_text("run: {name: x}\ndata: {eval: {type: digits, split: test}, global_batch_size: 64}\n")
        source = ("--saved_model", "runs/digits/saved_models/46", "--config", path)
        self.assertIn("359 sample(s)", self.infer(*source))
        self.assertIn("'data.train' is required", self.infer(*source, "--feed", "train", expect=78))

    def test_N54_kpis_of_an_inference(self):
        config, results = self.config("callbacks: {topk: {k: [1, 10], outputs: logits, labels: targets, modes: [infer]}}")
        log = self.infer("--saved_model", self.digits().folder / "saved_models/46", "--config", config, "--feed", "{type: digits, split: test}")
        accuracy = self.digits().summary()["eval"]["accuracy"]
        self.assertEqual(json.loads((results / "kpi.json").read_text()), {"top_1": accuracy, "top_10": 1})
        self.assertIn(f", top_1 {accuracy:.4f}, top_10 1.0000", log)

    def test_callbacks_run_by_the_modes_of_their_type(self):
        self.write_files()
        for section, is_stored in (("{keys: [logits]}", True), ("{keys: [logits], modes: infer}", True), ("{keys: [logits], modes: [eval]}", False)):
            config, _ = self.config("batch_size: 3")
            config.write_text(f"{config.read_text()}callbacks: {{tfrecords_saver: {section}}}\n")
            results = self.folder / "infer"
            results.mkdir(exist_ok=True)
            self.infer("--saved_model", "runs/digits/saved_models/46", "--config", config, "--feed", "inputs.npy")
            files = list(results.rglob("*.tfrecord"))
            self.assertEqual(bool(files), is_stored, section)
            for path in files:
                path.unlink()

    def test_an_export_that_was_written_wrongly(self):
        self.write_files()
        config, _ = self.config("batch_size: 3")
        export = self.folder / "export"
        shutil.copytree(self.digits().folder / "saved_models/46", export)
        manifest = json.loads((export / "manifest.json").read_text())
        inputs = {"inputs": [{"name": name, "shape": [None, 1, 8, 8]} for name in ("inputs", "more")], "outputs": [{"name": "logits", "shape": [None, 10]}]}
        wide = {"inputs": [{"name": "inputs", "shape": [None, None, None, None]}], "outputs": inputs["outputs"]}
        array = struct.pack(f"<{COUNT * 3}f", *range(COUNT * 3))
        (self.folder / "thin.npy").write_bytes(npy("<f4", (COUNT, 3, 1, 1), array))
        for change, nodes, feed, said in (({"global_step": "six"}, None, "inputs.npy", "has no global_step"),
                                          ({"global_step": 1e300}, None, "inputs.npy", "has no global_step"),
                                          ({"files": {"model.pt": {"num_bytes": "many"}}}, None, "inputs.npy", "has no num_bytes of model.pt"),
                                          ({}, inputs, "inputs.npy", "forward() takes 1 input(s), io_nodes.json or the manifest names 2"),
                                          ({}, wide, "thin.npy", "the network does not accept float32 [3, 3, 1, 1]")):
            (export / "manifest.json").write_text(json.dumps({**manifest, **change}))
            if nodes:
                (export / "io_nodes.json").write_text(json.dumps(nodes))
            log = self.infer("--saved_model", "export", "--config", config, "--feed", feed, expect=65)
            self.assertIn(said, log)
            self.assertNotIn("Exception raised", log)

    def test_what_reads_targets_is_told_that_there_are_none(self):
        self.write_files()
        config, _ = self.config("callbacks: {tfrecords_saver: {keys: [logits, targets]}}")
        source = ("--saved_model", "runs/digits/saved_models/46", "--config", config)
        self.assertIn("key 'targets' is missing; to make it optional, read '_targets'",
                      self.infer(*source, "--feed", "inputs.npy", expect=65))
        self.assertIn("contains no .jpg, .jpeg or .png file",
                      self.infer(*source, "--feed", "{type: images, path: runs/digits/saved_models/46}", expect=66))


if __name__ == "__main__":
    unittest.main()
