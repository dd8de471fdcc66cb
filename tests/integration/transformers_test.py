"""Networks of transformers in the worker: dicts, tuples and dataclasses as batches, padding, ignored labels, streams. The losses are those of
plain PyTorch's loop over whole batches."""
import functools
import json
import os
import pathlib
import unittest

import warm
from harness import BUILD, SOURCE, missing_tool

FILES = pathlib.Path(__file__).parent / "programs" / "python"
GLUE = BUILD / "lib" / "lockstep"
PYTHON = SOURCE / ".venv" / "bin" / "python3"
PACKAGES = next((SOURCE / ".venv-test").glob("lib/python3*/site-packages"), pathlib.Path("nowhere"))
CONFIG = """version: 1.0.0
run: {{name: transformers, seed: 17}}
model: {{type: python, path: {files}/{module}.py, name: {net}, args: {net_args}}}
data:
  train: {{type: python, path: {files}/hf_sets.py, name: {set}, args: {set_args}{more}}}
  eval: {{type: python, path: {files}/hf_sets.py, name: {set}, args: {set_args}{more}}}
  global_batch_size: 8
  shuffle: false
train: {{loss: own, max_steps: 20}}
optimizer: {{type: sgd, learning_rate: 0.1}}
eval: {{every_epochs: 0, batch_size: 64}}
checkpoint: {{save_checkpoints_steps: 1000}}
summary: {{log_every: 1}}
"""
MASKED = {"labels": "masked"}
STREAM = ", iterable: true"


@functools.cache
def interpreter():
    return warm.Python(PYTHON, "from lockstep_glue.torch_import import torch; import hf_nets", [GLUE, FILES])


