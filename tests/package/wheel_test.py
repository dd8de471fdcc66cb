"""The wheel in a virtual environment that has the linked torch: programs, a new project, its weights in plain PyTorch, the backend of
torch.distributed, mistakes.

The environment's torch is that of the build, by links; nothing of the source tree or of the build is seen there.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/support"))
from skips import missing_tool, require_tool  # noqa: E402

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD"])
TORCH = pathlib.Path(os.environ["LOCKSTEP_TORCH"])
PYTHON = TORCH.parents[3] / "bin/python3"
OF_TORCH = ("torch", "torchgen", "functorch", "nvidia", "typing_extensions.py")
SNIPPET = re.search(r"^```python\n(import lockstep\n.*?)^```", (SOURCE / "docs/python.md").read_text(), re.MULTILINE | re.DOTALL)[1]
# Run in a folder that holds the project and its run; `torch` comes so because that of `make run` stands without CUDA's libraries.
SCRIPT = f"""
import json, pathlib, sys
import lockstep
assert "torch" not in sys.modules
sys.path.append(str(pathlib.Path(lockstep.__file__).parent / "lib/lockstep"))
from lockstep_glue.torch_import import torch
assert "lockstep" in torch.distributed.Backend.backend_list  # by the wheel's entry point
torch.distributed.init_process_group("lockstep", store=torch.distributed.HashStore(), rank=0, world_size=1)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
sys.path.insert(0, "my_project")
{SNIPPET}
import data
from net import Net

def told(*arguments, **options):
    try:
        lockstep.load_state_dict(*arguments, **options)
    except lockstep.Error as fault:
        return [fault.exit_code, str(fault)]

class Tied(Net):
    def __init__(self):
        super().__init__()
        self.again = self.first

points = data.Spirals(samples=1000, seed=1, noise=0)
inputs, labels = zip(*(points[i] for i in range(len(points))))
net.eval()
with torch.no_grad():
    outputs = net(torch.stack([torch.as_tensor(x) for x in inputs]))
latest = lockstep.latest_checkpoint("runs/spirals")
state = lockstep.load_state_dict(latest)
Tied().load_state_dict(lockstep.load_state_dict("runs/spirals", network=Tied()))
earlier = lockstep.load_state_dict("runs/spirals/checkpoints", step=120)
values = pathlib.Path(latest + ".data-00000-of-00002")
damaged = bytearray(values.read_bytes())
for i in range(0, len(damaged), 1024):  # a bit of each weight of some size
    damaged[i] ^= 1
values.write_bytes(damaged)
print(json.dumps({{
    "version": lockstep.__version__,
    "loss": torch.nn.functional.cross_entropy(outputs, torch.tensor(labels)).item(),
    "zeros": sum(int((state[name] == 0).sum()) for name in ("first.weight", "second.weight")),
    "count": int(state["norm.num_batches_tracked"]), "earlier": int(earlier["norm.num_batches_tracked"]),
    "latest": latest, "damaged": told("runs/spirals"), "step": told("runs/spirals", step=7), "folder": told("nowhere")}}))
"""


def run(*command, path, cwd, **more):
    """Runs in a shell with the environment first in PATH, and without anything else of this machine."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=cwd, timeout=100,
                          env={"PATH": f"{path}:/usr/bin:/bin", "HOME": str(cwd), **quick_start(), **more})
    return done.returncode, done.stdout, done.stderr


