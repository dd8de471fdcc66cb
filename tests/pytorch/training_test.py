"""Training with PyTorch's own wrappers: the backend "lockstep" gives the losses of gloo."""
import unittest

import ranks
from ranks import dist, torch
import torch._dynamo  # noqa: F401, which optimizers import: here once for all forked ranks
import torch.distributed.fsdp  # noqa: F401
import torch.distributed.optim  # noqa: F401

NUM_STEPS, TOLERANCE = 6, 1e-6


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def losses(wrap, make_optimizer=torch.optim.SGD):
    """Mean over the ranks of the loss of each step; wrap: returns the module to call."""
    module = wrap(network())
    optimizer = make_optimizer(module.parameters(), lr=0.1)
    generator, found = torch.Generator().manual_seed(dist.get_rank()), []
    for _ in range(NUM_STEPS):
        inputs, targets = torch.randn(32, 784, generator=generator), torch.randint(10, (32,), generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(inputs), targets)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        found.append(mean.item() / dist.get_world_size())
    return found


def ddp(module, **options):
    return torch.nn.parallel.DistributedDataParallel(module, **options)


def fully_sharded(module):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in module:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def with_hook(module):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    wrapped = ddp(module)
    wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return wrapped


def zero_redundancy(parameters, lr):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=lr / 10)


class Training(unittest.TestCase):
    def compare(self, num_ranks, *arguments, tolerance=TOLERANCE):
        ours = ranks.values(num_ranks, losses, *arguments)
        theirs = ranks.values(num_ranks, losses, *arguments, backend="gloo")
        for rank in range(num_ranks):
            self.assertEqual(ours[rank], ours[0])
            for a, b in zip(ours[rank], theirs[rank], strict=True):
                self.assertAlmostEqual(a, b, delta=tolerance)
        self.assertLess(ours[0][-1], ours[0][0] + 0.5, "it does not diverge")

    def test_ddp(self):
        for num_ranks in (1, 2, 4):
            with self.subTest(num_ranks=num_ranks):
                self.compare(num_ranks, ddp)

    def test_ddp_with_small_buckets_and_views(self):
        self.compare(2, lambda module: ddp(module, bucket_cap_mb=0.01, gradient_as_bucket_view=True, static_graph=True))

    def test_ddp_with_a_communication_hook(self):
        self.compare(2, with_hook)

    def test_fully_shard(self):
        for num_ranks in (1, 2):
            with self.subTest(num_ranks=num_ranks):
                self.compare(num_ranks, fully_sharded)

    def test_zero_redundancy_optimizer(self):
        self.compare(2, ddp, zero_redundancy)

    def test_no_sync_accumulates(self):
        def sums():
            module = ddp(network())
            for is_last in (False, True):
                if is_last:
                    module(torch.ones(1, 784)).sum().backward()
                else:
                    with module.no_sync():
                        module(torch.ones(1, 784) * dist.get_rank()).sum().backward()
            return module.module[2].bias.grad.tolist()
        self.assertEqual(ranks.values(2, sums), ranks.values(2, sums, backend="gloo"))


if __name__ == "__main__":
    unittest.main()
