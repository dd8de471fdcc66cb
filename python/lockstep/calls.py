"""Operators of the library: calls from Python, their errors, and the exit codes of a loop."""
import contextlib
import functools
import os
import sys

import torch

from .programs import Error


@functools.cache
def operator(name):
    """Looked up once: an access of torch.ops costs more than some of the calls."""
    return getattr(torch.ops.lockstep, name).default


def error_in(fault):
    """The error of a loop that PyTorch passes on as a RuntimeError with the C++ stack. None for other errors."""
    text, code = operator("loop_error")() if hasattr(torch.ops.lockstep, "loop_error") else ("", 0)
    return Error(text, code) if text and text in str(fault) else None


def call(name, *arguments):
    """Calls an operator; its errors become lockstep.Error."""
    try:
        return operator(name)(*arguments)
    except RuntimeError as fault:
        raise error_in(fault) or fault from None


@contextlib.contextmanager
def exit_codes():
    """Ends the process with the exit code of Lockstep's error and one line instead of a traceback: `with lockstep.exit_codes(): main()`"""
    try:
        yield
    except RuntimeError as fault:
        error = fault if isinstance(fault, Error) else error_in(fault)  # within backward(), PyTorch passes on the text alone
        if error is None:
            raise
        print(error, file=sys.stderr, flush=True)
        os._exit(error.exit_code)  # without the ends of torch, which may wait for ranks that are gone
