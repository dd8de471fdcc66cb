"""The life of a group of the backend "lockstep": creation, sub-groups, faults, forks, signals, exit, and a folder of shared memory without space."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

import ranks
from ranks import dist, torch
import mounts
import patience
import python_package

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
SHARED_FOLDER = "OMPI_MCA_osc_sm_backing_directory"
TIMEOUT_S, HUNG_S = 2, 10  # of a group; after which a hanging rank ends itself
NO_SHARED_MEMORY = "the ranks of this host exchange messages instead of sharing memory"
CRASHES = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGKILL)


def sum_of(group=None, count=10):
    """Sum of the ranks of the world, from 1, in the group."""
    values = torch.full((count,), dist.get_rank() + 1.0)
    dist.all_reduce(values, group=group)
    return values[0].item()


def hang():
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, HUNG_S * patience.FACTOR)
    signal.pause()


def fail():
    raise ValueError("a fault of its own")


# What rank 1 does in place of the third call, and the words in the other ranks' error.
FAULTS = {"killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), "Connection closed.*rank 1.*ended"),
          "exited": (lambda: os._exit(3), "Connection closed.*rank 1.*ended"),
          "raised": (fail, "Connection closed.*rank 1.*ended"),
          "hangs": (hang, "Timed out.*rank 1.*timeout"),
          "calls another": (lambda: dist.broadcast(torch.ones(10), 0), "different calls.*rank 1: broadcast"),
          "another size": (lambda: sum_of(count=7), "different calls.*rank 1: all_reduce of 7 Float")}


class Groups(unittest.TestCase):
    def test_sub_groups(self):
        def sums():
            rank = dist.get_rank()
            groups = [dist.new_group(members) for members in ([1], [0, 1], [2, 3], [0, 2, 3], [3, 1], [0, 1, 2, 3])]
            mine = [group for group in groups if dist.get_rank(group) >= 0]
            works = []  # ranks begin the calls of their groups in different orders
            for group in mine if rank % 2 else reversed(mine):
                values = torch.full((1000,), rank + 1.0)
                works.append((group, values, dist.all_reduce(values, group=group, async_op=True)))
            for _, _, work in works:
                work.wait()
            found = {tuple(dist.get_process_group_ranks(group)): values[-1].item() for group, values, _ in works}
            return found, sum_of()
        for found, total in ranks.values(4, sums):
            self.assertEqual(total, 10)
            self.assertEqual(found, {members: sum(members) + len(members) for members in found})

    def test_sub_groups_that_only_their_members_create(self):
        def sums():
            rank = dist.get_rank()
            pairs = [(0, 1), (2, 3), (0, 2), (1, 3)] if rank < 2 else [(2, 3), (1, 3), (0, 2), (0, 1)]
            return {pair: sum_of(dist.new_group(list(pair), use_local_synchronization=True)) for pair in pairs if rank in pair}
        for found in ranks.values(4, sums):
            self.assertEqual(found, {(a, b): a + b + 2 for a, b in found})

    def test_broadcast_in_a_sub_group_takes_ranks_of_the_world(self):
        def values():
            group, found = dist.new_group([2, 1]), torch.full((3,), float(dist.get_rank()))
            if dist.get_rank() > 0:
                dist.broadcast(found, 2, group=group)
            return found.tolist()
        self.assertEqual(ranks.values(3, values), [[0.0] * 3, [2.0] * 3, [2.0] * 3])

    def test_again_after_destroy(self):
        def again(folder):
            found, rank = [sum_of()], dist.get_rank()
            for i in range(3):
                dist.destroy_process_group()
                pathlib.Path(folder, str(i)).mkdir(exist_ok=True)
                ranks.init(rank, 2, pathlib.Path(folder, str(i)))
                found.append(sum_of())
            return found
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(ranks.values(2, again, folder), [[3.0] * 4] * 2)

    def test_a_group_beside_one_of_gloo(self):
        def sums():
            return sum_of(dist.new_group(backend="gloo")), sum_of(), dist.get_backend(), dist.get_backend(dist.new_group())
        self.assertEqual(ranks.values(2, sums), [(3.0, 3.0, "lockstep", "lockstep")] * 2)

    def test_debug_mode_of_torch(self):
        self.assertEqual(ranks.values(2, sum_of, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}), [3.0] * 2)

    def test_a_call_after_destroy_began(self):
        """Work that outlives its group ends."""
        def end():
            work = dist.all_reduce(torch.ones(10), async_op=True) if dist.get_rank() == 0 else None
            group = dist.group.WORLD
            dist.destroy_process_group()
            del group
            try:
                return work and work.wait()
            except RuntimeError as fault:
                return str(fault)
        first, _ = ranks.values(2, end, timeout_s=TIMEOUT_S)
        self.assertRegex(first, "rank 1|destroyed|Timed out")


class Faults(unittest.TestCase):
    def each_of(self, num_ranks, name):
        do, words = FAULTS[name]

        def calls():
            sum_of()
            sum_of()
            if dist.get_rank() == 1:
                return do()
            faults = []
            for _ in range(2):  # the group stays failed, and says so at once
                with patience.within(ranks.LIMIT_S / 2, "the fault"):
                    try:
                        sum_of()
                    except dist.DistBackendError as fault:
                        faults.append(str(fault))
            return faults
        found = ranks.run(num_ranks, calls, timeout_s=TIMEOUT_S)
        for number, rank in enumerate(found):
            if number != 1:
                self.assertEqual(rank.code, 0, rank.said)
                self.assertEqual(len(rank.value), 2, rank.said)
                self.assertRegex(rank.value[0], words)
                self.assertRegex(rank.value[1], words)
        self.assertNotIn(found[1].code, (0, *CRASHES) if name in ("exited", "raised", "hangs") else ())

    def test_two_ranks(self):
        for name in FAULTS:
            with self.subTest(name):
                self.each_of(2, name)

    def test_four_ranks(self):
        for name in ("killed", "hangs"):
            with self.subTest(name):
                self.each_of(4, name)

    def test_a_forked_child_is_refused(self):
        def fork():
            reads, writes = os.pipe()
            if os.fork() == 0:
                try:
                    sum_of()
                    said = "summed"
                except RuntimeError as fault:
                    said = str(fault)
                os.write(writes, said.encode())
                os._exit(0)
            os.close(writes)
            said = os.read(reads, 10_000).decode()
            os.wait()
            return said, sum_of()
        for said, total in ranks.values(2, fork):
            self.assertRegex(said, "forked")
            self.assertEqual(total, 3.0)

    def test_workers_of_a_data_loader(self):
        def train():
            samples = torch.utils.data.TensorDataset(torch.arange(64.0))
            loader = torch.utils.data.DataLoader(samples, batch_size=8, num_workers=2, multiprocessing_context="fork")
            return [sum_of() + batch.sum().item() for _ in range(2) for batch, in loader]
        first, second = ranks.values(2, train)
        self.assertEqual(len(first), 16)
        self.assertEqual(first, second)

    def test_interrupted(self):
        processes = ranks.start_programs(2, PROGRAMS / "interrupted.py")
        for process in processes:
            self.assertEqual(process.stdout.readline(), "ready\n")
        for process in processes:
            os.kill(process.pid, signal.SIGINT)
        for code, said in ranks.finish_programs(processes):
            self.assertNotIn(code, (0, *CRASHES), said)
            self.assertRegex(said, "KeyboardInterrupt|DistBackendError.*rank")

    def test_exit_right_after_a_call_of_gloo(self):
        """Without a crash, although a thread of gloo may release the call's tensors while the interpreter ends."""
        for kind in ("tensor", "buffer", "objects", "tensor"):
            with self.subTest(kind):
                for code, said in ranks.finish_programs(ranks.start_programs(2, PROGRAMS / "leaving.py", "finished", kind)):
                    self.assertEqual(code, 0, said)

    def test_exit_with_outstanding_work(self):
        for joined in ("all", "first"):
            with self.subTest(joined=joined):
                for code, said in ranks.finish_programs(ranks.start_programs(2, PROGRAMS / "leaving.py", joined)):
                    self.assertEqual(code, 0, said)
                    self.assertIn("left", said)


