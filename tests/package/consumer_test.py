"""cmake --install, then find_package(Lockstep) in a project of somebody else's: it builds, runs, and is told of another LibTorch."""
import json
import os
import pathlib
import re
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
        cls.example = pathlib.Path(cls.scratch.name) / "extend.cpp"  # away from the tree, so that no header is found beside it
        cls.example.write_bytes((SOURCE / "examples/extend/extend.cpp").read_bytes())

    def configure(self, folder, *options, **environment):
        return run("cmake", "-S", FOLDER / "consumer", "-B", folder, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}",
                   f"-DEXTEND_SOURCE={self.example}", *options, env={**os.environ, **environment})

    def test_a_project_builds_against_the_installation_and_runs(self):
        folder = pathlib.Path(self.scratch.name) / "build"
        code, output = self.configure(folder, CXXFLAGS="-O1 -DOF_THE_PACKAGER")
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

    def test_installed_programs_run(self):
        for program in ("lockstepd", "lockstep"):
            code, output = run(self.prefix / "bin" / program, "--version", cwd="/")
            self.assertEqual(code, 0, output)
            self.assertIn("0.1.0", output)

    def test_another_libtorch_is_refused_in_one_line(self):
        """Its version is read from a header, its libraries are not opened."""
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
        for name in ("include/crt/host_defines.h", "include/nccl.h", "lib/libcudart.so", "lib/libnccl.so"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        (root / "include/cuda_runtime_api.h").write_text("#define CUDART_VERSION  12080\n")
        code, output = run("cmake", "-S", SOURCE, "-B", pathlib.Path(self.scratch.name) / "other_cuda", "-G", "Ninja", "-DLOCKSTEP_TESTS=OFF",
                           "-DLOCKSTEP_CUDA=on", f"-DLOCKSTEP_CUDA_WHEELS={root.parent}")
        self.assertNotEqual(code, 0)
        self.assertRegex(" ".join(output.split()), r"not found: CUDA \d+, which LibTorch was built with \(\S+ is CUDA 12\)")


if __name__ == "__main__":
    sys.exit(unittest.main())
