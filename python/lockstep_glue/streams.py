"""Iterable data sets, read by index."""
from .faults import Fault


class Stream:
    """Samples of an iterable by their place in it. Reads forward; for an earlier place, or another epoch, it iterates anew, from that place if the
    object has skip(count), as those of `datasets` have."""

    def __init__(self, items, length, what):
        self.items, self.length, self.what = items, length, what
        self.iterator, self.epoch, self.place = None, 0, 0

    def item(self, index, epoch, seed_sample):
        """seed_sample(epoch, index): called before each sample is read, also before those that are dropped."""
        if self.iterator is None or epoch != self.epoch or index < self.place:
            self.begin(index, epoch, seed_sample)
        try:
            while True:
                place = self.place
                seed_sample(epoch, place)
                item = next(self.iterator)
                self.place += 1
                if place == index:
                    return item
        except BaseException as fault:
            self.iterator = None  # a generator that raised gives nothing more
            if isinstance(fault, StopIteration):
                raise Fault(f"{self.what} ended after {place} samples, an epoch has {self.length}: write their number in `samples:`") from None
            raise

    def begin(self, index, epoch, seed_sample):
        seed_sample(epoch, -1)  # iter() may draw
        self.epoch, self.place = epoch, 0
        items = self.of_epoch(self.items, epoch)
        if index > 0 and callable(getattr(items, "skip", None)):
            items, self.place = self.of_epoch(items.skip(index), epoch), index
        self.iterator = iter(items)
        if self.iterator is self.items:
            raise Fault(f"{self.what} is an iterator, which can be read only once: return a new one from __iter__")

    @staticmethod
    def of_epoch(items, epoch):
        if callable(getattr(items, "set_epoch", None)):
            items.set_epoch(epoch)
        return items
