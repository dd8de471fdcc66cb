"""The order of samples, which does not depend on the number of ranks: that of lockstepd for the same seed."""
import torch
from torch import distributed

from . import process_group as backend
from .launch import rank_and_size
from .programs import EXIT_CONFIG, Error


def share_of(count, rank, world_size):
    """The contiguous share of a rank; shares differ by at most one."""
    return range(count * rank // world_size, count * (rank + 1) // world_size)


def no_passes():
    return 0


class DistributedSampler(torch.utils.data.Sampler):
    """Indices of this rank's samples: `DataLoader(data, batch_size=sampler.batch_size, sampler=sampler)`.

    A global batch is a part of the epoch's order, and each rank takes a contiguous share of it. The last batch of an epoch may give
    ranks different numbers of samples; give the sampler to lockstep.DataParallel, which then weights them. A rank without
    samples gets one of the batch, with weight 0.

    global_batch_size: samples of one forward pass over all ranks, a multiple of their number.
    """

    def __init__(self, data, global_batch_size, *, seed=0, shuffle=True, drop_last=False, rank=None, world_size=None):
        backend.load()
        known = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else rank_and_size()
        self.rank, self.world_size = known[0] if rank is None else rank, world_size or known[1]
        self.num_samples, self.global_batch_size = len(data), global_batch_size
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.epoch, self.first_batch = 0, 0
        self.count_passes = no_passes  # backward passes; lockstep.DataParallel sets another one
        self.first_pass = 0  # that of the epoch's first batch
        self.before_first = None  # called before the next iteration gives its first index
        if global_batch_size % self.world_size:
            raise Error(f"[data] global_batch_size {global_batch_size} is not a multiple of {self.world_size} ranks", EXIT_CONFIG)
        if drop_last and self.num_samples < global_batch_size:
            raise Error(f"[data] drop_last leaves no batch: {self.num_samples} samples are fewer than one global batch of {global_batch_size}",
                        EXIT_CONFIG)

    @property
    def batch_size(self):
        """Samples of this rank in a full batch."""
        return self.global_batch_size // self.world_size

    @property
    def batches_per_epoch(self):
        whole, rest = divmod(self.num_samples, self.global_batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    def set_epoch(self, epoch):
        """Chooses the order of the next iteration. After a restore, the epoch of the checkpoint begins where it was left."""
        if epoch != self.epoch:
            self.epoch, self.first_batch, self.first_pass = epoch, 0, self.count_passes()

    def sizes(self, batch):
        """(samples of this rank, of all ranks) in one batch of the epoch."""
        count = min(self.global_batch_size, self.num_samples - batch * self.global_batch_size)
        return len(share_of(count, self.rank, self.world_size)), count

    def __len__(self):
        return sum(max(1, self.sizes(batch)[0]) for batch in range(self.first_batch, self.batches_per_epoch))

    @property
    def num_batches_done(self):
        """Batches of the epoch that were trained on, one a backward pass: a DataLoader reads ahead."""
        return self.count_passes() - self.first_pass

    def follow(self, count_passes):
        """count_passes: a function that returns a number of backward passes, which counts the batches from now on."""
        self.count_passes, self.first_pass = count_passes, count_passes() - self.num_batches_done

    def __iter__(self):
        first, self.first_batch = self.first_batch, 0
        self.first_pass = self.count_passes() - first
        order = torch.ops.lockstep.loop_order.default(self.num_samples, self.seed, self.epoch, self.shuffle)
        return self.indices(order, first)

    def indices(self, order, first):
        # A DataLoader draws a seed before it asks for the first index, which a resumed epoch must not do twice.
        before, self.before_first = self.before_first, None
        if before is not None:
            before()
        for batch in range(first, self.batches_per_epoch):
            begin = batch * self.global_batch_size
            count = self.sizes(batch)[1]
            share = share_of(count, self.rank, self.world_size) or range(1)
            yield from order[begin + share.start:begin + share.stop]

    def weight_of_next(self, num_samples):
        """The weight of the next batch in the mean over ranks; None if it has another number of samples."""
        batch = self.num_batches_done
        if batch >= self.batches_per_epoch:
            return None
        own, count = self.sizes(batch)
        return own * self.world_size / count if num_samples == max(1, own) else None

    def position(self):
        """(epoch, samples of it that were trained on), as checkpoints hold it."""
        taken = min(self.num_batches_done * self.global_batch_size, self.num_samples)
        return self.epoch, taken

    def go_to(self, epoch, taken):
        """Continues at a position of a sampler with the same samples, seed and global batch, whatever its number of ranks."""
        self.epoch, self.first_batch = epoch, -(-taken // self.global_batch_size)
        if self.first_batch >= self.batches_per_epoch:
            self.epoch, self.first_batch = epoch + 1, 0
        self.first_pass = self.count_passes() - self.first_batch
