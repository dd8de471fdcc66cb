"""Rounds of a case that make test runs, and those that only make soak runs (tools/soak --parts tests), with LOCKSTEP_SOAK=1.

A round that is left to make soak has another one of the same mechanism beside it.
"""
import os

IS_SOAK = os.environ.get("LOCKSTEP_SOAK") == "1"


def rounds(quick, more):
    """The rounds of make test, and in make soak also `more`."""
    return [*quick, *more] if IS_SOAK else [*quick]


def only_in_soak(covered_by):
    """Decorator of a test method that make test leaves out, as `covered_by` shows the same there."""
    assert covered_by
    return lambda test: test if IS_SOAK else None  # unittest passes over what cannot be called