class Transformers(warm.WarmTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not (PACKAGES / "transformers").is_dir():
            missing_tool("no transformers in .venv-test (tools/setup test installs it)")
        # The worker's Python has torch, the one of the tests has transformers.
        cls.before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = str(PACKAGES)

    @classmethod
    def tearDownClass(cls):
        if cls.before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = cls.before
        super().tearDownClass()

    def config(self, net, net_args=None, data="Texts", data_args=None, more="", name="run"):
        path = self.folder / f"{name}.yaml"
        module = "keyword_nets" if net in ("Lazy", "Needs", "Shifts", "Tuples") else "hf_nets"  # the first are quicker to import
        path.write_text(CONFIG.format(files=FILES, module=module, net=net, net_args=json.dumps(net_args or {}), set=data, set_args=json.dumps(data_args or {}), more=more))
        return path

    def expected(self, net, net_args=None, data="Texts", data_args=None, steps=20):
        """Losses of the steps, and of all samples afterwards."""
        job = {"net": net, "net_args": net_args or {}, "set": data, "set_args": data_args or {}, "steps": steps, "batch": 8, "rate": 0.1}
        code, said, faults = interpreter().run(FILES / "hf_reference.py", GLUE, json.dumps(job))
        self.assertEqual(code, 0, faults)
        *losses, last = map(float, said.split())
        return losses, last

    def assert_losses(self, run, losses, last=None):
        self.assertEqual(len(run.steps()), len(losses))
        for step, theirs in zip(run.steps(), losses, strict=True):
            self.assertAlmostEqual(step["loss"], theirs, delta=1e-5)
        if last is not None:
            self.assertAlmostEqual(run.summary()["eval"]["loss"], last, delta=1e-5)

    def compare(self, *job, ranks=(1, 2), sets=(), more="", title="run", **keys):
        losses, last = self.expected(*job, **keys)
        for num_ranks in ranks:
            run = self.train(num_ranks, config=self.config(*job, more=more, name=title, **keys), run=f"{title}{num_ranks}", sets=sets)
            self.assert_losses(run, losses, last)
        return losses

    def test_bert_with_masked_labels(self):
        losses = self.compare("bert", data_args=MASKED)
        self.assertLess(losses[-1], losses[0] - 0.1)

    def test_gpt2_leaves_out_the_first_label_and_samples_without_labels(self):
        """On two ranks one has batches of ignored labels alone."""
        self.compare("gpt2", data_args={"labels": "none"})

    def test_vit(self):
        self.compare("vit", data="Pixels", ranks=(2,))

    def test_t5(self):
        self.compare("t5", data_args={"labels": "none"}, ranks=(2,))

    def test_a_mixture_of_experts(self):
        self.compare("mixtral", ranks=(2,))

    def test_tuples_dataclasses_and_lazy_parameters(self):
        self.compare("Tuples", data_args={"kind": "tuple"}, ranks=(2,), title="tuples")
        self.compare("bert", data_args={"kind": "dataclass"}, ranks=(2,), title="dataclasses")
        lazy = self.config("Lazy", data_args={"kind": "dict", "labels": "class"}, more=", num_classes: 3", name="lazy")
        summary = self.train(2, config=lazy, run="lazy", sets=["train.loss=auto", "eval.metrics=[top_k]", "eval.top_k.k=2"]).summary()
        self.assertGreaterEqual(summary["eval"]["metrics"]["top_2"], summary["eval"]["accuracy"])

    def test_a_loss_of_lockstep_equals_the_network_s_own(self):
        """Of classes, and of tokens in batches of different lengths."""
        for name, head, labels, classes in (("classes", "ForSequenceClassification", "class", 3), ("tokens", "ForMaskedLM", "masked", 64)):
            job = {"net_args": {"head": head}, "data_args": {"labels": labels}, "more": f", num_classes: {classes}", "name": name}
            own = self.train(2, config=self.config("bert", **job), run=f"{name}_own", sets=["eval.metrics=[perplexity]"])
            ours = self.train(2, config=self.config("bert", **job), run=name, sets=["train.loss=auto", "eval.metrics=[perplexity]"])
            self.assert_losses(ours, [step["loss"] for step in own.steps()], own.summary()["eval"]["loss"])
            self.assertAlmostEqual(ours.summary()["eval"]["metrics"]["perplexity"], own.summary()["eval"]["metrics"]["perplexity"], delta=1e-4)
            self.assertGreater(ours.summary()["eval"]["accuracy"], 0)

    def test_micro_batches_and_gradient_checkpointing_change_no_loss(self):
        losses, last = self.expected("gpt2")
        for name, args, sets in (("reentrant", {"checkpointing": "reentrant"}, []), ("plain", {"checkpointing": "plain"}, []),
                                 ("cut", {}, ["train.replicas_to_aggregate=2"])):
            self.assert_losses(self.train(2, config=self.config("gpt2", args, name=name), run=name, sets=sets), losses, last)

    def test_streams_are_read_by_share(self):
        losses, last = self.expected("gpt2")
        for name, more, num_workers in (("Stream", STREAM, 0), ("Endless", f"{STREAM}, samples: 64", 2)):
            sets = ["data.shuffle=true", f"data.train.num_workers={num_workers}", f"data.eval.num_workers={num_workers}"]
            self.assert_losses(self.train(2, config=self.config("gpt2", data=name, more=more, name=name), run=name, sets=sets), losses, last)

    def test_killed_runs_resume_to_the_same_bits(self):
        jobs = {"texts": {}, "stream": {"data": "Stream", "data_args": {"has_skip": True}, "more": STREAM}}
        for name, job in jobs.items():
            config = self.config("gpt2", {"dropout": 0.1}, name=name, **job)
            sets = ["checkpoint.save_checkpoints_steps=5", "sync.replica_check_every=5", "data.shuffle=true", "train.max_steps=18"]
            unbroken = self.train(config=config, run=f"{name}_unbroken", sets=sets)
            killed = self.start_faulty("kill", rank=1, step=13, config=config, run=name, sets=sets).wait()
            self.assertIn(killed.code, (137, 69), killed.log)
            resumed = self.train(config=config, run=name, sets=sets)
            self.assertRegex(resumed.log, r"resuming from step (5|10) ")
            self.assertEqual(resumed.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
            self.assertEqual(resumed.steps(), unbroken.steps())
            if name == "stream":
                warm.wait_for(lambda: "stream skips " in resumed.output(), "what the data set prints")
            self.tool("eval", config, "--set", f"run.project_dir={resumed.folder}")
        feed = f"{{type: python, path: {FILES}/hf_sets.py, name: Texts}}"
        self.assertIn("inference takes one tensor for each sample", self.tool("infer", "--checkpoint", resumed.folder, "--feed", feed, expect=78))

    def test_elastic_runs_have_equal_bits(self):
        config = self.config("bert", data_args={"kind": "dict", "labels": "masked"})
        shas = [self.train(ranks, config=config, run=f"elastic{ranks}", sets=["run.deterministic=elastic"]).summary()["parameters_sha256"]
                for ranks in (1, 2)]
        self.assertEqual(*shas)

    def refused(self, code, said, config, sets=(), runs=False):
        """By check, and by the run."""
        settings = [word for one in sets for word in ("--set", one)]
        self.assertRegex(self.tool("check", config, *settings, expect=code), said)
        if not runs:
            return
        run = self.start(2, config=config, sets=sets).wait()
        self.assertEqual(run.code, code, run.log)
        self.assertRegex(run.log, said)

    def test_both_lists_are_printed_if_a_keyword_is_missing(self):
        dicts = {"kind": "dict"}
        self.refused(78, r"Needs.forward needs pixel_values, which the batch lacks; keywords that forward needs: input_ids, pixel_values; .*"
                         r"keys of the batch: input_ids, attention_mask, labels", self.config("Needs", data_args=dicts), runs=True)
        # It has a default, and is needed all the same.
        self.refused(78, r"ValueError: You (must|have to) specify .*\(keywords that forward needs: none; that it takes: input_ids, .*"
                         r"keys of the batch: attention_mask, labels", self.config("gpt2", data_args={**dicts, "without": "input_ids"}))
        self.refused(78, "GPT2LMHeadModel.forward returns no loss; .*keys of the batch: input_ids, attention_mask",
                     self.config("gpt2", data_args={**dicts, "without": "labels"}))
        self.refused(78, "Lazy.forward does not take idx of the batch; .*leave it out",
                     self.config("Lazy", data_args={**dicts, "extra": "idx"}))

    def test_batches_that_cannot_be_are_refused(self):
        dicts = {"kind": "dict"}
        self.refused(65, "text of sample 0 of Texts is str and no tensor", self.config("Shifts", data_args={**dicts, "extra": "text"}))
        self.refused(78, "elastic cannot be combined with a data set that has a collate_fn", self.config("Shifts"), ["run.deterministic=elastic"])
        self.refused(78, "data.on_error: skip cannot be combined with the collate_fn of Texts", self.config("Shifts"), ["data.on_error=skip"], runs=True)
        self.refused(65, "Endless has no __len__: write the samples of an epoch", self.config("Shifts", data="Endless", more=STREAM))
        self.refused(65, "Texts has no __iter__: `iterable: true` needs it", self.config("Shifts", more=STREAM))
        self.refused(78, "train.loss .* needs targets, and the batches have none", self.config("gpt2", data_args={**dicts, "without": "labels"}),
                     ["train.loss=auto"])
        tokens = self.config("gpt2", data_args=dicts, more=", num_classes: 64")
        self.refused(78, "eval.metrics cannot be combined with a network that shifts its targets itself", tokens, ["eval.metrics=[perplexity]"])
        self.assertIn("the network's own loss shifts the targets, train.loss: auto does not", self.tool("check", tokens, "--set", "train.loss=auto"))
        self.refused(78, r"this network takes one tensor, the batch has 2 \(input_ids, attention_mask\)",
                     self.config("Shifts", data_args=dicts, more=", num_classes: 64"), ["model={type: gpt, layers: 1, heads: 2, width: 8}", "train.loss=auto"])
        run = self.start(1, config=self.config("gpt2", data="Stream", data_args={"ends_after": 30}, more=STREAM)).wait()
        self.assertEqual(run.code, 65, run.log)
        self.assertIn("Stream ended after 30 samples, an epoch has 64", run.log)


if __name__ == "__main__":
    unittest.main()
