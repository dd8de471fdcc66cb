"""Hosts and links between them (tools/netns): they are used in both directions, and a rank behind a cut is named."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCE / "tests/support"))
from patience import wait_for
from skips import require_tool, skip
from soak import rounds

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD"])
NETNS = SOURCE / "tools/netns"
NOT_PERMITTED = 77


def on_two_hosts(script, gbit=1):
    return subprocess.run([NETNS, "exec", "--gbit", str(gbit), "bash", "-c", script], capture_output=True, text=True, timeout=150)


def on_hosts(number, script, gbit):
    return subprocess.run([NETNS, "exec", "--hosts", str(number), "--gbit", str(gbit), "bash", "-c", script], capture_output=True, text=True, timeout=150)


def spaces():
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


class Link(unittest.TestCase):
    def setUp(self):
        for tool in ("ip", "tc"):
            require_tool(tool, "tools/setup (Debian's iproute2)")
        refusal = on_two_hosts("true")
        if refusal.returncode == NOT_PERMITTED:
            skip(f"network namespaces are not permitted here: {refusal.stderr.strip()}")

    def test_every_way_keeps_the_contract_between_hosts(self):
        for ranks in rounds((3,), (2, 4)):
            with self.subTest(ranks=ranks):
                done = on_two_hosts(f"{NETNS} mpirun {ranks} {BUILD}/tests/dist/dist_rank_test "
                                    "--gtest_filter=*KeepsTheContract/Shared*:*KeepsTheContract/MessagesAlong*", gbit=10)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_divided_optimizer_sends_as_little_as_an_all_reduce(self):
        """Bytes that the leaders of two hosts of two ranks send; nothing else here changes them. Ranks that send individually send twice as much."""
        calls, mib = 5, 0.8
        count = f"for host in $LOCKSTEP_NETNS_HOSTS; do {NETNS} on $host cat /proc/net/dev; done"
        done = on_two_hosts(f"{NETNS} mpirun 4 {BUILD}/bench/allreduce --mib {mib} --call reduce_scatter+all_gather --pairs {calls - 3} --peer none && {count}",
                            gbit=0.5)  # two calls more check the sums, one warms
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        sent = max(int(line.split(":")[1].split()[8]) for line in done.stdout.splitlines() if re.match(r" *ls\d+v", line))  # column 9 of the one device other than lo
        share = sent / calls / (mib * 2**20)  # two hosts: half of the bytes there, half back
        print(f"sent {share:.3f} of the tensor")
        self.assertLess(abs(share - 1), 0.1)

    def test_both_directions_carry_at_once(self):
        """One after the other they would carry half of what the link can. In one start each; the median of its 3 all-reduces."""
        for ranks in rounds((4,), (2,)):
            with self.subTest(ranks=ranks):
                done = on_two_hosts(f"{NETNS} mpirun {ranks} {BUILD}/bench/allreduce --mib 8 --pairs 3 --peer none --link-gbit 0.0956",
                                    gbit=0.1)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                share = float(re.search(r"([\d.]+) % of a link", done.stdout)[1])
                print(f"{ranks} ranks: {share} % of the link")
                self.assertGreater(share, 55)

    def test_several_hosts_keep_their_links_full(self):
        """Their link carries 2 S (N - 1) / N bytes of each all-reduce of S; it rests where each message waits for an answer."""
        for hosts, ranks in rounds([(4, 4)], [(8, 8), (4, 8)]):
            with self.subTest(hosts=hosts, ranks=ranks):
                done = on_hosts(hosts, f"{NETNS} mpirun {ranks} {BUILD}/bench/allreduce --mib 4 --pairs 3 --calls 2 --peer none --link-gbit 0.0956", gbit=0.1)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                median_ms = float(re.search(r"([\d.]+) ms", done.stdout)[1])
                wire_ms = 1e3 * 2 * 4 * 2**20 * (hosts - 1) / hosts * 8 / 0.0956e9
                print(f"{ranks} ranks on {hosts} hosts: {median_ms:.0f} ms, {wire_ms:.0f} ms by the link's rate")
                self.assertLess(median_ms / wire_ms, 1.25)

    def test_a_cut_link(self):
        """The ranks end by themselves; mpirun, which has lost its own other half, is ended by the test."""
        for ranks, way in rounds([(4, "window")], [(2, "messages")]):
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                report = pathlib.Path(folder, "report")
                done = on_two_hosts(f"""
                    {NETNS} mpirun {ranks} {BUILD}/tests/dist/bad_day none 0 {way} 3 {report} >{folder}/out &
                    timeout 60 sh -c 'until grep "all well so far" {report}; do sleep 0.1; done'
                    sleep 0.5
                    {NETNS} cut
                    ranks_here() {{ {NETNS} pids | xargs -r ps -o comm= -p | grep bad_day; }}
                    ranks_here | wc -l
                    for second in $(seq 25); do ranks_here >/dev/null || {{ echo all ended; break; }}; sleep 1; done""")
                self.assertIn("all well so far", done.stdout)
                self.assertIn(f"\n{ranks}\n", done.stdout)
                self.assertIn("all ended", done.stdout)
                # Each side names ranks of the other; a note of one of them may have come before the cut.
                self.assertRegex(report.read_text(), r"rank 0 exits with (79|69): .*rank \d \(process \d+ on lockstep-b\)")

    def test_nothing_stays_behind(self):
        before = spaces()
        done = on_two_hosts("exit 3")
        self.assertEqual(done.returncode, 3)
        killed = subprocess.Popen([NETNS, "exec", "sleep", "60"])
        wait_for(lambda: spaces() != before, "the hosts")
        killed.terminate()
        killed.wait(20)
        self.assertEqual(spaces(), before)


if __name__ == "__main__":
    unittest.main()
