"""Whole runs on a GPU, of one rank or, where NCCL_MULTI_RANK_GPU_ENABLE=1 is set and NCCL is 2.30 or later, of several that share it. Left
out where no GPU is. The other tests of this folder train there too, since `run.device: auto` takes a GPU where each rank may have one."""
import math
import os
import pathlib
import re
import subprocess
import sys
import unittest

from harness import BUILD, PRUNE_EARLY, LockstepTest, metric
from optimizers_test import DEFAULT, OPTIMIZERS, TYPES

PROGRAMS = pathlib.Path(__file__).parent / "programs" / "python"
GPU = ["run.device=cuda", "eval.every_epochs=0"]
CPU = ["run.device=cpu", "eval.every_epochs=0"]
SAVES = ["checkpoint.save_checkpoints_steps=20", "run.deterministic='true'"]
PRUNED = "{params: __ALL__, init_sparsity: 0.5, final_sparsity: 0.9, start_step: 5, end_step: 40, update_frequency_steps: 10}"
NEAR = 1e-4  # of float32 losses; an H200 gave 5e-6 and less
LOCAL = ["sync.sync_replicas=false", "sync.sync_every=4"]
FROZEN = ("version: 1.0.0\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: 3}\n"
          "  - !TrainableParamsModifier {params: ['classifier.weight'], trainable: false, start_epoch: 1, end_epoch: 2}\n")
RECIPE = f"version: 1.0.0\nmodifiers:\n  - !GradualKSModifier {PRUNED}\n"


def has_gpu():
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def ranks_may_share():
    return os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"


@unittest.skipUnless(has_gpu(), "no GPU is here")
class GpuTest(LockstepTest):
    def losses(self, run):
        return [line["loss"] for line in run.steps()]

    def assert_near(self, losses, others, limit, what=""):
        self.assertTrue(all(map(math.isfinite, losses)), losses)
        worst = max(abs(a - b) / (1 + abs(b)) for a, b in zip(losses, others, strict=True))
        print(f"{what or self.id()}: largest difference of {len(losses)} losses {worst:.1e}")
        self.assertLessEqual(worst, limit, what)

    def assert_same(self, run, other):
        self.assertEqual(run.steps(), other.steps())
        self.assertEqual(run.summary()["parameters_sha256"], other.summary()["parameters_sha256"])


