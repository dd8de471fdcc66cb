"""What a test counts, told in one line each when its program ends: "20 of 20 kills survived"."""
import atexit
import collections

_begun, _passed = collections.Counter(), collections.Counter()


def counted(what, items):
    """Each of the items; one has passed once the loop's body has ended for it."""
    for item in items:
        _begun[what] += 1
        yield item
        _passed[what] += 1


def count(what, number=1):
    """So many that have passed, where no loop shows it."""
    _begun[what] += number
    _passed[what] += number


def lines():
    return [f"{_passed[what]} of {number} {what}" for what, number in _begun.items()]


@atexit.register
def _tell():
    if _begun:
        print("\n" + "\n".join(lines()), flush=True)
