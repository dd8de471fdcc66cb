"""A network and a data set in Python: the losses of plain PyTorch, one end after a kill, weights that PyTorch loads, and what is
said of mistakes."""
import functools
import json
import math
import pathlib
import re
import subprocess
import unittest

import warm
from harness import BUILD, LOCKSTEP, SOURCE

FILES = pathlib.Path(__file__).parent / "programs" / "python"
GLUE = BUILD / "lib" / "lockstep"
PYTHON = SOURCE / ".venv" / "bin" / "python3"
CONFIG = """version: 1.0.0
run: {{name: python, seed: 17}}
model: {{type: python, path: {files}/{module}.py, name: {net}}}
data:
  train: {{type: python, path: {files}/sets.py, name: Points}}
  eval: {{type: python, path: {files}/sets.py, name: Points}}
  global_batch_size: 32
  shuffle: false
train: {{max_steps: 100}}
optimizer: {{type: sgd, learning_rate: 0.2}}
eval: {{every_epochs: 0}}
checkpoint: {{save_checkpoints_steps: 1000}}
summary: {{log_every: 1}}
"""


@functools.cache
def interpreter():
    return warm.Python(PYTHON, "from lockstep_glue.torch_import import torch", [GLUE])


class Python(warm.WarmTest):
    def config(self, net="Plain", module="nets"):
        path = self.folder / f"{net}.yaml"
        path.write_text(CONFIG.format(files=FILES, net=net, module=module))
        return path

    def odd(self, net):
        return self.config(net, module="odd_nets")

    def assert_resumes(self, config, name, sets, num_ranks=2):
        """A killed run resumes to the bits of an unbroken one."""
        sets = ["checkpoint.save_checkpoints_steps=20", "sync.replica_check_every=10", "data.shuffle=true", *sets]
        unbroken = self.train(num_ranks, config=config, run=f"{name}_unbroken", sets=sets)
        killed = self.start_faulty("kill", rank=num_ranks - 1, step=45, ranks=num_ranks, config=config, run=name, sets=sets).wait()
        self.assertIn(killed.code, (137, 69), killed.log)
        resumed = self.train(num_ranks, config=config, run=name, sets=sets)
        self.assertRegex(resumed.log, r"resuming from step (20|40) ")
        self.assertEqual(resumed.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
        self.assertEqual(resumed.steps(), unbroken.steps())
        return resumed

    def python(self, *arguments):
        code, said, faults = interpreter().run(*arguments)
        self.assertEqual(code, 0, faults)
        return said

    def test_losses_are_those_of_plain_pytorch(self):
        expected = [float(line) for line in self.python(FILES / "reference.py", GLUE, 100, 32, 0.2).split()]
        self.assertLess(expected[-1], 0.7 * expected[0])
        sets = ["eval.metrics=[top_k, perplexity]", "eval.top_k.k=2"]
        plain = self.train(1, config=self.config(), run="plain", sets=sets)
        # run.debug stands above the order that is asked for.
        own = self.train(2, config=self.config("OwnLoss"), run="own", sets=[*sets, "train.loss=own", "data.shuffle=true",
                                                                            "run.debug=true", "model.args={deterministic: true}"])
        for run in (plain, own):
            for step, theirs in zip(run.steps(), expected, strict=True):
                self.assertAlmostEqual(step["loss"], theirs, delta=1e-6)
        found = plain.summary()["eval"]
        self.assertAlmostEqual(found["metrics"]["perplexity"], math.exp(found["loss"]), delta=1e-5)
        self.assertEqual(own.summary()["eval"]["metrics"]["top_2"], found["metrics"]["top_2"])
        self.assertIsNone(own.summary()["eval"]["accuracy"])

    def test_ignored_classes_count_neither_in_losses_nor_in_accuracy(self):
        *losses, evaluation = self.python(FILES / "reference_ignored.py", GLUE, 20, 33, 0.2).splitlines()
        loss, accuracy = map(float, evaluation.split())
        sets = ["data.train.name=Ignored", "data.eval.name=Ignored", "data.global_batch_size=33", "train.max_steps=20"]
        for ranks in (1, 2):
            run = self.train(ranks, config=self.config(), run=f"ranks{ranks}", sets=sets)
            for step, expected in zip(run.steps(), losses, strict=True):
                self.assertAlmostEqual(step["loss"], float(expected), delta=1e-6)
            found = run.summary()["eval"]
            self.assertAlmostEqual(found["loss"], loss, delta=1e-5)
            self.assertAlmostEqual(found["accuracy"], accuracy, delta=1e-6)

    def test_a_killed_run_goes_on_to_the_same_bits_and_pytorch_loads_its_weights(self):
        sets = [f"recipe={FILES.parent}/prune_90.md", "data.shuffle=true", "data.train.args={noise: 0.1}", "checkpoint.save_checkpoints_steps=20",
                "sync.replica_check_every=10"]
        config = self.config("Noisy")
        unbroken = self.train(config=config, run="unbroken", sets=sets)
        killed = self.start_faulty("kill", rank=1, step=45, config=config, run="killed", sets=sets).wait()
        self.assertIn(killed.code, (137, 69), killed.log)
        resumed = self.train(config=config, run="killed", sets=sets)
        self.assertRegex(resumed.log, r"resuming from step (20|40) ")
        for what in ("parameters_sha256", "eval", "sparsity"):
            self.assertEqual(resumed.summary()[what], unbroken.summary()[what])
        self.assertEqual(resumed.steps(), unbroken.steps())
        file = self.folder / "noisy.safetensors"
        self.tool("ckpt", "export", resumed.folder / "checkpoints", "-o", file)
        state, loss = self.python(FILES / "load_state.py", GLUE, file, "Noisy").splitlines()
        self.assertEqual(json.loads(state), {"missing": [], "unexpected": []})
        self.assertAlmostEqual(float(loss), resumed.summary()["eval"]["loss"], delta=1e-5)
        self.assertEqual(resumed.summary()["sparsity"], (58 + 43) / (64 + 48))  # 0.9 of each layer, rounded

    def freezing(self, name, *modifiers):
        path = self.folder / f"{name}.yaml"
        path.write_text("version: 1.0.0\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: 20}\n"
                        + "".join(f"  - !TrainableParamsModifier {{params: ['re:first.*'], {one}}}\n" for one in modifiers))
        return f"recipe={path}"

    def weights(self, run, step=None):
        """{name: (dtype, list of numbers)} of a save."""
        file = self.folder / "weights.safetensors"
        saves = run.folder / "checkpoints"
        self.tool("ckpt", "export", saves / f"model.ckpt-{step}" if step else saves, "-o", file)
        code = self.folder / "weights.py"
        code.write_text("import json, sys; sys.path.append(sys.argv[1]); from lockstep_glue.torch_import import torch; import struct\n"
                "data = open(sys.argv[2], 'rb').read(); end = 8 + struct.unpack('<Q', data[:8])[0]\n"
                "rows = {n: e for n, e in json.loads(data[8:end]).items() if n != '__metadata__' and e['dtype'] == 'F32'}\n"
                "values = {n: torch.frombuffer(bytearray(data[end + e['data_offsets'][0]:end + e['data_offsets'][1]]), dtype=torch.float32)\n"
                "          for n, e in rows.items()}\n"
                "print(json.dumps({n: [v.min().item(), v.max().item(), v.double().sum().item()] for n, v in values.items()}))")
        return json.loads(self.python(code, GLUE, file))

    def test_parts_freeze_and_thaw_over_a_kill(self):
        adamw = "optimizer={type: adamw, learning_rate: 0.01}"
        frozen = self.assert_resumes(self.config("Noisy"), "scopes", [adamw, "train.trainable_scopes=[classifier]"])
        start = self.train(1, config=self.config("Noisy"), run="start", sets=["train.max_steps=0"])
        before, after = self.weights(start), self.weights(frozen)
        self.assertEqual(before["first.weight"], after["first.weight"])
        self.assertNotEqual(before["classifier.weight"], after["classifier.weight"])
        freezes = self.freezing("freezes", "trainable: false, start_step: 30")
        self.assert_resumes(self.config("Noisy"), "freezes", [adamw, freezes])
        thaws = self.freezing("thaws", "trainable: false, start_step: 0, end_step: 30")
        self.assert_resumes(self.config("Noisy"), "thaws", [adamw, thaws, "sync.shard_optimizer=true"])

    def test_an_infinite_mask_outlives_a_batch_that_leaves_a_rank_no_sample(self):
        sets = ["data.global_batch_size=199", "train.max_steps=8", "checkpoint.save_checkpoints_steps=3", "run.deterministic=true"]
        run = self.train(config=self.odd("Mask"), run="mask", sets=sets)
        self.assertTrue(all(math.isfinite(step["loss"]) for step in run.steps()), run.steps())
        self.assertTrue(math.isfinite(run.summary()["eval"]["loss"]))
        # Nothing moves in forward, so the same bits come from any number of ranks.
        shas = [self.train(ranks, config=self.odd("Mask"), run=f"elastic{ranks}", sets=["run.deterministic=elastic", "train.max_steps=20"])
                .summary()["parameters_sha256"] for ranks in (1, 2)]
        self.assertEqual(*shas)
        refused = self.start(config=self.config("Noisy"), sets=["run.deterministic=elastic"]).wait()
        self.assertEqual(refused.code, 78, refused.log)
        self.assertIn("run.deterministic: elastic cannot be combined with the network's ", refused.log)

    def test_a_teacher_that_forward_moves_is_equal_on_all_ranks(self):
        sets = ["data.global_batch_size=199", "train.max_steps=8", "sync.replica_check_every=1"]
        for data in ("false", "true"):
            run = self.train(config=self.odd("Teacher"), run=f"teacher_{data}", sets=[*sets, f"model.args={{data: {data}, centered: true}}"])
            self.assertTrue(math.isfinite(run.summary()["eval"]["loss"]))
        self.assert_resumes(self.odd("Teacher"), "teacher", ["train.max_steps=60"])

    def test_what_backward_does_not_reach_keeps_its_value_as_in_pytorch(self):
        for kind, options in (("momentum", "{type: momentum, learning_rate: 0.2, weight_decay: 0.1}"),
                              ("adamw", "{type: adamw, learning_rate: 0.05, weight_decay: 0.1}")):
            expected = [float(line) for line in self.python(FILES / "reference_branches.py", GLUE, 30, 32, kind).split()]
            for ranks in (1, 2):
                run = self.train(ranks, config=self.odd("Branches"), run=f"{kind}{ranks}", sets=["train.max_steps=30", f"optimizer={options}"])
                for step, theirs in zip(run.steps(), expected, strict=True):
                    self.assertAlmostEqual(step["loss"], theirs, delta=2e-6)
                self.assertEqual(run.log.count("no rank's backward reached "), 2, run.log)  # `other` and `lost`; later `one`

    def test_draws_of_random_and_numpy_are_those_of_the_unbroken_run(self):
        self.assert_resumes(self.odd("LayerDrop"), "drops", ["train.max_steps=60"])

    def test_a_save_holds_the_weights_of_its_step_though_forward_writes_them(self):
        sets = ["train.max_steps=6", "checkpoint.save_checkpoints_steps=2", "optimizer.learning_rate=1e-30"]
        run = self.train(1, config=self.odd("Counts"), sets=sets)
        for step in (2, 4, 6):
            self.assertEqual(self.weights(run, step)["count"][:2], [step, step])

    def test_forward_may_run_backward_and_parameters_may_be_empty(self):
        self.train(config=self.odd("Inner"), sets=["train.max_steps=20", "sync.overlap=true", "sync.bucket_bytes=1024"])

    def test_ranks_that_parted_are_told(self):
        parted = self.start(config=self.odd("MaxNorm"), run="max_norm", is_cold=True, sets=["checkpoint=off", "optimizer.learning_rate=0.01"]).wait()
        self.assertEqual(parted.code, 76, parted.log)
        self.assertIn("at step 1 (parameters written in forward: table.weight)", parted.log)
        parted = self.start(config=self.odd("Complex"), run="complex", is_cold=True, sets=["checkpoint=off"]).wait()
        self.assertEqual(parted.code, 76, parted.log)
        self.assertIn("model/spectrum differs", parted.log)
        self.assertIn("(3, 4)", parted.log)

    def test_skipped_updates_are_told_once_and_counted(self):
        run = self.train(config=self.config(), sets=["data.train.args={fault: nan}", "train.max_steps=20", "summary.log_every=10"])
        self.assertEqual(run.summary()["skipped_steps"], 3)  # the first of 7 updates an epoch
        self.assertEqual(len(re.findall(r"step 1: the update was skipped, because the loss of rank 0 is not finite", run.log)), 1, run.log)
        self.assertEqual(run.log.count("the update was skipped"), 1)

    def test_workers_read_the_same_samples(self):
        sets = ["data.train.args={noise: 0.1}", "train.max_steps=30", "data.shuffle=true"]
        config = self.config()
        alone = self.train(1, config=config, run="alone", sets=sets).summary()
        workers = self.train(1, config=config, run="workers", sets=[*sets, "data.train.num_workers=2"]).summary()
        self.assertEqual(workers["parameters_sha256"], alone["parameters_sha256"])
        killed = self.start(1, config=config, run="killed", is_cold=True, sets=[*sets, "data.train.num_workers=1",
                                                                            "data.train.args={fault: killed}"]).wait()
        self.assertEqual(killed.code, 69, killed.log)
        self.assertIn("a worker of the data set was killed", killed.log)

    def test_workers_leave_signals_to_the_rank(self):
        sets = [f"data.{use}.{key}" for use in ("train", "eval") for key in ("args={fault: terminated}", "num_workers=1")]
        run = self.train(1, config=self.config(), sets=[*sets, "train.max_steps=14", "eval.every_epochs=1"])
        self.assertEqual(run.summary()["eval"]["num_samples"], 200)

    def test_packages_train_to_the_bits_of_single_files(self):
        """Three files of one name, in three folders of a package; one of the folders has no __init__.py."""
        shop = self.folder / "shop"
        for folder in ("models", "data", "logs"):
            (shop / folder).mkdir(parents=True)
            if folder != "models":
                (shop / folder / "__init__.py").touch()
        (shop / "__init__.py").write_text("from .data.net import Points  # before the worker asks for it\n")
        for name in ("nets", "sets"):
            (shop / f"{name}.py").write_text((FILES / f"{name}.py").read_text())
        (shop / "models/net.py").write_text("from ..nets import Plain\nfrom .parts import named\nNet = named(Plain)\n")
        (shop / "models/parts.py").write_text("def named(kind):\n    from . import net\n    assert kind is net.Plain\n    return kind\n")
        (shop / "data/net.py").write_text("from shop import sets\nfrom ..sets import Points\nassert Points is sets.Points\n")
        (shop / "logs/net.py").write_text("from ..sets import Points\nclass Counts:\n    incoming_keys = ['loss']\n"
                                          "    def on_iteration_end(self, loss):\n        assert len(Points()) == 200\n")
        sets = ["data.train.args={noise: 0.1}", "data.shuffle=true"]
        single = self.train(2, config=self.config(), run="single", sets=sets)
        parts = [f"model.path={shop}/models/net.py", "model.name=Net", f"data.train.path={shop}/data/net.py", "data.train.num_workers=1",
                 f"callbacks={{mine: {{type: python, path: {shop}/logs/net.py, name: Counts}}}}"]
        resumed = self.assert_resumes(self.config(), "package", [*sets, *parts])
        self.assertEqual(resumed.summary()["parameters_sha256"], single.summary()["parameters_sha256"])

    def test_a_data_set_of_values_fits_a_line(self):
        sets = ["data.train.name=Line", "data.eval.name=Line", "train.max_steps=300"]
        summary = self.train(1, config=self.config(), sets=sets).summary()
        self.assertLess(summary["eval"]["loss"], 0.02)
        self.assertIsNone(summary["eval"]["accuracy"])

    def test_a_new_project_trains(self):
        folder = self.folder / "project"
        self.assertIn("lockstep check", self.tool("new", "project", folder, "--python"))
        self.assertIn(": ok", self.tool("check", folder / "run.yaml"))
        run = self.train(1, config=folder / "run.yaml", sets=["train.max_steps=240"])
        self.assertGreater(run.summary()["eval"]["accuracy"], 0.8)
        refused = subprocess.run([LOCKSTEP, "new", "project", folder, "--python"], capture_output=True, text=True)
        self.assertEqual(refused.returncode, 73)

    def test_a_run_without_python_code_loads_no_interpreter(self):
        traced = subprocess.run(["strace", "-f", "-e", "trace=openat", "-o", self.folder / "calls", BUILD / "bin" / "lockstepd",
                                 "--config", SOURCE / "configs" / "digits.yaml", "--set", "train.max_steps=1", "--set",
                                 f"run.project_dir={self.folder}/run", "--set", "metrics.listen='127.0.0.1:0'"],
                                capture_output=True, text=True, timeout=100, cwd=SOURCE)
        self.assertEqual(traced.returncode, 0, traced.stderr)
        opened = (self.folder / "calls").read_text()
        self.assertIn("libtorch_cpu", opened)
        self.assertNotIn("libpython", opened)

    def test_check_refuses_what_the_run_refuses(self):
        """Each with the run's exit code and message; several at once in one pass."""
        cases = (
            (78, r"the network returns \[\d+, 2\] for \d+ samples", ["model.name=Bad", "model.args={fault: shape}"]),
            (78, r"nets.py:\d+: ValueError: this forward fails", ["model.name=Bad", "model.args={fault: raises}"]),
            (65, r"sample 0 of Odd differs when it is read twice", ["data.train.name=Odd", "data.train.args={kind: unseeded}", "data.eval=null"]),
            (78, r"own/layer.weight and own.layer.weight are both model/own/layer/weight in a checkpoint", ["model.name=Clash"]),
            (66, r"nowhere.pt", ["checkpoint.warm_start_ckpt=nowhere.pt"]),
            (78, r"section 'export' needs TorchScript.*as safetensors, onnx, pt2, tensorflow, pretrained", ["export.at_end=true"]),
        )
        for code, said, sets in cases:
            self.refused_by_both(code, sets, said)
        text = self.tool("check", self.config(), "--set", "checkpoint.warm_start_ckpt=nowhere.pt", "--set", "export.at_end=true", expect=78)
        self.assertIn("nowhere.pt", text)

    def refused_by_both(self, code, sets, said):
        config = self.config()
        settings = [word for one in sets for word in ("--set", one)]
        self.assertRegex(self.tool("check", config, *settings, expect=code), said)
        run = self.start(1, config=config, sets=sets).wait()
        self.assertEqual(run.code, code, run.log)
        self.assertRegex(run.log, said)

    def test_what_the_constructor_froze_is_neither_pruned_nor_trained(self):
        teacher = [f"model.path={FILES}/odd_nets.py", "model.name=Teacher"]
        pruning = "modifiers=[!GMPruningModifier {{params: {}, init_sparsity: 0.1, final_sparsity: 0.5, start_epoch: 0.5, end_epoch: 2, update_frequency: 1}}]"
        frozen = r"'{}' names only parameters that are frozen in the network's constructor \(requires_grad=False\), such as teacher.weight"
        for entry in ("teacher.weight", "teacher", "re:teacher"):
            self.refused_by_both(78, [*teacher, pruning.format(f"['{entry}']")], frozen.format(entry))
        trainable = "modifiers=[!TrainableParamsModifier {params: [teacher], trainable: true, start_epoch: 0, end_epoch: 2}]"
        self.refused_by_both(78, [*teacher, trainable], frozen.format("teacher"))
        self.refused_by_both(78, [*teacher, "train.trainable_scopes=[teacher]"], frozen.format("teacher"))
        archive = self.folder / "teacher.pt"
        program = self.folder / "archive.py"
        program.write_text(f"import sys; sys.path[:0] = ['{GLUE}', '{FILES}']\nfrom lockstep_glue.torch_import import torch\nimport nets\n"
                           f"net = nets.Plain(); net.first.requires_grad_(False); torch.jit.script(net).save('{archive}')")
        self.python(program)
        self.refused_by_both(78, [f"model={{type: torchscript, path: {archive}}}", pruning.format("[first]")],
                             frozen.format("first").replace("teacher", "first"))
        self.assertIn(": ok", self.tool("check", self.odd("Teacher"), "--set", pruning.format("[student]")))

    def test_check_tries_an_evaluation(self):
        for arguments, said in (("{way: raises}", r"odd_nets.py:\d+: RuntimeError: no evaluation yet"), ("{way: shape}", r"the network returns \[\d+\] for")):
            sets = [f"model={{type: python, path: {FILES}/odd_nets.py, name: OtherInEvaluation, args: {arguments}}}", "train.max_steps=2"]
            self.refused_by_both(78, sets, said)
            settings = [word for one in [*sets, "data.eval=null"] for word in ("--set", one)]
            self.assertIn(": ok", self.tool("check", self.config(), *settings))
        own = [f"model={{type: python, path: {FILES}/odd_nets.py, name: OtherInEvaluation, args: {{way: penalty}}}}", "train.loss=own", "train.max_steps=2"]
        self.refused_by_both(78, own, "does not require grad")

    def test_check_opens_the_warm_start(self):
        start = self.train(1, config=self.config(), run="start", sets=["train.max_steps=2"])
        self.refused_by_both(78, [f"checkpoint.warm_start_ckpt={start.folder}", "model.name=Noisy"], "does not fit the model")
        self.refused_by_both(78, [f"checkpoint.warm_start_ckpt={start.folder}", "checkpoint.checkpoint_exclude_scopes=haed"], "haed")
        whole = self.tool("check", self.config(), "--set", f"checkpoint.warm_start_ckpt={start.folder}")
        self.assertIn("7 of 7 variables loaded", whole)

    def test_a_batch_of_one_sample_is_told_before_it_comes(self):
        sets = ["model.name=Noisy", "data.train.args={samples: 193}", "train.max_steps=10"]  # the seventh batch has one
        run = self.start(2, config=self.config(), sets=sets).wait()
        self.assertEqual(run.code, 78, run.log)
        self.assertRegex(run.log, "a global batch of 1 of 193 samples leaves one sample to a rank of 2, which batch normalisation may reject")
        self.assertRegex(run.log, "Expected more than 1 value per channel .*set data.drop_last: true")
        settings = [word for one in sets for word in ("--set", one)]
        self.assertRegex(self.tool("check", self.config(), *settings, expect=78), "Expected more than 1 value per channel .*drop_last")
        for way_out in ("data.drop_last=true", "train.max_steps=6", "data.global_batch_size=31"):
            self.assertIn(": ok", self.tool("check", self.config(), *settings, "--set", way_out))

    def odd_sets(self, name, args="{}"):
        return [f"model.path={FILES}/odd_nets.py", f"model.name={name}", f"model.args={args}", "train.max_steps=6"]

    def test_buffers_that_no_save_could_hold_are_refused(self):
        for how, text in (("none", "registers center in forward, or fills it there from None"), ("late", "registers center in forward"),
                          ("grows", r"the network's center is Float \[0, 8\] when it is built, and its forward pass changes it to Float \[2, 8\]"),
                          ("type", r"center is Float \[8\] when it is built, and its forward pass changes it to Double \[8\]"), ("sparse", "keeps center as torch.sparse_coo")):
            with self.subTest(how=how):
                sets = self.odd_sets("Buffers", f"{{how: {how}}}")
                run = self.start(2, config=self.config(), run=how, sets=sets).wait()
                self.assertEqual(run.code, 78, run.log)
                self.assertRegex(run.log, text)
                if how not in ("type", "late"):  # those come later than the passes of a check
                    self.assertRegex(self.tool("check", self.config(), *(word for one in sets for word in ("--set", one)), expect=78), text)

    def test_buffers_that_forward_fills_and_a_loss_without_a_gradient_train(self):
        for how in ("unsaved", "expanded", "dropped"):
            sets = self.odd_sets("Dropped") if how == "dropped" else self.odd_sets("Buffers", f"{{how: {how}}}")
            whole = self.train(2, config=self.config(), run=f"{how}_whole", sets=sets)
            self.train(2, config=self.config(), run=f"{how}_parts", sets=[*sets, "train.max_steps=3"])
            parts = self.train(2, config=self.config(), run=f"{how}_parts", sets=sets)
            self.assertEqual(parts.summary()["parameters_sha256"], whole.summary()["parameters_sha256"], how)  # three passes: those of `dropped` repeat

    def test_a_backward_pass_within_backward_gives_each_parameter_one_gradient(self):
        odd = [f"model.path={FILES}/odd_nets.py", "model.name=Reentrant", "checkpoint=off", "train.max_steps=3"]
        self.train(2, config=self.config(), run="once", sets=[*odd, "model.args={twice: false}"])
        run = self.start(2, config=self.config(), run="twice", sets=[*odd, "model.args={twice: true}"]).wait()
        self.assertEqual(run.code, 78, run.log)
        self.assertIn("use use_reentrant=False", run.log)
        self.assertNotIn("[bug]", run.log)

    def test_infer_answers_as_the_evaluation_of_the_run(self):
        args = "{width: 8, text: '5', rate: 0.5, numbers: [1, [2, 3]], names: {a: {b: x y}, c: true}, empty: [], nothing: null}"
        run = self.train(1, config=self.config("Told"), sets=[f"model.args={args}", "train.max_steps=40"])
        results = self.folder / "answers"
        config = self.folder / "infer.yaml"
        config.write_text(f"run: {{name: x, threads: 1, project_dir: {self.folder}}}\n"
                          f"inferer: {{log_dir: {results}, callbacks: {{prediction_saver: {{keys: [logits, targets]}}}}}}\n")
        feed = f"{{type: python, path: {FILES}/sets.py, name: Points}}"
        said = self.tool("infer", "--checkpoint", run.folder, "--config", config, "--feed", feed)
        self.assertIn("200 sample(s)", said)
        answers = [json.loads(path.read_text()) for path in results.glob("*.json")]
        right = sum(max(range(3), key=one["logits"].__getitem__) == one["targets"] for one in answers)
        self.assertEqual(len(answers), 200)
        self.assertAlmostEqual(right / 200, run.summary()["eval"]["accuracy"], places=6)
        refused = self.tool("ckpt", "export", run.folder / "checkpoints", "--format", "torchscript", "-o", self.folder / "x.pt", expect=64)
        self.assertIn("use --format pt2 (torch.export) or onnx", refused)

    def test_a_quantized_network_resumes_and_freezes_its_batch_statistics(self):
        quantized = "modifiers=[!QuantizationModifier {start_epoch: 1, disable_quantization_observer_epoch: 8, freeze_bn_stats_epoch: 5}]"
        run = self.assert_resumes(self.config("Noisy"), "quantized", [quantized])  # 7 steps an epoch
        self.assertEqual(self.weights(run, 40)["norm.running_mean"], self.weights(run, 100)["norm.running_mean"])
        self.assertNotEqual(self.weights(run, 20)["norm.running_mean"], self.weights(run, 40)["norm.running_mean"])
        shown = json.loads(self.tool("ckpt", "show", run.folder / "checkpoints", "--json", "--values"))
        values = {tensor["key"]: tensor["values"] for tensor in shown["tensors"]}
        for layer in ("first", "classifier"):
            self.assertEqual(values[f"_lockstep/quantization/{layer}/observations"], [7 * 8 - 7])

    def test_a_quantized_network_answers_as_its_evaluation(self):
        quantized = "modifiers=[!QuantizationModifier {start_epoch: 1}]"
        run = self.train(2, config=self.config("MaskedLayers"), sets=[quantized])
        losses = []
        for name, where in (("quantized", run), ("plain", self.train(2, config=self.config("MaskedLayers"), run="plain"))):
            results = self.folder / f"answers-{name}"
            config = self.folder / f"{name}.yaml"
            config.write_text(f"run: {{name: x, threads: 1, project_dir: {self.folder}}}\n"
                              f"inferer: {{log_dir: {results}, callbacks: {{prediction_saver: {{keys: [logits, targets]}}}}}}\n")
            self.tool("infer", "--checkpoint", where.folder, "--config", config, "--feed", f"{{type: python, path: {FILES}/sets.py, name: Points}}")
            answers = [json.loads(path.read_text()) for path in results.glob("*.json")]
            self.assertEqual(len(answers), 200)
            losses.append(sum(math.log(sum(map(math.exp, one["logits"]))) - one["logits"][one["targets"]] for one in answers) / 200)
            self.assertAlmostEqual(losses[-1], where.summary()["eval"]["loss"], delta=2e-6)
        self.assertGreater(abs(losses[0] - losses[1]), 1e-5)  # the rounding shows

    def test_infer_takes_whole_numbers_and_data_without_targets(self):
        run = self.train(1, config=self.config("OfWhole"), sets=["data.train.name=Whole", "data.eval.name=Whole", "train.max_steps=20"])
        answers = {}
        for args, more, expect in (("{}", "", 0), ("{has_targets: false}", "", 0), ("{has_targets: false}", ", num_workers: 2", 0)):
            results = self.folder / f"answers{len(answers)}"
            config = self.folder / "infer.yaml"
            config.write_text(f"run: {{name: x, threads: 1, project_dir: {self.folder}}}\n"
                              f"inferer: {{log_dir: {results}, callbacks: {{prediction_saver: {{keys: [logits, _targets]}}}}}}\n")
            self.tool("infer", "--checkpoint", run.folder, "--config", config, expect=expect,
                      *["--feed", f"{{type: python, path: {FILES}/sets.py, name: Whole, args: {args}{more}}}"])
            answers[args + more] = {path.name: json.loads(path.read_text()) for path in results.glob("*.json")}
        with_targets, without, by_workers = answers.values()
        self.assertEqual(len(with_targets), 200)
        self.assertEqual(without, {name: {"logits": one["logits"]} for name, one in with_targets.items()})
        self.assertEqual(by_workers, without)
        self.assertIn("is Tensor: it must be (input, target)", self.tool("check", self.config("OfWhole"), "--set", "data.train.name=Whole", "--set",
                                                                   "data.train.args={has_targets: false}", expect=65))

    def test_infer_says_where_it_looks_for_the_code(self):
        net = self.folder / "net.py"
        net.write_text((FILES / "nets.py").read_text())
        run = self.train(1, config=self.config(), sets=[f"model.path={net}", "train.max_steps=2"])
        net.unlink()
        said = self.tool("infer", "--checkpoint", run.folder, "--feed", "{type: digits}", expect=66)
        self.assertIn("name its run file with --config", said)

    def refused(self, code, sets, text):
        run = self.start(config=self.config("Bad"), is_cold=True, sets=["checkpoint=off", *sets]).wait()
        self.assertEqual(run.code, code, run.log)
        self.assertRegex(run.log, text)

    def test_a_fault_of_python_ends_all_ranks(self):
        """The messages of other mistakes are tested in one process, by tests/python."""
        self.refused(78, ["model.args={fault: raises}"], r"nets.py:\d+: ValueError: this forward fails\n")
        self.refused(65, ["data.train.args={fault: raises}"], r"sets.py:\d+: sample 77 of Points, .*KeyError: 'no such point'")
        self.refused(76, ["model.args={fault: ranks}"], r"classifier.weight")


if __name__ == "__main__":
    unittest.main()
