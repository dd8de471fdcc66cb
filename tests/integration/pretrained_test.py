"""Folders of save_pretrained(): tiny networks of transformers begin a run with theirs, and transformers opens those of a run, bit for bit."""
import functools
import json
import os
import pathlib
import shutil
import unittest

import warm
from exported import PYTHON, require_packages
from harness import SOURCE

FILES = pathlib.Path(__file__).parent / "programs" / "python"
CONFIG = """version: 1.0.0
run: {{name: pretrained, seed: 17}}
model: {{type: python, path: {files}/pretrained_nets.py, name: {net}}}
data:
  train: {{type: python, path: {files}/sets.py, name: {data}}}
  global_batch_size: 8
train: {{max_steps: 2}}
optimizer: {{type: sgd, learning_rate: 0.1}}
checkpoint: {{save_checkpoints_steps: 1000}}
"""
# Networks of pretrained_nets.py, the classes of transformers that open their folders, and data.
NETWORKS = {"Gpt2": ("AutoModelForCausalLM", "Tokens"), "Bert": ("AutoModelForMaskedLM", "Tokens"), "T5": ("AutoModelForSeq2SeqLM", "Tokens"),
            "Mixtral": ("AutoModelForCausalLM", "Tokens"), "Vit": ("AutoModelForImageClassification", "Pictures")}


@functools.cache
def interpreter():
    return warm.Python(PYTHON, "from cpu_torch import torch; import pretrained_nets, transformers", [SOURCE / "tests/support", FILES])


