"""lockstep.DataParallel and the backend "lockstep" on several hosts (tools/netns), and on hosts without shared memory."""
import contextlib
import ctypes
import datetime
import functools
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import unittest

import ranks
from ranks import dist, torch
import user_loop
import mounts
from ports import free_port
from process_group_test import NO_SHARED_MEMORY, SHARED_FOLDER
from skips import require_tool, skip
from soak import rounds

NETNS = ranks.SOURCE / "tools/netns"
NOT_PERMITTED = 77
LIMIT_S = 60  # of a run; each wait within has 20 s
PRUNING = """version: 1.1.0
modifiers:
  - !GradualKSModifier
    start_step: 0
    end_step: 4
    update_frequency: 0.25
    init_sparsity: 0.5
    final_sparsity: 0.9
    params: [first]
"""
CLONE_NEWNET, CLONE_NEWUTS = 0x40000000, 0x04000000  # of sched.h
LIBC = ctypes.CDLL(None, use_errno=True)


def enter(space, name):
    """Moves this process to a host of tools/netns, as `netns on` does."""
    with open(f"/run/netns/{space}") as file:
        moved = LIBC.setns(file.fileno(), CLONE_NEWNET) == 0 and LIBC.unshare(CLONE_NEWUTS) == 0
    if not moved:
        raise OSError(ctypes.get_errno(), f"cannot enter {space}")
    socket.sethostname(name)


@contextlib.contextmanager
def hosts(gbit):
    """The tag of two hosts that are joined by a link, a part of their namespaces' names."""
    with subprocess.Popen([NETNS, "exec", "--gbit", str(gbit), "sh", "-c", "echo $LOCKSTEP_NETNS; cat"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip()
        process.stdin.close()


def sums(num_values):
    """What collectives of whole numbers, of several sizes, give on this rank: the digest must be that of gloo."""
    rank, size, found = dist.get_rank(), dist.get_world_size(), []
    for number in (1, 1000, num_values, num_values + 7):
        values = torch.arange(number * size, dtype=torch.float32) % 1000 * (rank + 1)
        total, piece, whole, first = values.clone(), torch.empty(number), torch.empty(number * size), values.clone()
        works = [dist.all_reduce(total, async_op=True), dist.reduce_scatter_tensor(piece, values, async_op=True),
                 dist.broadcast(first, size - 1, async_op=True)]
        for work in works:
            work.wait()
        dist.all_gather_into_tensor(whole, piece)
        found += [total, whole, first]
    dist.barrier()
    return {"digest": user_loop.digest(found)}


def train(request, backend, fault):
    """user_loop.train, or sums; fault: the signal that rank 1 gives itself at step 2, or 0."""
    def fail(_case, step, _model, _network):
        if fault and step == 2 and dist.get_rank() == 1:
            os.kill(os.getpid(), fault)
    user_loop.make_mistake = fail
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=20))
    result = sums(request["sums"]) if "sums" in request else user_loop.train(request)
    dist.destroy_process_group()
    return result


@functools.cache
def ddp(num_ranks, **request):
    """user_loop.train by DistributedDataParallel over gloo, on this host."""
    return ranks.values(num_ranks, user_loop.train, {**request, "wrapper": "ddp"}, backend="gloo")[0]


