"""Every collective of the backend "lockstep" gives what gloo gives, for every type and operation that gloo takes.

Values are small integers, whose sums and products every type holds exactly: results must be equal.
"""
import dataclasses
import itertools
import threading
import unittest

import ranks
from ranks import dist, torch
import torch.distributed._functional_collectives as functional  # here once for all forked ranks

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.complex64)
OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
SHAPES = ((), (0,), (1,), (3, 5), (2, 3, 4), (70_001,))
LAYOUTS = ("plain", "transposed", "offset")


@dataclasses.dataclass(frozen=True)
class Case:
    call: str
    dtype: torch.dtype
    shape: tuple
    layout: str = "plain"
    op: str = "SUM"
    root: int = 0
    is_async: bool = False


def tensor(case, *seed, pieces=1):
    """A tensor of small values that depend on the seed. pieces: so many times as long in the first dimension."""
    shape = (pieces * (case.shape[0] if case.shape else 1), *case.shape[1:]) if pieces > 1 else case.shape
    generator = torch.Generator().manual_seed(sum((i + 1) * number for i, number in enumerate((*case.shape, *seed))))
    values = torch.randint(1, 3, shape, generator=generator).to(case.dtype)
    if case.layout == "transposed" and values.dim() > 1:
        return values.transpose(0, -1).contiguous().transpose(0, -1)
    if case.layout == "offset":
        return torch.cat([values.flatten()[:1], values.flatten()])[1 if values.numel() else 0:].view(values.shape)
    return values


def empty_pieces(case, num_ranks):
    return [torch.zeros_like(tensor(case, 0)) for _ in range(num_ranks)]


class Calls:
    """Collectives by name: each returns the work and the tensors that it changes."""

    def __init__(self, group):
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)

    def options(self, case, op=False):
        return {"group": self.group, "async_op": case.is_async, **({"op": getattr(dist.ReduceOp, case.op)} if op else {})}

    def all_reduce(self, case):
        values = tensor(case, self.rank)
        return dist.all_reduce(values, **self.options(case, op=True)), [values]

    def reduce(self, case):
        values = tensor(case, self.rank)
        work = dist.reduce(values, case.root, **self.options(case, op=True))
        return work, [values] if self.rank == case.root else []  # elsewhere the values are undefined

    def broadcast(self, case):
        values = tensor(case, self.rank)
        return dist.broadcast(values, case.root, **self.options(case)), [values]

    def all_gather(self, case):
        outputs = empty_pieces(case, self.size)
        return dist.all_gather(outputs, tensor(case, self.rank), **self.options(case)), outputs

    def all_gather_into_tensor(self, case):
        output = torch.zeros_like(tensor(case, 0, pieces=self.size))
        return dist.all_gather_into_tensor(output, tensor(case, self.rank), **self.options(case)), [output]

    def reduce_scatter(self, case):
        output = torch.zeros_like(tensor(case, 0))
        pieces = [tensor(case, self.rank, r) for r in range(self.size)]
        return dist.reduce_scatter(output, pieces, **self.options(case, op=True)), [output]

    def reduce_scatter_tensor(self, case):
        output = torch.zeros_like(tensor(case, 0))
        values = tensor(case, self.rank, pieces=self.size)
        return dist.reduce_scatter_tensor(output, values, **self.options(case, op=True)), [output]

    def all_to_all_single(self, case):
        values = tensor(case, self.rank, pieces=self.size)
        output = torch.zeros_like(values)
        return dist.all_to_all_single(output, values, **self.options(case)), [output]

    def all_to_all(self, case):
        outputs = empty_pieces(case, self.size)
        return dist.all_to_all(outputs, [tensor(case, self.rank, r) for r in range(self.size)], **self.options(case)), outputs

    def gather(self, case):
        outputs = empty_pieces(case, self.size) if self.rank == case.root else None
        return dist.gather(tensor(case, self.rank), outputs, case.root, **self.options(case)), outputs or []

    def scatter(self, case):
        output = torch.zeros_like(tensor(case, 0))
        pieces = [tensor(case, r) for r in range(self.size)] if self.rank == case.root else None
        return dist.scatter(output, pieces, case.root, **self.options(case)), [output]

    def ring(self, case):
        output = torch.zeros_like(tensor(case, 0))
        works = [dist.isend(tensor(case, self.rank), (self.rank + 1) % self.size, group=self.group),
                 dist.irecv(output, (self.rank - 1) % self.size, group=self.group)] if self.size > 1 else []
        for work in works:
            work.wait()
        return None, [output]

    def all_reduce_coalesced(self, case):
        values = [tensor(case, self.rank, i) for i in range(3)]
        return dist.all_reduce_coalesced(values, **self.options(case, op=True)), values

    def barrier(self, case):
        return dist.barrier(**self.options(case)), []

    def objects(self, case):
        found = [None] * self.size
        dist.all_gather_object(found, {"rank": self.rank, "case": str(case)}, group=self.group)
        sent = [f"from {self.rank}"]
        dist.broadcast_object_list(sent, case.root, group=self.group)
        return None, [torch.frombuffer(bytearray(repr((found, sent)).encode()), dtype=torch.uint8)]


REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced")
NO_SCALARS = ("all_gather_into_tensor", "reduce_scatter_tensor")  # gloo refuses a scalar in the first and crashes in the second
COPYING = ("broadcast", "all_gather", "all_gather_into_tensor", "all_to_all_single", "all_to_all", "gather", "scatter", "ring")


def outcome(group, case):
    """Tensors, or the type of the exception."""
    try:
        work, changed = getattr(Calls(group), case.call)(case)
        if work is not None:
            work.wait()
        return changed
    except Exception as fault:
        return [type(fault).__name__]


def are_equal(ours, theirs):
    if len(ours) != len(theirs):
        return False
    return all(torch.equal(a, b) and a.dtype == b.dtype if torch.is_tensor(a) and torch.is_tensor(b) else a is b or str(a) == str(b)
               for a, b in zip(ours, theirs))


def differences(cases):
    """Cases whose outcome is not gloo's, on this rank, with both; and the number of cases with tensors."""
    gloo, found, num_tensors = dist.new_group(backend="gloo"), [], 0
    for case in cases:
        theirs, ours = outcome(gloo, case), outcome(None, case)
        num_tensors += bool(theirs) and torch.is_tensor(theirs[0])
        if not are_equal(ours, theirs):
            found.append(f"{case}: {str(ours)[:200]}, gloo: {str(theirs)[:200]}")
    return found, num_tensors


