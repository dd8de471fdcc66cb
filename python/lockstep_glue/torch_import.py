"""`from .torch_import import torch`: PyTorch, also of a wheel that stands without the CUDA libraries it names."""
import ctypes
import importlib.util
import os
import pathlib
import sys
import warnings

STAND_INS = pathlib.Path(__file__).resolve().parents[1] / "stand_ins"


def missing_libraries():
    """Of a wheel whose CUDA libraries were left out (tools/setup): all of them. Of any other: none."""
    wheels = pathlib.Path(importlib.util.find_spec("torch").origin).parents[1] / "nvidia"
    if not wheels.is_dir() or any(wheels.glob("*/lib/libcublas.so.*")):
        return []
    return [library for library in sorted(STAND_INS.glob("*.so.*")) if not any(wheels.glob("*/lib/" + library.name))]


def import_torch():
    """PyPI's torch wants CUDA libraries of gigabytes, of which a run on CPUs calls nothing. Without them, empty libraries of their names are
    opened, and calls are bound late."""
    flags = sys.getdlopenflags()
    for library in missing_libraries():
        sys.setdlopenflags(flags & ~os.RTLD_NOW | os.RTLD_LAZY)
        try:
            ctypes.CDLL(library.name)  # the system's own
        except OSError:
            ctypes.CDLL(str(library))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # which nobody needs to have
            import torch
    finally:
        sys.setdlopenflags(flags)
    return torch


torch = import_torch()