class Hosts(unittest.TestCase):
    def setUp(self):
        for tool in ("ip", "tc"):
            require_tool(tool, "tools/setup (Debian's iproute2)")
        refusal = subprocess.run([NETNS, "exec", "true"], capture_output=True, text=True)
        if refusal.returncode == NOT_PERMITTED:
            skip(f"network namespaces are not permitted here: {refusal.stderr.strip()}")
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-hosts-")))

    def run_on(self, places, request, backend="gloo", fault=0, before=None, gbit=1):
        """Runs a rank on each of the hosts: "aab". before: variables of the ranks of a host. Returns a list of Rank; rank 1 is killed after a fault."""
        port = str(free_port())
        with hosts(gbit) as tag:
            def body(rank):
                host = places[rank]
                enter(f"{tag}{host}", f"lockstep-{host}")
                os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(len(places)), MASTER_ADDR="10.231.7.1", MASTER_PORT=port,
                                  GLOO_SOCKET_IFNAME=f"{tag}v{host}", **(before or {}).get(host, {}))
                return train(request, backend, fault)
            return ranks.fork(len(places), body, LIMIT_S, stopped=1 if fault else None)

    def results(self, places, request, **options):
        found = self.run_on(places, request, **options)
        logs = [rank.said for rank in found]
        self.assertEqual([rank.code for rank in found], [0] * len(places), "\n".join(logs))
        self.assertEqual(len({rank.value["digest"] for rank in found}), 1)
        return found[0].value, logs

    def assert_equal_training(self, ours, theirs):
        for one, other in zip(ours["losses"], theirs["losses"], strict=True):
            self.assertAlmostEqual(one, other, delta=1e-6)
        for one, other in zip(ours["weights"], theirs["weights"], strict=True):
            self.assertAlmostEqual(one, other, delta=1e-5)

    def test_a_loop_learns_as_ddp_does(self):
        """One rank a host, several, and unequal numbers of them in an order that is not by hosts."""
        for places, engine_update in rounds([("ab", None), ("aab", "shards")], [("aba", None), ("aabb", True), ("abbb", False)]):
            with self.subTest(places=places, engine_update=engine_update):
                size = {"batch": 12, "samples": 48}
                ours, _ = self.results(places, {**size, "engine_update": engine_update})
                self.assert_equal_training(ours, ddp(len(places), **size))

    def test_a_pruned_loop_has_the_same_masks_as_on_one_host(self):
        recipe = self.folder / "recipe"
        recipe.write_text(PRUNING)
        request = {"recipe": str(recipe), "batch": 12}
        ours, _ = self.results("aab", request)
        here = ranks.values(3, user_loop.train, request, backend="gloo")[0]
        self.assertEqual(ours["zeros"], here["zeros"])
        self.assert_equal_training(ours, here)

    def test_a_script_of_ddp_on_several_hosts(self):
        for places in rounds(["aab"], ["ab", "aabb"]):
            with self.subTest(places=places):
                ours, _ = self.results(places, {"wrapper": "ddp", "batch": 12}, backend="lockstep")
                self.assert_equal_training(ours, ddp(len(places), batch=12))

    def test_collectives_of_all_sizes(self):
        """Small ones are messages between all ranks, large ones go by hosts."""
        for places in rounds(["aba"], ["aabb", "abbb"]):
            with self.subTest(places=places):
                ours, theirs = (self.results(places, {"sums": 400_000}, backend=backend, gbit=10)[0] for backend in ("lockstep", "gloo"))
                self.assertEqual(ours, theirs)

    def test_each_rank_names_one_that_is_gone_or_hangs(self):
        cases = rounds([("aab", "gloo", signal.SIGKILL), ("abb", "gloo", signal.SIGSTOP), ("aba", "lockstep", signal.SIGKILL)],
                       [("ab", "gloo", signal.SIGKILL), ("ab", "gloo", signal.SIGSTOP), ("abb", "gloo", signal.SIGKILL),
                        ("aab", "lockstep", signal.SIGSTOP)])
        for places, backend, fault in cases:
            with self.subTest(places=places, backend=backend, fault=fault):
                wrapper = "ddp" if backend == "lockstep" else "lockstep"
                found = self.run_on(places, {"wrapper": wrapper, "batch": 12}, backend=backend, fault=fault)
                for rank in found[:1] + found[2:]:
                    self.assertNotIn(rank.code, (0, -signal.SIGKILL), rank.said)
                    self.assertRegex(rank.said, rf"rank 1 \(process \d+ on lockstep-{places[1]}\)")

    def test_a_host_without_shared_memory(self):
        """All ranks then exchange messages, and one of that host says why."""
        small = {"b": {SHARED_FOLDER: "/nowhere"}}
        size = {"batch": 12, "samples": 48}
        ours, logs = self.results("abb", size, before=small)
        self.assert_equal_training(ours, ddp(3, **size))
        self.assertEqual([log.count(NO_SHARED_MEMORY) for log in logs], [0, 1, 0])


class OneHost(unittest.TestCase):
    @mounts.in_own_mounts
    def test_too_small_a_folder(self):
        """A loop goes on by messages between the ranks of one host, and says so once."""
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", folder], check=True)
            try:
                found = ranks.run(3, user_loop.train, {"batch": 12}, backend="gloo", environment={SHARED_FOLDER: folder})
            finally:
                subprocess.run(["umount", folder], check=True)
        self.assertEqual([rank.code for rank in found], [0] * 3, found)
        theirs = ddp(3, batch=12)
        for one, other in zip(found[0].value["weights"], theirs["weights"], strict=True):
            self.assertAlmostEqual(one, other, delta=1e-5)
        self.assertEqual(sum(rank.said.count(NO_SHARED_MEMORY) for rank in found), 1)


if __name__ == "__main__":
    unittest.main()
