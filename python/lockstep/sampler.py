"""The order of samples, which does not depend on the number of ranks: that of lockstepd for the same seed."""
import torch
from torch import distributed

from . import process_group as backend
from .calls import call
from .launch import rank_and_size
from .programs import Error


class DistributedSampler(torch.utils.data.Sampler):
    """Indices of this rank's samples: `DataLoader(data, batch_size=sampler.batch_size, sampler=sampler)`.

    A global batch is a part of the epoch's order, and each rank takes a contiguous share of it. The last batch of an epoch may give ranks different
    numbers of samples; give the sampler to lockstep.DataParallel, which then weights them. A rank without samples gets one of the batch, with
    weight 0. global_batch_size: samples of one forward pass over all ranks, a multiple of their number."""

    def __init__(self, data, global_batch_size, *, seed=0, shuffle=True, drop_last=False):
        backend.load()
        self.rank, self.world_size = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else rank_and_size()
        self.num_samples, self.global_batch_size = len(data), global_batch_size
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.epoch, self.first_batch = 0, 0
        self.loop = None  # whose backward passes count the batches
        self.first_pass = 0  # that of the epoch's first batch
        self.before_first = None  # called before the next iteration gives its first index
        if global_batch_size % self.world_size:
            raise Error(f"[data] global_batch_size {global_batch_size} is not a multiple of {self.world_size} ranks")
        if drop_last and self.num_samples < global_batch_size:
            raise Error(f"[data] drop_last leaves no batch: {self.num_samples} samples are fewer than one global batch of {global_batch_size}")

    @property
    def batch_size(self):
        """Samples of this rank in a full batch."""
        return self.global_batch_size // self.world_size

    @property
    def batches_per_epoch(self):
        rounding_up = 0 if self.drop_last else self.global_batch_size - 1
        return (self.num_samples + rounding_up) // self.global_batch_size

    def set_epoch(self, epoch):
        """Chooses the order of the next iteration. After a restore, the epoch of the checkpoint begins where it was left."""
        if epoch != self.epoch:
            self.epoch, self.first_batch, self.first_pass = epoch, 0, self.num_passes()

    def share_of(self, batch):
        """(places of this rank's samples in the epoch's order, samples of all ranks) in one batch. Shares differ by at most one."""
        begin = batch * self.global_batch_size
        count = min(self.global_batch_size, self.num_samples - begin)
        return range(begin + count * self.rank // self.world_size, begin + count * (self.rank + 1) // self.world_size), count

    def __len__(self):
        return sum(max(1, len(self.share_of(batch)[0])) for batch in range(self.first_batch, self.batches_per_epoch))

    def num_passes(self):
        return 0 if self.loop is None else call("loop_passes", self.loop)

    def num_batches_done(self):
        """Batches of the epoch that were trained on, one a backward pass: a DataLoader reads ahead."""
        return self.num_passes() - self.first_pass

    def follow(self, loop):
        """Counts batches by the backward passes of this loop from now on; None: of no loop."""
        done, self.loop = self.num_batches_done(), loop
        self.first_pass = self.num_passes() - done

    def __iter__(self):
        first, self.first_batch = self.first_batch, 0
        self.first_pass = self.num_passes() - first
        return self.indices(call("loop_order", self.num_samples, self.seed, self.epoch, self.shuffle), first)

    def indices(self, order, first):
        # A DataLoader draws a seed before it asks for the first index, which a resumed epoch must not do twice.
        before, self.before_first = self.before_first, None
        if before is not None:
            before()
        for batch in range(first, self.batches_per_epoch):
            share = self.share_of(batch)[0]
            yield from order[share.start:share.stop] or [order[batch * self.global_batch_size]]

    def weight_of_next(self, num_samples):
        """The weight of the next batch in the mean over ranks; None if it has another number of samples."""
        batch = self.num_batches_done()
        if batch >= self.batches_per_epoch:
            return None
        share, count = self.share_of(batch)
        return len(share) * self.world_size / count if num_samples == max(1, len(share)) else None

    def position(self):
        """{key: tensor} of the epoch and its samples that were trained on, as checkpoints hold them."""
        taken = min(self.num_batches_done() * self.global_batch_size, self.num_samples)
        return {"_lockstep/sampler/epoch": torch.tensor(self.epoch), "_lockstep/sampler/position": torch.tensor(taken)}

    def go_to(self, epoch, taken):
        """Continues at a position of a sampler with the same samples, seed and global batch, whatever its number of ranks."""
        self.epoch, self.first_batch = epoch, -(-taken // self.global_batch_size)
        if self.first_batch >= self.batches_per_epoch:
            self.epoch, self.first_batch = epoch + 1, 0
        self.first_pass = self.num_passes() - self.first_batch
