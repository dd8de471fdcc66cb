"""A rank that dies, hangs or does something else: the others end in time, with an exit code that says which, and name it."""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCE / "tests/support"))
from patience import within  # noqa: E402

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD"])
PROGRAM = BUILD / "tests/dist/bad_day"
TIMEOUT_S = 2
WAYS = {"window": 3, "messages": 3, "hosts": 4, "tree": 4}


def start(what, victim, way, ranks):
    """Exit code, and what mpirun printed and ranks reported."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report")
        command = [SOURCE / "launch/mpirun.sh", ranks, PROGRAM, what, victim, way, TIMEOUT_S, report]
        with within(30, "the end of all ranks"):
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        reported = report.read_text() if report.exists() else ""
        return done.returncode, done.stdout + done.stderr + reported


def unexplained(output, victim):
    """Reports that blame the wrong rank. Who waited to the end names the victim. Who came to the call later may first see that one of those
    gave up, and names it. mpirun lets a stopped rank go on before it ends it, so the victim may complain too: it does not count."""
    reports = re.findall(r"^rank (\d+) exits with (\d+): .*?rank (\d+) \(process", output, re.MULTILINE)
    gave_up = {rank for rank, code, named in reports if code == "79" and named == victim}
    wrong = [(rank, named) for rank, code, named in reports
             if rank != victim and named != victim and not (code == "69" and named in gave_up)]
    return wrong if gave_up else [("nobody", "named the victim")]


def start_all(cases, in_turn=4):
    """start() of each case (what, victim, way), so many at once: they mostly wait."""
    with concurrent.futures.ThreadPoolExecutor(in_turn) as pool:
        return list(pool.map(lambda case: start(*case, WAYS[case[2]]), cases))


def last_rank_of_each(*whats):
    return [(what, ranks - 1, way) for what in whats for way, ranks in WAYS.items()]


class BadDays(unittest.TestCase):
    def check(self, case, outcome, code, *expected):
        ended, output = outcome
        with self.subTest(case=case):
            if code is not None:  # mpirun --enable-recovery returns 0 whatever happens
                self.assertEqual(ended, code, output)
            self.assertIn("all well so far", output)
            for text in expected:
                self.assertRegex(output, text)

    def check_all(self, cases, code, *expected):
        """`expected` may hold {victim}, the rank that fails."""
        for case, outcome in zip(cases, start_all(cases)):
            self.check(case, outcome, code, *(text.replace("{victim}", str(case[1])) for text in expected))

    def with_recovery(self):
        """mpirun then leaves the others running."""
        os.environ["LOCKSTEP_MPIRUN_ARGS"] = "--enable-recovery"
        self.addCleanup(os.environ.pop, "LOCKSTEP_MPIRUN_ARGS")

    def test_a_rank_that_hangs(self):
        cases = [("stop", victim, way) for way, ranks in WAYS.items() for victim in (0, ranks - 1)]
        for case, outcome in zip(cases, start_all(cases)):
            self.check(case, outcome, 79, r"all_reduce of 1000003 Float \(sum\), call 4: waited \d")
            self.assertEqual(unexplained(outcome[1], str(case[1])), [], outcome[1])

    def test_a_rank_that_hangs_within_a_call(self):
        cases = last_rank_of_each("stop-amid")
        for case, outcome in zip(cases, start_all(cases)):
            named = r"\d" if case[2] == "tree" else case[1]  # in mid-call ranks wait for each other in chains
            self.check(case, outcome, 79, rf"waited \d.*rank {named} \(process")

    def test_a_rank_with_another_size(self):
        self.check_all(last_rank_of_each("size"), 76, "ranks make different calls",
                       "rank {victim}: all_reduce of 1000004 Float", "rank [0-9]: all_reduce of 1000003 Float")

    def test_a_rank_that_makes_another_call(self):
        self.check_all(last_rank_of_each("call"), 76, "ranks make different calls", "rank {victim}: barrier")

    def test_a_rank_that_is_killed(self):
        """mpirun itself ends the others."""
        for ended, output in start_all(last_rank_of_each("kill")):
            self.assertNotEqual(ended, 0, output)

    def test_a_rank_that_is_killed_where_nobody_tells_the_others(self):
        self.with_recovery()
        self.check_all(last_rank_of_each("kill"), None, "exits with 69",
                       r"rank {victim} \(process \d+ on .*\) ended before joining it: a peer is lost")

    def test_a_rank_that_is_lost_while_all_gather(self):
        both_ends = [(what, victim, way) for what in ("call-gather", "stop-gather") for way in ("hosts", "window") for victim in (0, WAYS[way] - 1)]
        calls, stops = both_ends[:4], both_ends[4:]
        self.check_all(calls, 76, "ranks make different calls", "rank {victim}: barrier", "rank [0-9]: all_gather of 1000003 Float")
        self.check_all(stops, 79, r"all_gather of 1000003 Float, call \d+: waited \d.*rank {victim} \(process")
        self.with_recovery()
        self.check_all(last_rank_of_each("kill-gather"), None, "exits with 69", r"rank {victim} \(process \d+ on .*\) ended before joining it: a peer is lost")

    def test_a_rank_that_is_lost_in_a_step(self):
        """The others name it, and the bucket that they wait for."""
        bucket = r" \(while reducing bucket 1 of 5: layers.3.weight\)"
        self.with_recovery()
        self.check_all(last_rank_of_each("kill-step", "kill-share"), None, "exits with 69",
                       r"rank {victim} \(process .* a peer is lost.*" + bucket)
        self.check_all([("stop-step", 1, "window"), ("stop-share", 1, "window")], None, "exits with 79",
                       r"rank 1 \(process.*" + bucket)


if __name__ == "__main__":
    unittest.main()
