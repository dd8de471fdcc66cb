"""Counters of events in a test, printed in one line each ("20 of 20 kills survived") when its program ends."""
import atexit
import collections

_begun, _passed = collections.Counter(), collections.Counter()


def counted(what, items):
    """Each of the items; one has passed once the loop's body has ended for it. There must be one."""
    at = -1
    for at, item in enumerate(items):
        _begun[what] += 1
        yield item
        _passed[what] += 1
    assert at >= 0, f"0 {what}: the case shows nothing"


def count(what, number=1):
    """So many that have passed, where no loop shows it."""
    _begun[what] += number
    _passed[what] += number


def happened(what, number):
    """So many, and at least one: a case that is named after an event fails if that did not come."""
    assert number > 0, f"0 {what}: the case shows nothing"
    count(what, number)


def lines():
    return [f"{_passed[what]} of {number} {what}" for what, number in _begun.items()]


@atexit.register
def _tell():
    if _begun:
        print("\n" + "\n".join(lines()), flush=True)
