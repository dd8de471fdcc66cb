"""lockstep.DataParallel and the backend "lockstep" on several hosts (tools/netns), and on hosts without shared memory."""
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

import ranks
import user_loop
import mounts
import patience
from ports import free_port
from process_group_test import NO_SHARED_MEMORY, SHARED_FOLDER
from skips import require_tool, skip
from soak import rounds

NETNS = ranks.SOURCE / "tools/netns"
PROGRAM = pathlib.Path(__file__).resolve().parent / "programs/on_hosts.py"
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
# Starts a rank: its number, its host, words before Python, words after it.
START = """RANK={rank} LOCAL_RANK=0 WORLD_SIZE={size} MASTER_ADDR=10.231.7.1 MASTER_PORT={port} GLOO_SOCKET_IFNAME=${{LOCKSTEP_NETNS}}v{host} \
{netns} on {host} {before} {python} {program} '{request}' {backend} {signal} >{folder}/{rank}.log 2>&1 &
pids="$pids $!"
"""
# Ranks that end normally end by themselves. After a fault all but rank 1 do.
FINISH = """
number=0
for pid in $pids; do
  if [ $number != {stopped} ]; then wait $pid; echo $? >{folder}/$number.code; fi
  number=$((number + 1))
done
{netns} pids | xargs -r kill -9
"""


class Hosts(unittest.TestCase):
    def setUp(self):
        for tool in ("ip", "tc"):
            require_tool(tool, "tools/setup (Debian's iproute2)")
        refusal = subprocess.run([NETNS, "exec", "true"], capture_output=True, text=True)
        if refusal.returncode == NOT_PERMITTED:
            skip(f"network namespaces are not permitted here: {refusal.stderr.strip()}")
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-hosts-")))

    def run_on(self, places, request, backend="gloo", fault=0, before=None, gbit=1):
        """Runs user_loop.train with a rank on each of the hosts: "aab". Returns (codes, logs) by rank; rank 1 has none after a fault."""
        for file in self.folder.glob("*.*"):
            file.unlink()
        words = {"size": len(places), "port": free_port(), "netns": NETNS, "python": sys.executable, "program": PROGRAM,
                 "request": json.dumps(request), "backend": backend, "signal": int(fault), "folder": self.folder}
        script = "".join(START.format(rank=rank, host=host, before=(before or {}).get(host, ""), **words) for rank, host in enumerate(places))
        script += FINISH.format(stopped=1 if fault else -1, **words)
        done = subprocess.run([NETNS, "exec", "--gbit", str(gbit), "bash", "-c", script], capture_output=True, text=True,
                              timeout=2 * LIMIT_S * patience.FACTOR, env=ranks.environment())
        self.assertTrue((self.folder / "0.code").exists(), done.stderr)
        codes = [int(file.read_text()) if file.exists() else None for file in (self.folder / f"{rank}.code" for rank in range(len(places)))]
        return codes, [(self.folder / f"{rank}.log").read_text() for rank in range(len(places))]

    def results(self, places, request, **options):
        codes, logs = self.run_on(places, request, **options)
        self.assertEqual(codes, [0] * len(places), "\n".join(logs))
        found = [json.loads(re.search(r"^result (.*)$", log, re.MULTILINE)[1]) for log in logs]
        self.assertEqual(len({result["digest"] for result in found}), 1)
        return found[0], logs

    def assert_equal_training(self, ours, theirs):
        for one, other in zip(ours["losses"], theirs["losses"], strict=True):
            self.assertAlmostEqual(one, other, delta=1e-6)
        for one, other in zip(ours["weights"], theirs["weights"], strict=True):
            self.assertAlmostEqual(one, other, delta=1e-5)

    def ddp(self, num_ranks, **request):
        """The same training by DistributedDataParallel over gloo, on this host."""
        return ranks.values(num_ranks, user_loop.train, {**request, "wrapper": "ddp"}, backend="gloo")[0]

    def test_a_loop_learns_as_ddp_does(self):
        """One rank a host, several, and unequal numbers of them in an order that is not by hosts."""
        for places, engine_update in rounds([("ab", None), ("aab", "shards")], [("aba", None), ("aabb", True), ("abbb", False)]):
            with self.subTest(places=places, engine_update=engine_update):
                size = {"batch": 12, "samples": 48}
                ours, _ = self.results(places, {**size, "engine_update": engine_update})
                self.assert_equal_training(ours, self.ddp(len(places), **size))

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
                request = {"wrapper": "ddp", "batch": 12}
                ours, _ = self.results(places, request, backend="lockstep")
                self.assert_equal_training(ours, self.ddp(len(places), **request))

    def test_each_rank_names_one_that_is_gone_or_hangs(self):
        cases = rounds([("aab", "gloo", signal.SIGKILL), ("abb", "gloo", signal.SIGSTOP), ("aba", "lockstep", signal.SIGKILL)],
                       [("ab", "gloo", signal.SIGKILL), ("ab", "gloo", signal.SIGSTOP), ("abb", "gloo", signal.SIGKILL),
                        ("aab", "lockstep", signal.SIGSTOP)])
        for places, backend, fault in cases:
            with self.subTest(places=places, backend=backend, fault=fault):
                wrapper = "ddp" if backend == "lockstep" else "lockstep"
                codes, logs = self.run_on(places, {"wrapper": wrapper, "batch": 12}, backend=backend, fault=fault)
                for rank, (code, log) in enumerate(zip(codes, logs)):
                    if rank != 1:
                        self.assertNotIn(code, (0, None), log)
                        self.assertRegex(log, rf"rank 1 \(process \d+ on lockstep-{places[1]}\)")

    def test_a_host_without_shared_memory(self):
        """All ranks then exchange messages, and one of that host says why."""
        small = {"b": f"env {SHARED_FOLDER}=/nowhere"}
        size = {"batch": 12, "samples": 48}
        ours, logs = self.results("abb", size, before=small)
        self.assert_equal_training(ours, self.ddp(3, **size))
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
        theirs = ranks.values(3, user_loop.train, {"batch": 12, "wrapper": "ddp"}, backend="gloo")[0]
        for one, other in zip(found[0].value["weights"], theirs["weights"], strict=True):
            self.assertAlmostEqual(one, other, delta=1e-5)
        self.assertEqual(sum(rank.said.count(NO_SHARED_MEMORY) for rank in found), 1)


if __name__ == "__main__":
    unittest.main()
