"""A rank that dies, hangs or does something else: the others end in time, with an exit code that says which, and name it."""
import os
import pathlib
import re
import subprocess
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD"])
PROGRAM = BUILD / "tests/dist/bad_day"
TIMEOUT_S = 2
WAYS = {"window": 3, "messages": 3, "hosts": 4, "tree": 4}


def start(what, victim, way, ranks):
    """Exit code, what mpirun printed and ranks reported, and seconds until it ended."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report")
        command = [SOURCE / "launch/mpirun.sh", ranks, PROGRAM, what, victim, way, TIMEOUT_S, report]
        begin = time.monotonic()
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
        reported = report.read_text() if report.exists() else ""
        return done.returncode, done.stdout + done.stderr + reported, time.monotonic() - begin


def unexplained(output, victim):
    """Reports that blame the wrong rank. Who waited to the end names the victim. Who came to the call later may first see that one of those
    gave up, and names it. mpirun lets a stopped rank go on before it ends it, so the victim may complain too: it does not count."""
    reports = re.findall(r"^rank (\d+) exits with (\d+): .*?rank (\d+) \(process", output, re.MULTILINE)
    gave_up = {rank for rank, code, named in reports if code == "79" and named == victim}
    wrong = [(rank, named) for rank, code, named in reports
             if rank != victim and named != victim and not (code == "69" and named in gave_up)]
    return wrong if gave_up else [("nobody", "named the victim")]


class BadDays(unittest.TestCase):
    def check(self, what, way, victim, code, *expected):
        with self.subTest(what=what, way=way, victim=victim):
            ended, output, seconds = start(what, victim, way, WAYS[way])
            if code is not None:  # mpirun --enable-recovery returns 0 whatever happens
                self.assertEqual(ended, code, output)
            self.assertIn("all well so far", output)
            for text in expected:
                self.assertRegex(output, text)
            self.assertLess(seconds, 30)
            return output

    def test_a_rank_that_hangs(self):
        for way, ranks in WAYS.items():
            for victim in (0, ranks - 1):
                output = self.check("stop", way, victim, 79, r"all_reduce of 1000003 Float \(sum\), call 4: waited \d")
                self.assertEqual(unexplained(output, str(victim)), [], output)

    def test_a_rank_that_hangs_within_a_call(self):
        for way, ranks in WAYS.items():
            named = r"\d" if way == "tree" else ranks - 1  # in mid-call ranks wait for each other in chains
            self.check("stop-amid", way, ranks - 1, 79, rf"waited \d.*rank {named} \(process")

    def test_a_rank_with_another_size(self):
        for way, ranks in WAYS.items():
            self.check("size", way, ranks - 1, 76, "ranks make different calls",
                       f"rank {ranks - 1}: all_reduce of 1000004 Float", "rank [0-9]: all_reduce of 1000003 Float")

    def test_a_rank_that_makes_another_call(self):
        for way, ranks in WAYS.items():
            self.check("call", way, ranks - 1, 76, "ranks make different calls", f"rank {ranks - 1}: barrier")

    def test_a_rank_that_is_killed(self):
        """mpirun itself ends the others."""
        for way, ranks in WAYS.items():
            ended, output, seconds = start("kill", ranks - 1, way, ranks)
            self.assertNotEqual(ended, 0, output)
            self.assertLess(seconds, 20)

    def test_a_rank_that_is_killed_where_nobody_tells_the_others(self):
        os.environ["LOCKSTEP_MPIRUN_ARGS"] = "--enable-recovery"
        self.addCleanup(os.environ.pop, "LOCKSTEP_MPIRUN_ARGS")
        for way, ranks in WAYS.items():
            self.check("kill", way, ranks - 1, None, "exits with 69",
                       rf"rank {ranks - 1} \(process \d+ on .*\) ended before it: a peer is lost")

    def test_a_rank_that_is_lost_in_a_step(self):
        """The others name it, and the bucket that they wait for."""
        bucket = r" \(while reducing bucket 1 of 5: layers.3.weight\)"
        os.environ["LOCKSTEP_MPIRUN_ARGS"] = "--enable-recovery"
        self.addCleanup(os.environ.pop, "LOCKSTEP_MPIRUN_ARGS")
        for share in ("step", "share"):
            for way, ranks in WAYS.items():
                self.check(f"kill-{share}", way, ranks - 1, None, "exits with 69", rf"rank {ranks - 1} \(process .* a peer is lost.*{bucket}")
            self.check(f"stop-{share}", "window", 1, None, "exits with 79", rf"rank 1 \(process.*{bucket}")


if __name__ == "__main__":
    unittest.main()
