"""Prints the folder of the torch 2.11 that this python3 would import, without importing it; exit 1 if there is none.

Both cmake/FindLibTorch.cmake and tools/setup call it, so that both use the same LibTorch.
"""
import importlib.metadata
import importlib.util
import pathlib
import sys


def torch_folder():
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    folder = pathlib.Path(spec.origin).parent
    needed = ("include/ATen/ATen.h", "lib/libtorch_cpu.so")
    return folder if version.startswith("2.11.") and all((folder / path).is_file() for path in needed) else None


found = torch_folder()
if found is None:
    sys.exit(1)
print(found)