class WithoutSharedMemory(unittest.TestCase):
    def sums_by_gloo(self, folder):
        found = ranks.run(2, sum_of, environment={SHARED_FOLDER: folder})
        self.assertEqual([(rank.code, rank.value) for rank in found], [(0, 3.0)] * 2, found[0].said)
        said = "".join(rank.said for rank in found)
        self.assertEqual(said.count(NO_SHARED_MEMORY), 1, said)

    def test_no_folder(self):
        self.sums_by_gloo("/nowhere")

    @mounts.in_own_mounts
    def test_too_small_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", folder], check=True)
            try:
                self.sums_by_gloo(folder)
            finally:
                subprocess.run(["umount", folder], check=True)


class Starting(unittest.TestCase):
    """Programs of their own."""

    def python(self, script, *arguments, path=ranks.PACKAGES):
        return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=300 * patience.FACTOR,
                              env={**ranks.environment(), "PYTHONPATH": f"{path}:{ranks.SOURCE / 'tests/support'}"})

    def test_import_in_either_order(self):
        registered = "assert 'lockstep' in torch.distributed.Backend.backend_list"
        for imports in ("import lockstep, sys; assert 'torch' not in sys.modules; from cpu_torch import torch",
                        "from cpu_torch import torch; import lockstep", "from cpu_torch import torch"):
            with self.subTest(imports):
                done = self.python(f"{imports}; {registered}")
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_import_torch_survives_a_fault_of_the_registration(self):
        done = self.python("import lockstep.process_group as p; p.register = lambda: 1 / 0; from cpu_torch import torch; print(torch.ones(1).item())")
        self.assertEqual((done.returncode, done.stdout), (0, "1.0\n"))
        self.assertEqual(done.stderr, "lockstep: torch.distributed has no backend 'lockstep': division by zero\n")

    def test_another_release_of_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            python_package.install(ranks.BUILD, pathlib.Path(folder), "2.10.0")
            done = self.python("from cpu_torch import torch; import lockstep; d = torch.distributed; "
                               "d.init_process_group('lockstep', store=d.HashStore(), rank=0, world_size=1)", path=folder)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.splitlines()[-1], r"has torch \S+, this lockstep is linked to 2\.10\.0: install torch==2\.10\.0 there$")

    def torchrun(self, *arguments):
        return self.python("from cpu_torch import torch; from torch.distributed.run import main; main()", "--standalone", "--nproc-per-node=2",
                           str(PROGRAMS / "under_torchrun.py"), *arguments)

    def test_torchrun(self):
        done = self.torchrun("sums")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(re.findall(r"rank \d: [^r]*\]", done.stdout)), [f"rank {rank}: [3.0, 3.0, 3.0]" for rank in range(2)])

    def test_a_hanging_rank_under_torchrun(self):
        done = self.torchrun("hangs")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, "DistBackendError: Timed out.*rank 1")


if __name__ == "__main__":
    unittest.main()