def table(num_ranks):
    """Each type with each operation, and each shape with each layout; not all of them with each other. The choice of root and of async_op varies
    along the table, and not with the rank."""
    cases = [Case(call, dtype, ((4,), (3, 5))[i % 2], op=op) for i, (call, dtype, op) in enumerate(itertools.product(REDUCING, DTYPES, OPS))]
    cases += [Case(call, dtype, (3, 5), LAYOUTS[i % 3]) for i, (call, dtype) in enumerate(itertools.product(COPYING, DTYPES))]
    cases += [Case(call, dtype, shape, layout) for call, dtype, shape, layout in itertools.product(COPYING, (torch.float32, torch.uint8), SHAPES, LAYOUTS)]
    cases += [Case(call, torch.float32, shape, layout) for call, shape, layout in itertools.product(REDUCING, SHAPES, LAYOUTS)]
    cases = [case for case in cases if case.shape or case.call not in NO_SCALARS]
    cases += [Case("barrier", torch.float32, ()), Case("objects", torch.float32, ())]
    return [dataclasses.replace(case, root=i % num_ranks, is_async=i // num_ranks % 2 == 1) for i, case in enumerate(cases)]


class Collectives(unittest.TestCase):
    def compare(self, num_ranks):
        for rank, (found, num_tensors) in enumerate(ranks.values(num_ranks, differences, table(num_ranks))):
            self.assertFalse(found, f"rank {rank}: {len(found)} differ\n" + "\n".join(found[:10]))
            self.assertGreater(num_tensors, 500)

    def test_one_rank(self):
        self.compare(1)

    def test_two_ranks(self):
        self.compare(2)

    def test_four_ranks(self):
        self.compare(4)

    def test_mean_is_the_sum_over_the_ranks(self):
        """gloo has no mean; NCCL has."""
        def mean():
            found = []
            for dtype in FLOATS:
                values = torch.arange(10).to(dtype) + 4 * dist.get_rank()
                dist.all_reduce(values, dist.ReduceOp.AVG)
                found.append(values.tolist())
            return found
        for found in ranks.values(4, mean):
            self.assertEqual(found, [[i + 6.0 for i in range(10)]] * len(FLOATS))

    def test_means_of_whole_numbers_are_rounded_towards_zero(self):
        """As by NCCL; gloo has none. The sums of four ranks do not fit into 8 bits."""
        def mean():
            found = []
            for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
                values = torch.tensor([100, 3, 0]).to(dtype) + dist.get_rank()
                share = torch.zeros(1, dtype=dtype)
                dist.reduce_scatter_tensor(share, values.repeat(4)[:4].contiguous(), dist.ReduceOp.AVG)
                dist.all_reduce(values, dist.ReduceOp.AVG)
                found.append((values.tolist(), share.tolist()))
            return found
        for rank, found in enumerate(ranks.values(4, mean)):
            self.assertEqual(found, [([101, 4, 1], [[101, 4, 1, 101][rank]])] * 5)

    def test_ranks_with_other_strides(self):
        """Items have the place of their index, whatever a rank's strides are."""
        def mixed():
            values = torch.arange(6.0).view(2, 3)
            if dist.get_rank() == 1:
                values = values.t().contiguous().t()
            sums, copies = values.clone(memory_format=torch.preserve_format), torch.zeros_like(values) + dist.get_rank()
            dist.all_reduce(sums)
            dist.broadcast(copies, 1)
            gathered = torch.zeros(4, 3)
            dist.all_gather_into_tensor(gathered, values)
            return sums.tolist(), copies.tolist(), gathered.tolist()
        rows = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        for sums, copies, gathered in ranks.values(2, mixed, timeout_s=10):
            self.assertEqual(sums, [[2 * value for value in row] for row in rows])
            self.assertEqual(copies, [[1.0] * 3] * 2)
            self.assertEqual(gathered, rows + rows)

    def test_tensors_of_inference_mode_and_leaves(self):
        def results():
            with torch.inference_mode():
                values, whole = torch.ones(3), [torch.zeros(3) for _ in range(2)]
            leaves = [torch.zeros(3, requires_grad=True) for _ in range(2)]
            dist.all_reduce(values, dist.ReduceOp.AVG)
            dist.all_gather(whole, values)
            dist.all_gather(leaves, values)
            return [piece.tolist() for piece in [values, *whole, *leaves]]
        for found in ranks.values(2, results):
            self.assertEqual(found, [[1.0] * 3] * 5)

    def test_many_calls_at_once_end_in_order(self):
        def sums():
            values = [torch.full((1000,), float(dist.get_rank() + i)) for i in range(100)]
            works = [dist.all_reduce(each, async_op=True) for each in values]
            last = torch.full((5,), float(dist.get_rank()))
            dist.all_reduce(last)  # after the others
            are_done = all(work.is_completed() for work in works)
            for work in reversed(works):
                work.wait()
            return are_done, [each[0].item() for each in values], last.tolist()
        for are_done, found, last in ranks.values(2, sums):
            self.assertTrue(are_done)
            self.assertEqual(found, [1.0 + 2 * i for i in range(100)])
            self.assertEqual(last, [1.0] * 5)

    def test_a_call_that_another_rank_begins_later(self):
        """A call of any size waits for no rank where it is begun: rank 1 first needs what rank 0 does next."""
        def sums():
            found = []
            for count in (1, 1000, 50_000, 65_536, 65_537, 1_000_000):
                message, values = torch.zeros(1), torch.ones(count)
                if dist.get_rank() == 1:
                    dist.recv(message, 0)
                work = dist.all_reduce(values, async_op=True)
                if dist.get_rank() == 0:
                    dist.send(torch.ones(1), 1)
                later = torch.ones(7)
                dist.all_reduce(later)
                work.wait()
                found.append(values.min().item() + values.max().item() + later.sum().item())
            return found
        self.assertEqual(ranks.values(2, sums, timeout_s=60), [[18.0] * 6] * 2)

    def test_threads_that_share_a_group(self):
        def sums():
            found = []

            def call(is_async):
                for _ in range(200):
                    values = torch.ones(1000)
                    work = dist.all_reduce(values, async_op=is_async)
                    if is_async:
                        work.wait()
                    found.append(values.min().item() + values.max().item())
            threads = [threading.Thread(target=call, args=(is_async,)) for is_async in (False, False, True)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return found
        self.assertEqual(ranks.values(2, sums), [[4.0] * 600] * 2)

    def test_results_of_futures_are_those_of_gloo(self):
        def results():
            found = []
            for group in (None, dist.new_group(backend="gloo")):
                pieces = [torch.zeros(2) for _ in range(2)]
                works = [dist.all_reduce(torch.ones(2), group=group, async_op=True),
                         dist.all_gather(pieces, torch.ones(2), group=group, async_op=True), dist.barrier(group=group, async_op=True)]
                found.append(str([work.get_future().wait() for work in works[:2]]))
                works[2].wait()
            return found
        for ours, theirs in ranks.values(2, results):
            self.assertEqual(ours, theirs)

    def test_functional_collectives(self):
        def results():
            world, values = dist.group.WORLD, torch.arange(4.0) + dist.get_rank()
            mean = functional.all_reduce(values, "sum", world) / 2
            found = functional.all_gather_tensor(mean, 0, world), functional.reduce_scatter_tensor(values, "sum", 0, world)
            return [(part + 0).tolist() for part in found]
        for rank, (gathered, scattered) in enumerate(ranks.values(2, results)):
            self.assertEqual(gathered, [i + 0.5 for i in range(4)] * 2)
            self.assertEqual(scattered, [2 * i + 1.0 for i in range(2 * rank, 2 * rank + 2)])


if __name__ == "__main__":
    unittest.main()
