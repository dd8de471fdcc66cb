"""Every feature of training with every kind of network: one network as C++, as TorchScript and as a class in Python.

A cell trains to the weights of its reference, or `lockstep check` and the run refuse it with the same code and name the way out. No cell is a bug (70).
The networks of users hold a causal mask of -inf in a buffer, which must stay as it is whatever the feature does.
"""
import json
import math
import pathlib
import struct
import subprocess
import unittest
from dataclasses import dataclass, field

from harness import ANSWER_S, BUILD, LOCKSTEP, SOURCE
import soak
from serve_harness import ServeTest

FILES = pathlib.Path(__file__).parent / "programs" / "python"
PYTHON = SOURCE / ".venv" / "bin" / "python3"
SAMPLES, STEPS = 200, 24
CONFIG = """version: 1.0.0
run: {{name: features, threads: 1}}
model: {model}
data:
  train: {{type: safetensors, path: {points}, inputs: x, targets: y}}
  eval: {{type: safetensors, path: {points}, inputs: x, targets: y}}
  global_batch_size: 33
train: {{max_steps: {steps}}}
optimizer: {{type: momentum, learning_rate: 0.1}}
eval: {{every_epochs: 0}}
metrics: {{listen: '127.0.0.1:0'}}
summary: {{log_every: 1}}
"""
TOLERANCE = 1e-6
CANNOT_EXPORT = "cannot be exported"


@dataclass
class Feature:
    """Settings of a run with it, in addition to CONFIG."""
    sets: list = field(default_factory=list)
    modifiers: str = ""
    ranks: int = 2
    tolerance: float = TOLERANCE


def modifier(text):
    return f"  - !{text}\n"


FEATURES = {
    "nothing else": Feature(),
    "trainable_scopes": Feature(["train.trainable_scopes=layers/1"]),
    "freezing": Feature(modifiers=modifier("TrainableParamsModifier {params: [layers.0.weight, layers.0.bias], trainable: false, start_epoch: 0.5}")),
    "thawing": Feature(modifiers=modifier("TrainableParamsModifier {params: [layers.0.weight], trainable: false, start_epoch: 0, end_epoch: 1.5}")),
    "freezing, adamw, shard_optimizer": Feature(
        ["optimizer={type: adamw, learning_rate: 0.01}", "sync.shard_optimizer=true"],
        modifier("TrainableParamsModifier {params: [layers.0.weight], trainable: false, start_epoch: 0.5, end_epoch: 2}")),
    "pruning": Feature(modifiers=modifier("GMPruningModifier {params: __ALL_PRUNABLE__, init_sparsity: 0.2, final_sparsity: 0.6, start_epoch: 0.5, "
                                          "end_epoch: 2, update_frequency: 0.5}")),
    "quantization": Feature(modifiers=modifier("QuantizationModifier {start_epoch: 0.5}")),
    "shard_optimizer": Feature(["sync.shard_optimizer=true"]),
    "share_weights": Feature(["sync.share_weights=on"]),
    "local steps": Feature(["sync.sync_replicas=false", "sync.sync_every=3"]),
    "elastic": Feature(["run.deterministic=elastic", "data.global_batch_size=32"]),
    "bf16": Feature(["train.precision=bf16"], tolerance=2e-2),
    "EMA": Feature(["optimizer.ema_decay=0.9"]),
    "clipping": Feature(["optimizer.clip_norm=0.3"]),
    "accumulation": Feature(["train.replicas_to_aggregate=3"]),
    "rank without samples": Feature(["data.global_batch_size=199"]),
    "rank without samples, local steps": Feature(["data.global_batch_size=199", "sync.sync_replicas=false", "sync.sync_every=2"]),
    "share of one sample": Feature(["data.global_batch_size=33"], ranks=2),
    "one rank": Feature(ranks=1),
    "three ranks": Feature(ranks=3),
}
# (feature, form): part of the message that names the way out.
REFUSED = {
    ("quantization", "torchscript"): "quantiz",
    ("share_weights", "torchscript"): "is user code",
    ("share_weights", "python"): "is user code",
}
FORMS = ("cpp", "torchscript", "python")


