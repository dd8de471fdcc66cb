"""`from .torch_import import torch`: PyTorch, also of a wheel that stands without the CUDA libraries it names."""
import ctypes
import importlib.util
import os
import pathlib
import sys
import warnings

STAND_INS = pathlib.Path(__file__).resolve().parents[1] / "stand_ins"


def missing_libraries(torch_folder):
    """Of a wheel whose CUDA libraries were left out (tools/setup): all of them. Of any other: none."""
    wheels = torch_folder.parent / "nvidia"
    if not wheels.is_dir() or any(wheels.glob("*/lib/libcublas.so.*")):
        return []
    return [library for library in sorted(STAND_INS.glob("*.so.*")) if not any(wheels.glob("*/lib/" + library.name))]


def open_library(stand_in):
    try:
        ctypes.CDLL(stand_in.name)  # the system's own
    except OSError:
        ctypes.CDLL(str(stand_in))


def import_torch():
    """PyPI's torch wants CUDA libraries of gigabytes to be there, of which a run on CPUs calls nothing. Where the wheel
    stands without them, empty libraries of their names take their place, and calls are bound late."""
    missing = missing_libraries(pathlib.Path(importlib.util.find_spec("torch").origin).parent)
    for library in missing:
        open_library(library)
    flags = sys.getdlopenflags()
    if missing:
        sys.setdlopenflags(flags & ~os.RTLD_NOW | os.RTLD_LAZY)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # which nobody needs to have
            import torch
    finally:
        sys.setdlopenflags(flags)
    return torch


torch = import_torch()