def quick_start():
    return {name: value for name, value in os.environ.items() if name in ("OMPI_MCA_pml", "GLIBC_TUNABLES", "TMPDIR")}


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        require_tool("patchelf")
        if not (TORCH / "version.py").is_file() or not PYTHON.exists():
            missing_tool(f"no Python beside {TORCH}; tools/setup installs it")
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-wheel-"))
        cls.addClassCleanup(shutil.rmtree, cls.root)
        made = subprocess.run([SOURCE / "tools/make_wheel", BUILD, cls.root], capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        cls.wheel = pathlib.Path(made.stdout.splitlines()[-1])
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", cls.root / "venv"], check=True)
        cls.packages, = cls.root.glob("venv/lib/python3*/site-packages")
        for name in OF_TORCH:
            (cls.packages / name).symlink_to(TORCH.parent / name)
        subprocess.run([PYTHON, "-m", "pip", "--disable-pip-version-check", "--python", cls.root / "venv", "install", "-q", "--no-index",
                        "--no-deps", cls.wheel], check=True)

    def run_there(self, *command, **more):
        return run(*command, path=self.root / "venv/bin", cwd=self.root, **more)

    def test_a_new_project_trains_and_pytorch_has_its_weights(self):
        _, told, _ = self.run_there("lockstep", "new", "project", "my_project", "--python")
        start, = re.findall(r"train it: +(.*)$", told, re.MULTILINE)
        self.assertEqual(start, "mpirun.sh 2 lockstepd --config my_project/run.yaml")
        code, output, log = self.run_there(*start.split(), "--set", "train.max_steps=240",
                                           "--set", "checkpoint.save_checkpoints_steps=120", "--set", "metrics.listen='127.0.0.1:0'",
                                           "--set", "data.eval.args={samples: 1000, seed: 1, noise: 0}")
        self.assertEqual(code, 0, output + log)
        summary = json.loads((self.root / "runs/spirals/summary.json").read_text())
        code, output, log = self.run_there("python3", "-c", SCRIPT)
        self.assertEqual(code, 0, output + log)
        seen = json.loads(output)
        self.assertAlmostEqual(seen["loss"], summary["eval"]["loss"], delta=1e-6)
        self.assertGreater(seen["zeros"], 0)
        self.assertEqual(seen["zeros"], round(summary["sparsity"] * summary["num_prunable_weights"]))
        self.assertEqual((seen["count"], seen["earlier"]), (240, 120))
        self.assertEqual((seen["latest"], seen["version"]), ("runs/spirals/checkpoints/model.ckpt-240", "0.1.0"))
        self.assertEqual([seen[key][0] for key in ("damaged", "step", "folder")], [65, 66, 66])
        self.assertRegex(seen["damaged"][1], r"model.ckpt-240.data-00000-of-00002: tensor '\S+' at byte \d+: wrong crc32c")
        self.assertIn("runs/spirals/checkpoints: no checkpoint of step 7; steps saved: 120, 240", seen["step"][1])

    def test_programs_are_whole_and_torch_is_all_they_ask_for(self):
        with zipfile.ZipFile(self.wheel) as archive:
            metadata, = [archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")]
        version = re.search(r"'(\d[\d.]*)", (TORCH / "version.py").read_text())
        self.assertEqual(re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE), [f"torch (=={version[1]})"])
        self.assertIn("Requires-External: libmpi.so.", metadata)
        files = [*self.packages.glob("lockstep/bin/*"), *self.packages.glob("lockstep/lib/**/*.so")]
        self.assertGreaterEqual(len(files), 3)
        for file in files:
            _, libraries, _ = run("ldd", file, path="/usr/bin", cwd="/")
            self.assertNotIn("not found", libraries.replace("libnccl.so.2 => not found", ""), file)  # there only with torch's CUDA part
            for path in re.findall(r"=> (/\S+)", libraries):
                self.assertTrue(path.startswith((str(self.packages), "/lib", "/usr")), f"{file} takes {path}")
                if re.search(r"yaml|fmt|protobuf|torch|jpeg", path):
                    self.assertIn(str(self.packages), path)
        for program in ("lockstepd", "lockstep"):
            self.assertIn("0.1.0", self.run_there(program, "--version")[1])

    def test_who_builds_the_daemon_alone_has_the_python_module(self):
        """The build is that of `make run`, after which a new project shall train."""
        inputs = subprocess.run(["ninja", "-C", BUILD, "-t", "inputs", "bin/lockstepd"], capture_output=True, text=True).stdout
        self.assertIn("lib/lockstep/liblockstep_python.so\n", inputs)

    def test_another_torch_is_refused_and_one_elsewhere_is_found(self):
        other = self.root / "other"
        (other / "torch").mkdir(parents=True)
        (other / "torch/__init__.py").touch()
        (other / "torch/version.py").write_text("__version__ = '2.10.0+cpu'\n")
        code, _, said = self.run_there("lockstepd", "--version", PYTHONPATH=str(other))
        self.assertEqual(code, 78)
        self.assertRegex(said, r"^\[python\] \S+ has torch 2\.10\.0\+cpu, this lockstep is linked to 2\.11\.0: install torch==2\.11\.0 there\n$")
        alone = self.root / "alone"
        shutil.copytree(self.packages / "lockstep", alone / "lockstep")
        ask = "from lockstep.programs import call_tool; print(call_tool('--version'))"
        code, _, said = run("/usr/bin/python3", "-c", ask, path="/usr/bin", cwd="/", PYTHONPATH=str(alone))
        self.assertIn("has no torch: install torch==2.11.0 there", said)
        code, output, said = run(PYTHON, "-c", ask, path="/usr/bin", cwd="/", PYTHONPATH=str(alone))
        self.assertIn("0.1.0", output, said)


if __name__ == "__main__":
    sys.exit(unittest.main())
