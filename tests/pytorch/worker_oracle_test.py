"""One network, trained by the worker and by a loop with lockstep.DataParallel: equal losses, rates, sparsities and masks of five recipes.

A killed loop resumes with equal bits on as many ranks, and within rounding on others. A killed worker with `run.deterministic: elastic` resumes
with equal bits on other numbers of ranks.
"""
import csv
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import unittest

import ranks
from ranks import dist, torch
import lockstep
import torch._dynamo  # noqa: F401, which optimizers import: here once for all forked ranks

PROGRAMS = pathlib.Path(__file__).parent / "programs"
sys.path += [str(PROGRAMS), str(ranks.SOURCE / "tests/integration")]
import pictures  # noqa: E402
from harness import ANSWER_S, LOCKSTEP, LockstepTest  # noqa: E402

F = torch.nn.functional
SEED, BATCH, EPOCHS, STEPS = 17, 8, 4, 24
# Entries of checkpoints that depend on the number of ranks, or on who makes the updates.
FREE = {"_lockstep/torch/random", "_lockstep/sync/packed", "_CHECKPOINTABLE_OBJECT_GRAPH"}
SAVE_EVERY, KILLED_AT, TOLERANCE = 7, 17, 1e-6
CONFIG = """version: 1.0.0
run: {{name: pictures, seed: {seed}}}
model: {{type: python, path: {programs}/pictures.py, name: Net, args: {args}}}
data:
  train: {{type: python, path: {programs}/pictures.py, name: Pictures}}
  eval: {{type: python, path: {programs}/pictures.py, name: Pictures}}
  global_batch_size: {batch}
optimizer: {optimizer}
recipe: {recipe}
checkpoint: {{save_checkpoints_steps: {save_every}, keep_checkpoint_max: -1}}
"""
PRUNING = """
  - !GradualKSModifier
    params: __ALL_PRUNABLE__
    init_sparsity: 0.05
    final_sparsity: 0.85
    start_epoch: 0.5
    end_epoch: 4
    update_frequency: 0.5
"""
FREEZING = """
  - !LearningRateFunctionModifier {start_epoch: 0, end_epoch: 1, lr_func: linear, init_lr: 0.001, final_lr: 0.01}
  - !LearningRateFunctionModifier {start_epoch: 1, end_epoch: 4, lr_func: cosine, init_lr: 0.01, final_lr: 0.001}
  - !TrainableParamsModifier {params: ['re:conv.*'], trainable: false, start_epoch: 0.5, end_epoch: 2.5}
  - !TrainableParamsModifier {params: ['classifier.bias'], trainable: false, start_epoch: 2}
"""
PATTERNS = """
  - !ConstantKSModifier {params: [hidden]}
  - !GradualKSModifier
    params: [classifier]
    init_sparsity: 0.1
    final_sparsity: 0.5
    start_step: 3
    end_step: 20
    update_frequency_steps: 4
    mask_type: '2:4'
  - !GradualKSModifier
    params: [conv1]
    init_sparsity: 0.2
    final_sparsity: 0.6
    start_epoch: 1
    end_epoch: 3
    update_frequency: 0.25
    inter_func: linear
    mask_type: block4
"""
QUANTIZING = """
  - !QuantizationModifier {start_epoch: 0.5, freeze_bn_stats_epoch: 1, disable_quantization_observer_epoch: 3}
"""
SEVERAL = """
  - !SetLearningRateModifier {start_epoch: 0, learning_rate: 0.05}
  - !LearningRateModifier {start_epoch: 1, end_epoch: 4, lr_class: StepLR, lr_kwargs: {gamma: 0.7, step: 0.5}, init_lr: 0.04}
  - !SetWeightDecayModifier {start_epoch: 0.75, weight_decay: 0.01}
  - !GlobalMagnitudePruningModifier
    params: ['re:conv.*']
    init_sparsity: 0.1
    final_sparsity: 0.7
    start_epoch: 0.5
    end_epoch: 2
    update_frequency: 0.25
    momentum_buffer_reset: true
  - !GradualKSModifier
    params: [hidden, classifier]
    init_sparsity: 0.3
    final_sparsity: 0.9
    start_epoch: 1
    end_epoch: 4
    update_frequency: 0.7
    inter_func: inverse_cubic
    leave_enabled: true
  - !TrainableParamsModifier {params: [hidden.bias], trainable: false, start_epoch: 1.5, end_epoch: 3}
  - !SetParamModifier {params: [classifier.bias], val: 0.0, start_epoch: 2}
"""