class OneRank(GpuTest):
    def test_losses_and_masks_are_nearly_those_of_cpus(self):
        for name, more in (("plain", []), ("pruned", [self.recipe(RECIPE)])):
            sets = [*more, "train.max_steps=60"]
            there = self.train(1, run=f"gpu_{name}", sets=[*GPU, *sets])
            here = self.train(1, run=f"cpu_{name}", sets=[*CPU, *sets])
            self.assert_near(self.losses(there), self.losses(here), NEAR, name)
            self.assertEqual(there.summary()["sparsity"], here.summary()["sparsity"])

    def test_evaluation_is_nearly_that_of_cpus(self):
        found = {}
        for device in ("cuda", "cpu"):
            run = self.train(1, run=device, sets=[f"run.device={device}", "train.max_steps=46", "eval.every_epochs=1"])
            found[device] = run.summary()["eval"]
        self.assertAlmostEqual(found["cuda"]["loss"], found["cpu"]["loss"], delta=0.05)
        self.assertAlmostEqual(found["cuda"]["accuracy"], found["cpu"]["accuracy"], delta=0.03)

    def test_every_optimizer(self):
        for optimizer in TYPES:
            with self.subTest(optimizer):
                sets = [self.recipe(RECIPE), f"optimizer={{type: {optimizer}, {OPTIMIZERS.get(optimizer, DEFAULT)}}}", "train.max_steps=24"]
                there = self.train(1, run=f"gpu_{optimizer}", sets=[*GPU, *sets])
                here = self.train(1, run=f"cpu_{optimizer}", sets=[*CPU, *sets])
                self.assert_near(self.losses(there), self.losses(here), NEAR, optimizer)

    def test_precisions(self):
        losses = {}
        for precision in ("fp32", "bf16", "fp16"):
            losses[precision] = self.losses(self.train(1, run=precision, sets=[*GPU, "train.max_steps=60", f"train.precision={precision}"]))
        self.assert_near(losses["bf16"][:20], losses["fp32"][:20], 0.05, "bf16")
        self.assert_near(losses["fp16"][:20], losses["fp32"][:20], 0.02, "fp16")
        self.assertNotEqual(losses["bf16"], losses["fp32"])

    def test_what_is_not_finite_is_skipped(self):
        for optimizer in ("{type: momentum, learning_rate: 0.05, weight_decay: 0.01}", "{type: adamw, learning_rate: 0.001, weight_decay: 0.1}"):
            with self.subTest(optimizer):
                sets = ["recipe=null", "train.max_steps=20", "train.precision=fp16", "train.loss_scale={initial_exponent: 24}",
                        f"optimizer={optimizer}"]
                name = optimizer[7:10]
                there, here = (self.train(1, run=f"{name}_{device[0]}", sets=[*device, *sets]) for device in (GPU, CPU))
                skipped = [metric(run.last_page(0), "lockstep_nonfinite_steps_total") for run in (there, here)]
                self.assertGreater(skipped[0], 0)
                self.assertEqual(skipped[0], skipped[1])
                self.assert_near(self.losses(there), self.losses(here), 1e-2, optimizer)

    def test_a_stopped_and_a_killed_run_go_on_bit_for_bit(self):
        for optimizer in ("momentum", "adam"):
            sets = [*GPU, *SAVES, PRUNE_EARLY, "train.max_steps=60", f"optimizer={{type: {optimizer}, learning_rate: 0.002}}"]
            unbroken = self.train(1, run=f"unbroken_{optimizer}", sets=sets)
            stopped = self.start_faulty("usr1", rank=0, step=31, ranks=1, run=f"stopped_{optimizer}", sets=sets).wait()
            self.assertEqual(stopped.code, 75, stopped.log)
            self.assert_same(self.train(1, run=f"stopped_{optimizer}", sets=sets), unbroken)
            killed = self.start_faulty("kill", rank=0, step=47, ranks=1, run=f"killed_{optimizer}", sets=sets).wait()
            self.assertEqual(killed.code, 137, killed.log)
            self.assert_same(self.train(1, run=f"killed_{optimizer}", sets=sets), unbroken)

    def test_a_run_changes_between_gpu_and_cpus(self):
        sets = ["checkpoint.save_checkpoints_steps=10", PRUNE_EARLY]
        self.train(1, sets=[*GPU, *sets, "train.max_steps=30"])
        self.train(1, sets=[*CPU, *sets, "train.max_steps=40"])
        run = self.train(1, sets=[*GPU, *sets, "train.max_steps=50"])
        self.assertEqual(run.summary()["resumed_from_step"], 40)

    def test_batch_statistics_averages_and_clipping(self):
        model = "model={type: cnn, channels: [6, 8], hidden: 16, batch_norm: true}"
        for more in (["train.batch_norm=sync"], ["optimizer.clip_norm=1.0"], ["train.replicas_to_aggregate=2"], ["optimizer.ema_decay=0.99"]):
            with self.subTest(more):
                sets = [model, "train.max_steps=24", *more]
                there = self.train(1, run=f"gpu_{more[0]}", sets=[*GPU, *sets])
                here = self.train(1, run=f"cpu_{more[0]}", sets=[*CPU, *sets])
                self.assert_near(self.losses(there), self.losses(here), NEAR, str(more))

    def test_quantization(self):
        recipe = self.recipe("version: 1.0.0\nmodifiers:\n  - !QuantizationModifier {start_epoch: 0.2}\n")
        there = self.train(1, run="gpu", sets=[*GPU, recipe, "train.max_steps=30"])
        here = self.train(1, run="cpu", sets=[*CPU, recipe, "train.max_steps=30"])
        self.assert_near(self.losses(there), self.losses(here), 1e-3)

    def test_networks_in_python(self):
        """PyTorch's own modules, whose parameters are in Lockstep's buffers."""
        networks = pathlib.Path(__file__).parents[2] / "bench/peers/networks.py"
        for name, args, data in (("Mlp", '{"widths": [64, 32, 10]}', "shape: [64]"), ("ResNet18", "{}", "shape: [3, 32, 32]"),):
            with self.subTest(name):
                sets = [f"model={{type: python, path: '{networks}', name: {name}, args: {args}}}", "recipe=null", "train.max_steps=12",
                        f"data={{train: {{type: random, {data}, samples: 64, classes: 10}}, global_batch_size: 16}}", "optimizer.learning_rate=0.01"]
                there, here = (self.train(1, run=f"{name}_{device[0]}", sets=[*device, *sets]) for device in (GPU, CPU))
                self.assert_near(self.losses(there)[:6], self.losses(here)[:6], 2e-2, name)  # convolutions in TF32: they part

    def python_network(self, file, name, samples=64):
        return [f"model={{type: python, path: '{PROGRAMS / file}', name: {name}}}", "recipe=null",
                f"data={{train: {{type: random, shape: [4], samples: {samples}, classes: 3}}, global_batch_size: 16}}"]

    def test_networks_in_python_with_frozen_parts_masks_and_branches(self):
        """Tensors outside the flat buffers move to the GPU, too; the device's update skips parameters that backward does not reach."""
        for name in ("Teacher", "Mask", "Branches"):
            for optimizer in ("{type: adamw, learning_rate: 0.01, weight_decay: 0.1}", "{type: momentum, learning_rate: 0.1, weight_decay: 0.1}"):
                with self.subTest(f"{name} {optimizer}"):
                    sets = [*self.python_network("odd_nets.py", name), "train.max_steps=30", f"optimizer={optimizer}"]
                    there, here = (self.train(1, run=f"{name}_{optimizer[7:9]}_{device[0]}", sets=[*device, *sets]) for device in (GPU, CPU))
                    self.assert_near(self.losses(there), self.losses(here), NEAR, name)

    def test_networks_in_python_draw_the_same_after_a_kill(self):
        for file, name in (("nets.py", "Noisy"), ("odd_nets.py", "LayerDrop"), ("odd_nets.py", "Teacher")):
            with self.subTest(name):
                sets = [*GPU, *SAVES, *self.python_network(file, name), "train.max_steps=60", "checkpoint.wait_for=commit"]
                unbroken = self.train(1, run=f"unbroken_{name}", sets=sets)
                killed = self.start_faulty("kill", rank=0, step=45, ranks=1, run=f"killed_{name}", sets=sets).wait()
                self.assertIn(killed.code, (69, 137), killed.log)
                self.assert_same(self.train(1, run=f"killed_{name}", sets=sets), unbroken)

    def test_archives_of_torchscript_draw_the_same_after_a_kill(self):
        archive = self.folder / "noisy.pt"
        own = PROGRAMS.parents[3] / ".venv/bin/python3"
        subprocess.run([own if own.exists() else sys.executable, PROGRAMS / "script.py", BUILD / "lib" / "lockstep", "save", "LeNet", archive],
                       check=True, timeout=100)
        sets = [*GPU, *SAVES, f"model={{type: torchscript, path: '{archive}'}}", "recipe=null", "train.max_steps=60", "checkpoint.wait_for=commit"]
        unbroken = self.train(1, run="unbroken", sets=sets)
        killed = self.start_faulty("kill", rank=0, step=45, ranks=1, run="killed", sets=sets).wait()
        self.assertIn(killed.code, (69, 137), killed.log)
        self.assert_same(self.train(1, run="killed", sets=sets), unbroken)

    def test_recorded_passes_have_the_bits_of_others(self):
        cnn, resnet = "{type: cnn, channels: [6, 8], hidden: 16, batch_norm: true}", "{type: resnet18, stem: cifar}"
        gpt = ["model={type: gpt, layers: 2, heads: 2, width: 32}", "recipe=null", "optimizer={type: adamw, learning_rate: 0.001}",
               "data={train: {type: random, tokens: 64, shape: [32], samples: 64}, global_batch_size: 16}"]
        images = "data={train: {type: random, shape: [3, 32, 32], samples: 64, classes: 10}, global_batch_size: 16}"
        cases = {"plain": [], "pruned": [self.recipe(RECIPE)], "micro": ["train.replicas_to_aggregate=2"], "bf16": ["train.precision=bf16"],
                 "fp16": ["train.precision=fp16"], "cnn": [f"model={cnn}"], "clipped": ["optimizer.clip_norm=1.0"],
                 "averages": ["optimizer.ema_decay=0.99", "eval.every_epochs=1"], "frozen": [self.recipe(FROZEN)],
                 "adamw": ["optimizer={type: adamw, learning_rate: 0.001, weight_decay: 0.1}", "checkpoint.save_checkpoints_steps=10"],
                 "resnet": [f"model={resnet}", "recipe=null", images], "gpt": gpt}
        for name, more in cases.items():
            with self.subTest(name):
                sets = [*GPU, "run.deterministic='true'", "train.max_steps=60", *more]
                plain = self.train(1, run=f"off_{name}", sets=[*sets, "train.cuda_graphs='off'"])
                recorded = self.train(1, run=f"on_{name}", sets=[*sets, "train.cuda_graphs='on'"])
                self.assertRegex(recorded.log, r"passes over \[[0-9, ]+\] are recorded \(train.cuda_graphs\)")
                self.assertNotIn("are recorded (train", plain.log)
                self.assert_same(recorded, plain)

    def test_memory_and_metrics(self):
        run = self.train(1, sets=[*GPU, "train.max_steps=20", "gpu={per_process_gpu_memory_fraction: 0.2, memory_policy: all}"])
        self.assertRegex(run.log, r"memory of GPUs is allocated at the start; rank 0: GPU 0 \(GPU-[0-9a-f]+\), at most [0-9.]+ of [0-9.]+ GiB")
        page = run.last_page(0)
        print(re.findall(r"^lockstep_gpu.*$", page, re.MULTILINE))
        self.assertGreater(metric(page, "lockstep_gpu_memory_reserved_bytes"), 1e9)

    def test_a_save_answers_on_the_gpu(self):
        run = self.train(1, sets=[*GPU, "train.max_steps=30"])
        said = self.tool("infer", "--checkpoint", run.folder, "--feed", "{type: digits, split: test}")
        print(said)


