"""cmake --install, then find_package(Lockstep) in a project of somebody else's: it builds, runs, trains a plug-in, and is told of another
LibTorch."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
SOURCE = FOLDER.parents[1]
BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD"])
TORCH = pathlib.Path(os.environ["LOCKSTEP_TORCH"])


def run(*command, **kwargs):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)
    return done.returncode, done.stdout


class Consumer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.prefix = pathlib.Path(cls.scratch.name) / "prefix"
        code, output = run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        assert code == 0, output
        cls.example = pathlib.Path(cls.scratch.name) / "extend.cpp"  # outside the tree, so that no header is found next to it
        cls.example.write_bytes((SOURCE / "examples/extend/extend.cpp").read_bytes())
        cls.plugin = pathlib.Path(cls.scratch.name) / "estimator_plugin"
        shutil.copytree(SOURCE / "examples/estimator_plugin", cls.plugin)
        cls.callback = pathlib.Path(cls.scratch.name) / "callback_plugin"
        shutil.copytree(SOURCE / "examples/callback_plugin", cls.callback)

    def configure(self, folder, *options, **environment):
        return run("cmake", "-S", FOLDER / "consumer", "-B", folder, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}",
                   f"-DEXTEND_SOURCE={self.example}", f"-DPLUGIN_SOURCE={self.plugin}", f"-DCALLBACK_SOURCE={self.callback}", *options, env={**os.environ, **environment})

    def test_a_project_builds_against_the_installation_and_runs(self):
        folder = pathlib.Path(self.scratch.name) / "build"
        code, output = self.configure(folder, CXXFLAGS="-O0 -DOF_THE_PACKAGER")
        self.assertEqual(code, 0, output)
        code, output = run("cmake", "--build", folder)
        self.assertEqual(code, 0, output)
        for entry in json.loads((folder / "compile_commands.json").read_text()):
            self.assertIn("-DOF_THE_PACKAGER", entry["command"])
            self.assertNotRegex(entry["command"], r"-Werror|-O2|-(I|isystem) ?" + re.escape(str(SOURCE)) + " ")
        code, output = run(folder / "library", cwd=folder)
        self.assertEqual((code, re.sub(r"\d+ modifiers", "N modifiers", output)), (0, "1 rank, sum 3, save 1, N modifiers\n"))
        config = SOURCE / "examples/extend/run.yaml"
        code, output = run(SOURCE / "launch/mpirun.sh", 2, folder / "extend", "--config", config, "--set", f"run.project_dir={folder / 'run'}")
        self.assertEqual(code, 0, output)
        self.assertEqual(json.loads((folder / "run/summary.json").read_text())["steps"], 128)
        shutil.copy(folder / "plugin/libmoons.so", self.plugin)
        shutil.copy(BUILD / "tests/daemon/libtest_plugin.so", self.plugin / "librows.so")
        shutil.copy(folder / "callback/libverdict.so", self.plugin)
        self.train_the_plugin()
        self.infer_with_the_callback()
        self.check_the_page()
        self.refuse_other_plugins_on_a_rank()
        self.tell_what_a_plugin_throws()
        self.embed_the_plugin(folder / "extend")

    def lockstep(self, *arguments, expect=0):
        code, output = run(self.prefix / "bin/lockstep", *arguments, cwd=self.plugin)
        self.assertEqual(code, expect, output)
        return output

    def lockstepd(self, *arguments, expect=0, program=("lockstepd",), ranks=2, config="run.yaml"):
        program = [self.prefix / "bin/lockstepd" if one == "lockstepd" else one for one in program]
        code, output = run(self.prefix / "libexec/lockstep/mpirun.sh", ranks, *program, "--config", config, "--set", "metrics.listen=off",
                           *arguments, cwd=self.plugin)
        self.assertEqual(code, expect, output)
        return output

    def train_the_plugin(self):
        """The plug-in's flags come from the command line, its losses fall, it stops and resumes, and its network is exported."""
        flags = ["--estimator=libmoons.so", "--", "--width", 32]
        self.assertIn("Moons on 2000 training samples", self.lockstep("check", "run.yaml", *flags))
        self.assertIn("40 steps per epoch", self.lockstep("plan", "run.yaml", *flags))
        self.assertIn("[moons] learning rate 0.5", self.lockstepd(*flags))
        first = [float(loss) for loss in re.findall(r"\[moons\] loss (\S+)", self.lockstepd("--set", "train.max_steps=160", "--set",
                                                                                          "run.project_dir=stopped", *flags))]
        self.assertLess(first[-1], 0.25 * first[0])
        self.assertIn("resuming from step 160", self.lockstepd("--set", "run.project_dir=stopped", *flags))
        whole, resumed = (json.loads((self.plugin / name / "summary.json").read_text()) for name in ("runs/moons", "stopped"))
        self.assertEqual(resumed["parameters_sha256"], whole["parameters_sha256"])
        self.assertLess(whole["eval"]["loss"], first[-1])
        self.assertIn("moons_train_loss_bits", (self.plugin / "stopped/logs/rank0.prom").read_text())
        export = ("ckpt", "export", "runs/moons/checkpoints", "--format", "onnx", "-o", "moons.onnx")
        self.assertIn("float32 inputs [batch, 2] -> logits [batch, 1]", self.lockstep(*export))
        moved = self.lockstep(*export, "--set", "estimator.path=elsewhere.so", expect=66)
        self.assertIn("elsewhere.so: no such file", moved)

    def infer_with_the_callback(self):
        """The installed lockstep finds the callback of the plug-in that the run file names; a saver stores what it makes."""
        config = self.callback / "run.yaml"
        self.lockstepd(config=config, ranks=1)
        self.assertIn("359 sample(s)", self.lockstep("infer", "--saved_model", "latest", "--config", config))
        stored = [json.loads(path.read_text()) for path in (self.plugin / "runs/digits/infer").glob("*.json")]
        self.assertEqual(len(stored), 359)
        self.assertEqual({one["classes"] for one in stored}, set(range(-1, 10)))
        for one in stored:
            self.assertEqual(one["classes"] == -1, one["probabilities"] < 0.9)

    def refuse_other_plugins_on_a_rank(self):
        """Each rank in a folder of its own, with a plug-in of other bytes."""
        for rank in (0, 1):
            folder = self.plugin / f"rank{rank}"
            folder.mkdir()
            (folder / "libmoons.so").write_bytes((self.plugin / "libmoons.so").read_bytes() + bytes(rank))
        there = ("sh", "-c", 'cd rank$OMPI_COMM_WORLD_RANK && exec "$@"', "sh", "lockstepd")
        output = self.lockstepd("--estimator=libmoons.so", program=there, config="../run.yaml", expect=76)
        self.assertRegex(output, r"settings differ between ranks:\n +rank 0 has plugin libmoons.so sha256=\w+, rank 1 does not")

    def tell_what_a_plugin_throws(self):
        """Messages of an exception on a rank while it trains: text and plug-in. An exception on one rank at the start ends all with its code."""
        run_file = self.plugin / "throws.yaml"
        run_file.write_text("run: {name: throws}\ntrain: {max_steps: 1}\nmodel: {type: plugin, path: librows.so, name: line, fails: forward}\n"
                            "data: {train: {type: digits}, global_batch_size: 64}\n")
        self.assertRegex(self.lockstepd(config=run_file, expect=70), r"no such place \(it may be a bug of the plug-in librows\.so\)")
        there = ("sh", "-c", '[ $OMPI_COMM_WORLD_RANK = 0 ] || export LOCKSTEP_TEST_PLUGIN_FAILS=error; exec "$@"', "sh", "lockstepd")
        self.assertRegex(self.lockstepd(config=run_file, program=there, expect=65), r"rank 1: .*this data is bad \(thrown by plug-in librows\.so")

    def embed_the_plugin(self, program):
        """A program of one's own that links lockstep::lockstepd opens plug-ins too."""
        self.lockstepd("--estimator=libmoons.so", "--set", "train.max_steps=1", "--set", "run.project_dir=embedded", program=(program,), ranks=1)

    def check_the_page(self):
        """docs/plugins.md: its C++ is in files that were compiled, its run files pass, its commands exist."""
        page = (SOURCE / "docs/plugins.md").read_text()
        compiled = [re.sub(r"\s+", " ", (SOURCE / name).read_text())
                    for name in ("examples/estimator_plugin/moons.cpp", "examples/estimator_plugin/CMakeLists.txt", "tests/daemon/plugins/rows.cpp")]
        quotes = re.findall(r"^```(?:cpp|cmake)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        self.assertGreaterEqual(len(quotes), 3)
        for quote in quotes:
            for part in quote.split("...\n"):
                part = re.sub(r"\s+", " ", part).strip()
                self.assertTrue(any(part in text for text in compiled), part)
        snippets = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        self.assertGreaterEqual(len(snippets), 2)
        for snippet in snippets:
            (self.plugin / "snippet.yaml").write_text("run: {name: snippet}\ntrain: {max_steps: 1}\n" + snippet)
            self.lockstep("check", "snippet.yaml")

    def test_installed_programs_run(self):
        for program in ("lockstepd", "lockstep"):
            code, output = run(self.prefix / "bin" / program, "--version", cwd="/")
            self.assertEqual(code, 0, output)
            self.assertIn("0.1.0", output)

    def test_another_libtorch_is_refused_in_one_line(self):
        """The version is read from a header, the libraries are not opened."""
        other = pathlib.Path(self.scratch.name) / "torch"
        for name in ("include/ATen/ATen.h", "lib/libtorch_cpu.so", "lib/libc10.so"):
            (other / name).parent.mkdir(parents=True, exist_ok=True)
            (other / name).touch()
        header = other / "include/torch/headeronly/version.h"
        header.parent.mkdir(parents=True)
        header.write_text("#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 10\n#define TORCH_VERSION_PATCH 1\n")
        code, output = self.configure(pathlib.Path(self.scratch.name) / "refused", LIBTORCH=str(other))
        self.assertNotEqual(code, 0)
        told, = [line.strip() for line in output.splitlines() if "2.10.1" in line]
        self.assertIn("Lockstep was built with LibTorch 2.11", told)
        code, output = run("cmake", "-S", SOURCE, "-B", pathlib.Path(self.scratch.name) / "own", "-G", "Ninja",
                           env={**os.environ, "LIBTORCH": str(other)})
        self.assertNotEqual(code, 0)
        self.assertRegex(" ".join(output.split()), r"Lockstep is for LibTorch 2\.11: \S+ is 2\.10\.1")

    def test_another_cuda_is_refused_in_one_line(self):
        root = pathlib.Path(self.scratch.name) / "cuda" / "runtime"
        for name in ("include/crt/host_defines.h", "include/nccl.h", "lib/libcudart.so", "lib/libnccl.so", "bin/nvcc", "nvvm/bin/cicc"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        (root / "include/cuda_runtime_api.h").write_text("#define CUDART_VERSION  12080\n")
        code, output = run("cmake", "-S", SOURCE, "-B", pathlib.Path(self.scratch.name) / "other_cuda", "-G", "Ninja", "-DLOCKSTEP_TESTS=OFF",
                           "-DLOCKSTEP_CUDA=on", f"-DLOCKSTEP_CUDA_WHEELS={root.parent}", "-DLOCKSTEP_CUDA_TOOLKIT=/nowhere")
        self.assertNotEqual(code, 0)
        self.assertRegex(" ".join(output.split()), r"not found: CUDA \d+, which LibTorch was built with \(\S+ is CUDA 12\)")


if __name__ == "__main__":
    sys.exit(unittest.main())
