"""`from cpu_torch import torch`: PyTorch itself, out of the wheel whose LibTorch Lockstep links, on the CPU.

The wheel's Python part wants CUDA libraries of 3 GB to be there, of which a CPU run calls nothing. Where one is missing, an
empty library of its name is compiled and loaded in its place; calls are bound late, so nothing misses the functions.
LOCKSTEP_TORCH names the wheel's folder `torch`.
"""
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile

TORCH = pathlib.Path(os.environ["LOCKSTEP_TORCH"])
VERSIONS = {"libnvshmem_host.so.3": "NVSHMEM"}  # symbol version that is asked for; of the others it is the library's name
LIBRARIES = ("libcublasLt.so.13", "libcublas.so.13", "libcudnn.so.9", "libcufft.so.12", "libcufile.so.0", "libcurand.so.10",
             "libcusparse.so.12", "libcusparseLt.so.0", "libnccl.so.2", "libnvshmem_host.so.3")


def load_empty(folder, library):
    version = folder / "version"
    version.write_text(f"{VERSIONS.get(library, library)} {{ }};\n")
    path = folder / library
    subprocess.run(["cc", "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", path, f"-Wl,-soname,{library}",
                    f"-Wl,--version-script={version}"], check=True)
    ctypes.CDLL(str(path))


def import_torch():
    with tempfile.TemporaryDirectory(prefix="lockstep-torch-") as folder:
        for library in LIBRARIES:
            if not any(TORCH.parent.glob(f"nvidia/*/lib/{library}")):
                load_empty(pathlib.Path(folder), library)
        sys.path.append(str(TORCH.parent))  # behind the test's own packages
        flags = sys.getdlopenflags()
        sys.setdlopenflags(flags & ~os.RTLD_NOW | os.RTLD_LAZY)
        try:
            import torch
        finally:
            sys.setdlopenflags(flags)
    torch.set_num_threads(1)
    return torch


torch = import_torch()
