"""Two hosts and a link between them (tools/netns): it is used in both directions, and a rank behind a cut is named."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/support"))
from skips import require_tool, skip

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD"])
NETNS = SOURCE / "tools/netns"
NOT_PERMITTED = 77


def on_two_hosts(script, gbit=1):
    return subprocess.run([NETNS, "exec", "--gbit", str(gbit), "bash", "-c", script], capture_output=True, text=True, timeout=150)


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
        for ranks in (2, 3, 4):
            with self.subTest(ranks=ranks):
                done = on_two_hosts(f"{NETNS} mpirun {ranks} {BUILD}/tests/dist/dist_rank_test "
                                    "--gtest_filter=*KeepsTheContract/Shared*", gbit=10)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def share_of_link(self, ranks):
        """Percent of what the link carries, median of 3 all-reduces in one start."""
        done = on_two_hosts(f"{NETNS} mpirun {ranks} {BUILD}/bench/allreduce --mib 8 --pairs 3 --peer none --link-gbit 0.0956", gbit=0.1)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return float(re.search(r"([\d.]+) % of a link", done.stdout)[1])

    def test_both_directions_can_carry_at_once(self):
        """That the setting behind it is in force, not how often it helps. Of 10 starts with one connection, none was above
        77 %; of 10 with two, 9 were above 87 % and one at 66 %, on a busy machine. So one of three starts must pass 80 %."""
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                shares = []
                while len(shares) < 3 and max(shares, default=0) < 80:
                    shares.append(self.share_of_link(ranks))
                self.assertGreaterEqual(max(shares), 80, f"percent of the link in each start: {shares}")

    def test_a_cut_link(self):
        """The ranks end by themselves; mpirun, which has lost its own other half, is ended by the test."""
        for ranks, way in ((2, "messages"), (4, "window")):
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                report = pathlib.Path(folder, "report")
                done = on_two_hosts(f"""
                    {NETNS} mpirun {ranks} {BUILD}/tests/dist/bad_day none 0 {way} 3 {report} >{folder}/out &
                    until grep "all well so far" {folder}/out; do sleep 0.1; done
                    sleep 0.5
                    {NETNS} cut
                    ranks_here() {{ {NETNS} pids | xargs -r ps -o comm= -p | grep bad_day; }}
                    ranks_here | wc -l
                    for second in $(seq 25); do ranks_here >/dev/null || {{ echo all ended; break; }}; sleep 1; done""")
                self.assertIn("all well so far", done.stdout)
                self.assertIn(f"\n{ranks}\n", done.stdout)
                self.assertIn("all ended", done.stdout)
                # Each side names ranks of the other, of which host b has the second half.
                self.assertRegex(report.read_text(), rf"rank 0 exits with (79|69): .*rank {ranks // 2} \(process \d+ on lockstep-b\)")

    def test_nothing_stays_behind(self):
        before = spaces()
        done = on_two_hosts("exit 3")
        self.assertEqual(done.returncode, 3)
        killed = subprocess.Popen([NETNS, "exec", "sleep", "60"])
        time.sleep(1)
        killed.terminate()
        killed.wait(20)
        self.assertEqual(spaces(), before)


if __name__ == "__main__":
    unittest.main()
