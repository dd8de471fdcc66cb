"""Which rounds of a case make test runs, and which only make soak (tools/soak --parts tests), where LOCKSTEP_SOAK is 1.

A round that is left to make soak has another one of the same mechanism beside it.
"""
import os

IS_SOAK = os.environ.get("LOCKSTEP_SOAK") == "1"


def rounds(quick, more):
    """The rounds of make test, and in make soak `more` behind them."""
    return [*quick, *more] if IS_SOAK else [*quick]


def only_in_soak(covered_by):
    """Decorator of a test method that make test leaves out, as `covered_by` shows the same there."""
    assert covered_by
    return lambda test: test if IS_SOAK else None  # unittest passes over what cannot be called
