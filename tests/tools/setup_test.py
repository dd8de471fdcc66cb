"""tools/setup fetches exactly the wheels that are not there whole, so that an interrupted run repairs itself."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SLIM = ("torch-2.11.0", "nvidia_cuda_cupti-13.0.85", "nvidia_cuda_runtime-13.0.96", "typing_extensions-4.15.0")


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@unittest.skipIf(os.path.exists("/dev/nvidia0"), "with a GPU another set is fetched")
class Setup(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-setup-"))
        self.addCleanup(shutil.rmtree, self.root)
        for path in ("tools/setup", "cmake/python_torch.py"):
            (self.root / path).parent.mkdir()
            shutil.copy(SOURCE / path, self.root / path)
        self.packages = self.root / ".venv/lib/python3.11/site-packages"
        write_program(self.root / ".venv/bin/pip", f'echo "$@" >>{self.root}/pip.log')
        write_program(self.root / "bin/dpkg-query", "printf installed")
        write_program(self.root / "bin/python3", "exit 1")  # a python3 without torch

    def add_wheel(self, name, whole=True):
        folder = self.packages / f"{name}.dist-info"
        folder.mkdir(parents=True)
        for file in ("METADATA", "RECORD") if whole else ("METADATA",):
            (folder / file).write_text("")

    def fetched(self, **environment):
        done = subprocess.run([self.root / "tools/setup"], capture_output=True, text=True, env={
            "PATH": f"{self.root}/bin:/usr/bin:/bin", "LOCKSTEP_CUDA": "off", **environment})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        log = self.root / "pip.log"
        return [word for word in log.read_text().split() if "==" in word] if log.exists() else []

    def test_the_whole_set_is_fetched_into_an_empty_folder(self):
        self.assertEqual(self.fetched(), ["torch==2.11.0", "nvidia-cuda-cupti==13.0.85", "nvidia-cuda-runtime==13.0.96", "typing_extensions==4.15.0"])

    def test_nothing_is_fetched_twice(self):
        for name in SLIM:
            self.add_wheel(name)
        self.assertEqual(self.fetched(), [])

    def test_what_an_interrupted_pip_left_out_is_fetched(self):
        self.add_wheel("torch-2.11.0")
        self.add_wheel("nvidia_cuda_cupti-13.0.85", whole=False)
        self.assertEqual(self.fetched(), ["nvidia-cuda-cupti==13.0.85", "nvidia-cuda-runtime==13.0.96", "typing_extensions==4.15.0"])
        self.assertFalse((self.packages / "nvidia_cuda_cupti-13.0.85.dist-info").exists())  # pip would pass it over

    def test_another_version_is_replaced(self):
        for name in ("torch-2.10.0", *SLIM[1:]):
            self.add_wheel(name)
        self.assertEqual(self.fetched(), ["torch==2.11.0"])

    def test_libtorch_comes_first(self):
        for path in ("include/ATen/ATen.h", "lib/libtorch_cpu.so"):
            (self.root / "own" / path).parent.mkdir(parents=True)
            (self.root / "own" / path).write_text("")
        self.assertEqual(self.fetched(LIBTORCH=str(self.root / "own")), [])


if __name__ == "__main__":
    unittest.main()