@unittest.skipUnless(ranks_may_share(), "no two ranks may share a GPU (NCCL_MULTI_RANK_GPU_ENABLE=1)")
class RanksOnOneGpu(GpuTest):
    def test_recorded_passes_have_the_bits_of_others(self):
        for name, more in {"plain": [], "divided": ["sync.shard_optimizer=true"], "pruned": [self.recipe(RECIPE)]}.items():
            with self.subTest(name):
                sets = [*GPU, "run.deterministic='true'", "train.max_steps=60", "sync.replica_check_every=1", *more]
                plain = self.train(2, run=f"off_{name}", sets=[*sets, "train.cuda_graphs='off'"])
                recorded = self.train(2, run=f"on_{name}", sets=[*sets, "train.cuda_graphs='on'"])
                self.assertRegex(recorded.log, r"passes over \[[0-9, ]+\] are recorded \(train.cuda_graphs\)")
                self.assert_same(recorded, plain)

    def test_ranks_train_as_one_does(self):
        sets = [*GPU, "train.max_steps=60", self.recipe(RECIPE), "sync.replica_check_every=1"]
        alone = self.losses(self.train(1, run="1", sets=sets))
        for ranks in (2, 3, 4):
            self.assert_near(self.losses(self.train(ranks, run=str(ranks), sets=sets)), alone, NEAR, f"{ranks} ranks")

    def test_every_way_of_gradients(self):
        sets = [*GPU, PRUNE_EARLY, "train.max_steps=60", "run.deterministic='true'", "sync.replica_check_every=1"]
        plain = self.train(2, run="plain", sets=[*sets, "sync.sparse_allreduce=never", "sync.overlap=false"])
        for name, more in {
                "packed": ["sync.sparse_allreduce=always", "sync.bucket_bytes=20000"], "auto": [],
                "overlapped": ["sync.overlap='true'", "sync.bucket_bytes=20000"],
                "divided": ["sync.shard_optimizer=true"],
                "checked": ["sync.check_collectives=true"]}.items():
            with self.subTest(name):
                run = self.train(2, run=name, sets=[*sets, *more])
                self.assertEqual(self.losses(run), self.losses(plain))
                self.assertEqual(run.summary()["parameters_sha256"], plain.summary()["parameters_sha256"])

    def test_rounded_messages_and_local_steps(self):
        for number, more in enumerate((["sync.comm_dtype=bf16"], ["sync.comm_dtype=bf16", "sync.shard_optimizer=true"], LOCAL)):
            with self.subTest(more):
                sets = ["train.max_steps=40", "sync.replica_check_every=4", *more]
                there, here = (self.train(2, run=f"{number}_{device[0]}", sets=[*device, *sets]) for device in (GPU, CPU))
                self.assert_near(self.losses(there), self.losses(here), 1e-3, str(more))

    def test_a_killed_run_goes_on_bit_for_bit(self):
        sets = [*GPU, *SAVES, PRUNE_EARLY, "train.max_steps=60", "checkpoint.wait_for=commit"]
        unbroken = self.train(2, run="unbroken", sets=sets)
        for rank, step in ((0, 27), (1, 45)):
            killed = self.start_faulty("kill", rank=rank, step=step, run="killed", sets=sets).wait()
            self.assertIn(killed.code, (69, 137), killed.log)
        self.assert_same(self.train(2, run="killed", sets=sets), unbroken)

    def test_networks_in_python_agree_on_what_moves(self):
        for name in ("Teacher", "Branches", "Mask"):
            sets = [f"model={{type: python, path: '{PROGRAMS / 'odd_nets.py'}', name: {name}}}", "recipe=null", "train.max_steps=30",
                    "data={train: {type: random, shape: [4], samples: 64, classes: 3}, global_batch_size: 21}", "sync.replica_check_every=1"]
            there, here = (self.train(2, run=f"{name}_{device[0]}", sets=[*device, *sets]) for device in (GPU, CPU))
            self.assert_near(self.losses(there), self.losses(here), 1e-3, name)

    def test_a_hanging_rank_is_given_up(self):
        run = self.start_faulty("hang", rank=1, step=20, sets=[*GPU, "train.max_steps=60", "sync.timeout_s=5"]).wait()
        self.assertEqual(run.code, 79, run.log)
        self.assertIn("within 5 s", run.log)


if __name__ == "__main__":
    unittest.main()