@dataclasses.dataclass
class Recipe:
    """modifiers: text. sparsity: at the end, at least. arguments: of Net. adam, nesterov: the optimizer, else SGD with momentum. has_groups: the
    loop's optimizer has the parameter groups of recipes, so it makes the updates itself. sets: more keys of the worker."""
    modifiers: str
    sparsity: float = 0.0
    arguments: dict = dataclasses.field(default_factory=dict)
    adam: bool = False
    nesterov: bool = False
    has_groups: bool = False
    engine_update: object = None
    sets: tuple = ()

    def workers_optimizer(self):
        if self.adam:
            return "{type: adamw, learning_rate: 0.01}"
        return f"{{type: momentum, learning_rate: 0.05, nesterov: {self.nesterov}}}"

    def loops_optimizer(self, network):
        if self.adam:
            return torch.optim.AdamW(network.parameters(), lr=0.01, weight_decay=0)
        named = list(network.named_parameters())
        groups = [{"params": [one for name, one in named if name.endswith("weight") is is_weight]} for is_weight in (True, False)]
        return torch.optim.SGD(groups if self.has_groups else network.parameters(), lr=0.05, momentum=0.9, nesterov=self.nesterov)


RECIPES = {
    "pruning": Recipe(PRUNING, 0.84, engine_update="shared"),
    "freezing": Recipe(FREEZING, adam=True),
    "patterns": Recipe(PATTERNS, 0.4, {"zeros": 0.4}, nesterov=True, engine_update="shards"),
    "quantizing": Recipe(QUANTIZING, arguments={"has_norm": True}, sets=("train.batch_norm=broadcast",)),
    "several": Recipe(SEVERAL, 0.8, has_groups=True, sets=("run.deterministic=elastic",))}


@dataclasses.dataclass
class Trained:
    """rows: (step, loss, rate, sparsity) of each update. evaluations: losses after each epoch. sparsity: at the end."""
    rows: list
    evaluations: list
    sparsity: float


def evaluate(model, data):
    """Mean loss over all samples."""
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(data.inputs), data.labels).item()
    model.train()
    return loss


