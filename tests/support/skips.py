"""Reasons why a test does not run: the environment forbids a requirement, or a tool is missing.

A forbidden thing (the kernel refuses a mount, a network namespace) is a skip. A missing tool or oracle (PyTorch, TensorFlow,
promtool, ip, strace) is a skip on a developer's machine, and a failure where LOCKSTEP_REQUIRE_ORACLES is ON, as in CI.

`unittest` ends with 0 after skips, so a CTest entry of such a file needs the property
SKIP_RETURN_CODE 77 (tests/CMakeLists.txt): CTest then lists it as skipped, not as passed.
"""
import os
import shutil
import unittest


def oracles_are_required():
    return os.environ.get("LOCKSTEP_REQUIRE_ORACLES", "").upper() == "ON"


def skip(reason):
    """Ends the test as skipped: this environment forbids a requirement."""
    raise unittest.SkipTest(reason)


def missing_tool(reason):
    """Ends the test because a tool or an oracle is not installed; `reason` names it and the command that installs it."""
    if oracles_are_required():
        raise AssertionError(f"{reason} (LOCKSTEP_REQUIRE_ORACLES is ON)")
    skip(reason)


def require_tool(name, installed_by="tools/setup test"):
    """The path of a program; missing_tool() if there is none."""
    path = shutil.which(name)
    if path is None:
        missing_tool(f"no program {name}; {installed_by} installs it")
    return path