class Pretrained(warm.WarmTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        require_packages("transformers")  # for the ranks' interpreter too

    def config(self, net):
        path = self.folder / f"{net}.yaml"
        path.write_text(CONFIG.format(files=FILES, net=net, data=NETWORKS[net][1]))
        return path

    def plain_config(self):
        """Of a network that is not of transformers, whose import takes seconds."""
        path = self.folder / "plain.yaml"
        path.write_text(CONFIG.format(files=FILES, net="Plain", data="Points").replace("pretrained_nets.py", "nets.py"))
        return path

    def transformers(self, *arguments):
        """{name: SHA-256} that pretrained.py prints."""
        code, said, faults = interpreter().run(FILES / "pretrained.py", *arguments)
        self.assertEqual(code, 0, faults)
        return json.loads(said.splitlines()[-1])

    def weights(self, run):
        shown = json.loads(self.tool("ckpt", "show", run.folder / "checkpoints", "--json"))
        return {t["key"][len("model/"):].replace("/", "."): t["sha256"] for t in shown["tensors"] if (t["key"] or "").startswith("model/")}

    def assert_same(self, run, theirs):
        """A checkpoint has a tied weight under one name, a state dict under each."""
        ours = self.weights(run)
        self.assertGreater(len(ours), 10)
        self.assertEqual(ours, {name: theirs.get(name) for name in ours})
        self.assertLessEqual(set(theirs.values()), set(ours.values()))

    def test_a_run_begins_with_a_folder_and_leaves_one(self):
        for net, (opened_by, _) in NETWORKS.items():
            with self.subTest(net):
                folder = self.folder / f"{net}_theirs"
                theirs = self.transformers("write", folder, net, 3000)
                self.assertGreater(len(list(folder.glob("model-*-of-*.safetensors"))), 2)
                sets = [f"checkpoint.warm_start_ckpt={folder}"]
                started = self.train(2, config=self.config(net), run=f"{net}_started", sets=[*sets, "train.max_steps=0"])
                self.assert_same(started, theirs)
                run = self.train(2, config=self.config(net), run=f"{net}_trained", sets=sets)
                out = self.folder / f"{net}_ours"
                said = self.tool("ckpt", "export", run.folder / "checkpoints", "--format", "pretrained", "-o", out, "--max-shard-size", "3kB")
                self.assertIn("transformers opens it with from_pretrained()", said)
                self.assertTrue((out / "model.safetensors.index.json").is_file())
                self.assert_same(run, self.transformers("read", out, opened_by))
                self.assertNotEqual(self.weights(run), self.weights(started))
                again = self.train(1, config=self.config(net), run=f"{net}_again", sets=[f"checkpoint.warm_start_ckpt={out}", "train.max_steps=0"])
                self.assertEqual(self.weights(again), self.weights(run))

    def test_an_index_and_rules_for_the_names_of_its_files(self):
        folder = self.folder / "bert"
        theirs = self.transformers("write", folder, "Bert", 3000)
        for i, (what, sets) in enumerate(((folder / "model.safetensors.index.json", []),
                                          (folder, ["checkpoint.warm_start_rename=[{from: bert.encoder, to: bert.encoder}]"]))):
            run = self.train(1, config=self.config("Bert"), run=f"run{i}", sets=[f"checkpoint.warm_start_ckpt={what}", "train.max_steps=0", *sets])
            self.assert_same(run, theirs)

    def test_a_head_of_another_shape_is_left_out_by_scopes(self):
        folder = self.folder / "vit"
        theirs = self.transformers("write", folder, "Vit", 10**9)
        sets = [f"checkpoint.warm_start_ckpt={folder}", "train.max_steps=0", "model.name=WideVit"]
        refused = self.train(1, config=self.config("Vit"), run="refused", sets=sets, expect=78)
        self.assertIn("'classifier.weight' is float32 [10, 16] in the checkpoint, 'classifier.weight' is float32 [12, 16] in the model", refused.log)
        run = self.train(1, config=self.config("Vit"), run="run", sets=[*sets, "checkpoint.checkpoint_exclude_scopes=classifier"])
        ours = self.weights(run)
        self.assertEqual({name for name in ours if ours[name] != theirs[name]}, {"classifier.weight", "classifier.bias"})

    def test_faulty_folders_are_refused_by_check_and_by_training(self):
        whole = self.folder / "whole"
        self.transformers("write", whole, "Bert", 3000)
        shard = sorted(whole.glob("model-*.safetensors"))[1].name

        def lose(folder):
            (folder / shard).unlink()

        def cut(folder):
            os.truncate(folder / shard, (folder / shard).stat().st_size - 1)

        def repeat(folder):
            index = folder / "model.safetensors.index.json"
            index.write_text(index.read_text().replace('"weight_map": {', f'"weight_map": {{"bert.embeddings.LayerNorm.bias": "{shard}",'))

        def leave(folder):
            index = folder / "model.safetensors.index.json"
            index.write_text(index.read_text().replace(f'"{shard}"', f'"../whole/{shard}"'))

        for i, (spoil, code, said) in enumerate(((lose, 66, f"shards are missing: {shard}"), (cut, 65, shard), (repeat, 65, "LayerNorm.bias' twice"),
                                                 (leave, 65, "outside its folder"))):
            folder = self.folder / f"spoilt{i}"
            shutil.copytree(whole, folder)
            spoil(folder)
            config = self.config("Bert") if spoil is cut else self.plain_config()  # read before transformers reads it, whatever the network is
            sets = [f"checkpoint.warm_start_ckpt={folder}"]
            run = self.train(1, config=config, run=f"run{i}", sets=sets, expect=code, is_cold=code == 66)  # a server would try 66 again
            self.assertIn(said, run.log)
            self.assertIn(said, self.tool("check", config, "--set", sets[0], expect=code))
        empty = self.train(1, config=self.plain_config(), run="empty", sets=[f"checkpoint.warm_start_ckpt={FILES}"], expect=66, is_cold=True)
        self.assertIn("no model.safetensors", empty.log)

    def test_what_is_not_of_transformers_is_written_without_its_configuration(self):
        config = self.plain_config()
        run = self.train(1, config=config, run="run")
        said = self.tool("ckpt", "export", run.folder / "checkpoints", "--format", "pretrained", "-o", self.folder / "out")
        self.assertIn("without config.json", said)
        again = self.train(1, config=config, run="again", sets=[f"checkpoint.warm_start_ckpt={self.folder / 'out'}", "train.max_steps=0"])
        self.assertEqual(self.weights(again), self.weights(run))
        refused = self.tool("ckpt", "export", run.folder / "checkpoints", "--format", "pretrained", "-o", self.folder / "out", expect=73)
        self.assertIn("not an empty folder", refused)


if __name__ == "__main__":
    unittest.main()