def train(case):
    """Trains on each rank and returns Trained."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    recipe = RECIPES[case["name"]]
    network, data = pictures.Net(**recipe.arguments), pictures.Pictures()
    optimizer = recipe.loops_optimizer(network)
    sampler = lockstep.DistributedSampler(data, BATCH, seed=SEED)
    loader = torch.utils.data.DataLoader(data, batch_size=sampler.batch_size, sampler=sampler)
    model = lockstep.DataParallel(network, optimizer, recipe=case["recipe"], sampler=sampler, timeout=20,
                                  engine_update=recipe.engine_update)
    found = lockstep.restore(model, case["restore"]) if "restore" in case else None
    rows, evaluations = [], []
    for epoch in range(found.epoch if found else 0, EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total = torch.tensor([loss.item() * len(targets), len(targets)], dtype=torch.float64)
            dist.all_reduce(total)
            rows.append((model.step, (total[0] / total[1]).item(), optimizer.param_groups[0]["lr"], model.sparsity))
            if model.step % SAVE_EVERY == 0:
                lockstep.save(model, case["folder"], keep=-1)
            if model.step == case.get("killed_at") and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        if epoch + 1 == EPOCHS:
            model.finish()
        evaluations.append(evaluate(model, data))
    lockstep.save(model, case["folder"], keep=-1, wait=True)
    return Trained(rows, evaluations, model.sparsity)


class WorkerOracle(LockstepTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.loops = {}

    def write_recipe(self, name):
        path = self.folder / f"{name}.yaml"
        path.write_text(f"version: 1.1.0\nmodifiers:\n  - !EpochRangeModifier {{start_epoch: 0, end_epoch: {EPOCHS}}}{RECIPES[name].modifiers}")
        return str(path)

    def worker(self, name):
        """Arguments of self.train() and self.start_faulty()."""
        recipe, path = RECIPES[name], self.folder / f"run_{name}.yaml"
        path.write_text(CONFIG.format(seed=SEED, programs=PROGRAMS, args=json.dumps(recipe.arguments), batch=BATCH, save_every=SAVE_EVERY,
                                      optimizer=recipe.workers_optimizer(), recipe=self.write_recipe(name)))
        return {"config": path, "sets": recipe.sets}

    def loop(self, name, num_ranks, **case):
        """What train() returns on rank 0. All ranks have the same rows."""
        results = ranks.values(num_ranks, train, {"name": name, "recipe": self.write_recipe(name), **case}, backend="gloo")
        for result in results:
            self.assertEqual(result.rows, results[0].rows)
        return results[0]

    def unbroken_loop(self, name):
        """Folder and result of the loop on 2 ranks."""
        if name not in self.loops:
            folder = self.shared_folder / f"loop_{name}"
            self.loops[name] = (folder, self.loop(name, 2, folder=str(folder)))
        return self.loops[name]

    def assert_close(self, ours, theirs, delta=TOLERANCE):
        """Compares rows of numbers."""
        for one, other in zip(ours, theirs, strict=True):
            for a, b in zip(one, other, strict=True):
                self.assertAlmostEqual(a, b, delta=delta)

    def differences(self, ours, theirs):
        """{key: what `lockstep ckpt diff` says of it} of two checkpoints, without equal tensors."""
        done = subprocess.run([LOCKSTEP, "ckpt", "diff", ours, theirs, "--json"], capture_output=True, text=True, timeout=ANSWER_S)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return {entry["key"]: entry for entry in json.loads(done.stdout)["tensors"] if entry["verdict"] != "same"}

    def assert_close_checkpoints(self, ours, theirs):
        """Masks have equal bits, weights and ranges of inputs are close. Of the rest, what both have is close."""
        for key, entry in self.differences(ours, theirs).items():
            if key in FREE:
                continue
            self.assertFalse(key.startswith(("_lockstep/masks/", "_lockstep/step", "_lockstep/timeline")), entry)
            if entry["verdict"] == "differs" or key.startswith(("_lockstep/quantization/", "model/")):
                self.assertIsNotNone(entry["max_difference"], entry)
                self.assertLessEqual(entry["max_difference"], TOLERANCE, entry)

    def test_losses_rates_and_masks_are_those_of_the_worker(self):
        for name, recipe in RECIPES.items():
            with self.subTest(name):
                run = self.shared(name, **self.worker(name))
                folder, loop = self.unbroken_loop(name)
                self.assert_close(loop.rows, [[step[key] for key in ("step", "loss", "learning_rate", "sparsity")] for step in run.steps()])
                self.assertEqual(loop.sparsity, run.summary()["sparsity"])
                self.assertGreaterEqual(loop.sparsity, recipe.sparsity)
                with open(run.folder / "train/evals.csv") as file:
                    evaluations = [float(row["value"]) for row in csv.DictReader(file) if row["name"] == "loss"]
                self.assert_close([loop.evaluations], [evaluations])
                for step in (*range(SAVE_EVERY, STEPS, SAVE_EVERY), STEPS):
                    with self.subTest(step=step):
                        self.assert_close_checkpoints(folder / f"model.ckpt-{step}", run.folder / f"checkpoints/model.ckpt-{step}")

    def kill_loop(self, name):
        """The folder of its checkpoints: rank 1 is killed between two saves, while the earlier one may still be written."""
        folder = str(self.folder / f"killed_{name}")
        case = {"name": name, "recipe": self.write_recipe(name), "folder": folder, "killed_at": KILLED_AT}
        other, killed = ranks.run(2, train, case, backend="gloo")
        self.assertEqual(killed.code, -signal.SIGKILL)
        self.assertNotEqual(other.code, 0)
        return folder

    def test_a_killed_loop_resumes(self):
        """With equal bits on 2 ranks, within rounding on 1 and 4."""
        for name in RECIPES:
            whole_folder, whole = self.unbroken_loop(name)
            killed_folder = self.kill_loop(name)
            for num_ranks in (2, 1, 4):
                with self.subTest(name, ranks=num_ranks):
                    folder = self.folder / f"resumed_{name}_{num_ranks}"
                    resumed = self.loop(name, num_ranks, restore=killed_folder, folder=str(folder))
                    first = resumed.rows[0][0]
                    self.assertIn(first, (SAVE_EVERY + 1, 2 * SAVE_EVERY + 1))
                    expected = Trained(whole.rows[first - 1:], whole.evaluations[-len(resumed.evaluations):], whole.sparsity)
                    ours, theirs = (at / f"model.ckpt-{STEPS}" for at in (folder, whole_folder))
                    if num_ranks == 2:
                        self.assertEqual(resumed, expected)
                        self.assertEqual(self.differences(ours, theirs), {})
                    else:
                        self.assert_close(resumed.rows, expected.rows)
                        self.assert_close([resumed.evaluations], [expected.evaluations])
                        self.assert_close_checkpoints(ours, theirs)

    def test_a_killed_elastic_worker_resumes_on_1_and_4_ranks_to_the_same_bits(self):
        worker = self.worker("several")
        whole = self.shared("several", **worker)
        killed = self.start_faulty("kill", rank=1, step=KILLED_AT, run="killed", **worker).wait()
        self.assertIn(killed.code, (137, 69), killed.log)
        for num_ranks in (1, 4):
            with self.subTest(ranks=num_ranks):
                shutil.copytree(killed.folder, self.folder / f"resumed_{num_ranks}", ignore=shutil.ignore_patterns("*.sock"))
                resumed = self.train(num_ranks, run=f"resumed_{num_ranks}", **worker)
                self.assertIn(resumed.summary()["resumed_from_step"], (SAVE_EVERY, SAVE_EVERY * 2))
                self.assertEqual(resumed.steps(), whole.steps())
                self.assertLessEqual(self.differences(*(run.folder / "checkpoints" for run in (resumed, whole))).keys(), {"_lockstep/settings"})


if __name__ == "__main__":
    unittest.main()