class UserNetworks(ServeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cells = {}
        cls.write_points()
        cls.archive = cls.shared_folder / "masked.pt"
        done = subprocess.run([PYTHON, FILES / "script.py", BUILD / "lib/lockstep", "save", "MaskedLayers", cls.archive],
                              capture_output=True, text=True, timeout=ANSWER_S)
        assert done.returncode == 0, done.stderr

    @classmethod
    def tearDownClass(cls):
        width = max(map(len, (feature for feature, _ in cls.cells)), default=0)
        print(f"\n{len(cls.cells)} cells:")
        for feature in dict.fromkeys(feature for feature, _ in cls.cells):
            print(f"  {feature:{width}}  " + "  ".join(f"{form}: {cls.cells.get((feature, form), '-')}" for form in FORMS))
        super().tearDownClass()

    @classmethod
    def write_points(cls):
        """Three classes of points, without a random number."""
        rows = [[math.sin(7.1 * i + k * k) for k in range(4)] for i in range(SAMPLES)]
        values = struct.pack(f"<{4 * SAMPLES}f", *(value for row in rows for value in row))
        classes = struct.pack(f"<{SAMPLES}q", *((x > 0) + (y > 0.5) for x, y, *_ in rows))
        header = json.dumps({"x": {"dtype": "F32", "shape": [SAMPLES, 4], "data_offsets": [0, len(values)]},
                             "y": {"dtype": "I64", "shape": [SAMPLES], "data_offsets": [len(values), len(values) + len(classes)]}}).encode()
        cls.points = cls.shared_folder / "points.safetensors"
        cls.points.write_bytes(struct.pack("<Q", len(header)) + header + values + classes)

    def config(self, form, steps=STEPS):
        model = {"cpp": "{type: mlp, layers: [4, 8, 3], activation: tanh}", "torchscript": f"{{type: torchscript, path: {self.archive}}}",
                 "python": f"{{type: python, path: {FILES}/nets.py, name: MaskedLayers}}"}[form]
        path = self.folder / f"{form}{steps}.yaml"
        path.write_text(CONFIG.format(model=model, points=self.points, steps=steps))
        return path

    def warm(self):
        """The same first weights for all forms."""
        start = self.shared("start", 1, config=self.config("cpp", 1), sets=["optimizer.learning_rate=1e-30"])
        return [f"checkpoint.warm_start_ckpt={start.folder / 'checkpoints'}", "checkpoint.checkpoint_exclude_scopes=mask"]

    def sets_of(self, form, feature):
        sets = [*feature.sets, f"run.expect_world_size={feature.ranks}"]
        sets += self.warm() if form != "cpp" else self.warm()[:1]
        if feature.modifiers:
            recipe = self.folder / f"recipe{list(FEATURES.values()).index(feature)}.yaml"  # a job that waits reads its own
            recipe.write_text("version: 1.0.0\nmodifiers:\n" + feature.modifiers)
            sets.append(f"recipe={recipe}")
        return sets

    def run_cell(self, name, form, **kwargs):
        feature = FEATURES[name]
        return self.start(feature.ranks, config=self.config(form), run=kwargs.pop("run", f"{form}-{name}".replace(" ", "_").replace(",", "")),
                          sets=[*self.sets_of(form, feature), *kwargs.pop("sets", [])], **kwargs).wait()

    def weights(self, run, *options):
        """Weights by name; the mask must be unchanged."""
        file = run.folder / "weights.safetensors"
        self.tool("ckpt", "export", run.folder / "checkpoints", *options, "-o", file)
        data = file.read_bytes()
        end = 8 + struct.unpack("<Q", data[:8])[0]
        found = {}
        for name, entry in json.loads(data[8:end]).items():
            if name == "__metadata__" or entry["dtype"] != "F32":  # zero points of a quantized layer
                continue
            first, last = entry["data_offsets"]
            found[name] = struct.unpack(f"<{(last - first) // 4}f", data[end + first:end + last])
        mask = found.pop("mask", None)
        if mask is not None:
            self.assertEqual(mask, (0, -math.inf, -math.inf, 0, 0, -math.inf, 0, 0, 0))
        return found

    def difference(self, run, reference, *options):
        mine, theirs = self.weights(run, *options), self.weights(reference, *options)
        self.assertEqual(sorted(mine), sorted(theirs))
        found = max(abs(a - b) for name in mine for a, b in zip(mine[name], theirs[name], strict=True))
        return max(found, *(abs(a["loss"] - b["loss"]) for a, b in zip(run.steps(), reference.steps(), strict=True)))

    def checked(self, name, form):
        """The code and text of `lockstep check` of the cell."""
        words = [word for one in self.sets_of(form, FEATURES[name]) for word in ("--set", one)]
        done = subprocess.run([LOCKSTEP, "check", self.config(form), *words], capture_output=True, text=True, timeout=ANSWER_S, cwd=SOURCE)
        return done.returncode, done.stdout + done.stderr

    def note(self, name, form, text):
        self.cells[name, form] = text

    def refuse_alike(self, name, form, run):
        code, said = self.checked(name, form)
        self.assertEqual(code, run.code, said + run.log)
        for text in (said, run.log):
            self.assertIn(REFUSED[name, form], text)
        self.note(name, form, f"refused {code}")

    def test_cells_that_train(self):
        for i, (name, feature) in enumerate(FEATURES.items()):
            reference = self.run_cell(name, "cpp")
            self.assertEqual(reference.code, 0, reference.log)
            self.note(name, "cpp", "reference")
            for form in FORMS[1:] if soak.IS_SOAK else [FORMS[1 + i % 2]]:  # make soak has all cells
                with self.subTest(feature=name, form=form):
                    run = self.run_cell(name, form)
                    self.assertNotEqual(run.code, 70, run.log)
                    if run.code != 0:
                        self.assertIn((name, form), REFUSED, run.log)
                        self.refuse_alike(name, form, run)
                        continue
                    self.assertEqual(self.checked(name, form)[0], 0)
                    found = self.difference(run, reference, *(["--ema"] if name == "EMA" else []))
                    self.assertLessEqual(found, feature.tolerance)
                    self.note(name, form, f"equal to {found:.0e}")

    def test_kill_and_resume(self):
        """The run has a parameter that is frozen, then thawed, and pruning at the same time."""
        for form in FORMS:
            for name in ("thawing", "pruning", "trainable_scopes", "rank without samples"):
                with self.subTest(feature=name, form=form):
                    saves = ["checkpoint.save_checkpoints_steps=5", "checkpoint.wait_for=commit"]
                    unbroken = self.run_cell(name, form, run=f"unbroken-{form}-{name}".replace(" ", "_"), sets=saves)
                    self.assertEqual(unbroken.code, 0, unbroken.log)
                    killed = f"killed-{form}-{name}".replace(" ", "_")
                    broken = self.start_faulty("kill", rank=1, step=8, ranks=2, config=self.config(form), run=killed,
                                               sets=[*self.sets_of(form, FEATURES[name]), *saves]).wait()
                    self.assertIn(broken.code, (137, 69), broken.log)
                    resumed = self.run_cell(name, form, run=killed, sets=saves)
                    self.assertEqual(resumed.code, 0, resumed.log)
                    self.assertIn("resuming from step 5 ", resumed.log)
                    self.assertEqual(resumed.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
                    self.note(f"kill and resume, {name}", form, "same bits")

    def test_elastic_runs_have_the_same_bits(self):
        for form in FORMS:
            with self.subTest(form=form):
                found = {ranks: self.train(ranks, config=self.config(form), run=f"elastic-{form}-{ranks}",
                                           sets=[*self.sets_of(form, FEATURES["elastic"]), f"run.expect_world_size={ranks}"]).summary()["parameters_sha256"] for ranks in (1, 4)}
                self.assertEqual(found[1], found[4])
                self.note("elastic, 1 and 4 ranks", form, "same bits")

    def test_eval_infer_and_exports(self):
        for form in FORMS:
            with self.subTest(form=form):
                run = self.run_cell("freezing", form)
                expected = run.summary()["eval"]
                said = self.tool("eval", self.config(form), "--restore", run.folder / "checkpoints", "--set", f"run.project_dir={self.folder}/eval-{form}")
                self.assertIn(f"loss {expected['loss']:.4f}", said)
                self.note("eval", form, f"loss {expected['loss']:.4f}")
                config = self.folder / f"infer-{form}.yaml"
                results = self.folder / f"infer-{form}"
                config.write_text(f"run: {{name: x, threads: 1, device: cpu, project_dir: {self.folder}}}\n"
                                  f"inferer: {{log_dir: {results}, batch_size: 50, callbacks: {{means: {{type: statistics, keys: [logits]}}}}}}\n")
                self.tool("infer", "--checkpoint", run.folder / "checkpoints", "--config", config,
                          "--feed", f"{{type: safetensors, path: {self.points}, inputs: x, targets: y}}")
                self.note("infer", form, "answers")
                outputs = ("safetensors", "torchscript") if form == "python" else ("safetensors", "torchscript", "onnx")  # pt2: python_export_test
                for output in outputs:
                    can = output == "safetensors" or form == "cpp" or (form, output) == ("torchscript", "torchscript")
                    said = self.tool("ckpt", "export", run.folder / "checkpoints", "--format", output, "-o", self.folder / f"{form}.{output}",
                                     expect=0 if can else 64)
                    if not can:
                        self.assertIn("--format pt2" if form == "python" else "--format safetensors", said)  # the way out
                    self.note(f"export {output}", form, "written" if can else "refused 64")

    def test_two_jobs_of_one_server_have_the_bits_of_runs_of_their_own(self):
        cells = [(form, name) for form in FORMS for name in ("freezing", "pruning")]
        jobs = {cell: self.submit(self.config(cell[0]), self.sets_of(cell[0], FEATURES[cell[1]])) for cell in cells}
        server = self.serve("--until-empty", ranks=2)
        for (form, name), job in jobs.items():
            with self.subTest(form=form, feature=name):
                self.wait(job)
                own = self.run_cell(name, form, run=f"own-{form}-{name}")
                self.assertEqual(self.run_of(job).summary()["parameters_sha256"], own.summary()["parameters_sha256"])
                self.note(f"served, {name}", form, "same bits")
        self.ended(server, 0)


if __name__ == "__main__":
    unittest.main()
