"""Promises of bench/contests: verdicts, order, waiting, equal losses, cold files."""
import argparse
import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "bench/contests"), str(SOURCE / "bench/peers")]
import contests  # noqa: E402
import page_cache  # noqa: E402
import runs  # noqa: E402
import step_contest  # noqa: E402
from contests import Row  # noqa: E402


def board(num_rounds=3, max_load=1.5, wait=0):
    return contests.Board(argparse.Namespace(rounds=num_rounds, max_load=max_load, wait=wait))


def printed(call):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        call()
    return out.getvalue()


class Verdicts(unittest.TestCase):
    def test_a_goal_that_every_round_reaches_is_met(self):
        self.assertEqual(contests.judge([2.0, 2.1], 2), "met")
        self.assertEqual(contests.judge([0.9, 1.0], 1, at_most=True), "met")

    def test_a_goal_that_no_round_reaches_is_missed(self):
        self.assertEqual(contests.judge([1.9, 1.99], 2), "NOT MET")
        self.assertEqual(contests.judge([1.1, 1.2], 1, at_most=True), "NOT MET")

    def test_a_spread_that_holds_the_goal_is_noise(self):
        self.assertEqual(contests.judge([1.03, 1.08, 1.14], 1.08), "within noise (2 of 3 rounds reach it)")
        self.assertEqual(contests.judge([0.9, 1.1, 1.2], 1, at_most=True), "within noise (1 of 3 rounds reach it)")

    def test_the_ratio_is_the_median_over_rounds(self):
        ours, theirs = [1.0, 1.0, 2.0], [3.0, 5.0, 8.0]  # ratios 3, 5, 4; the ratio of the medians would be 5
        one = board()
        with mock.patch("os.getloadavg", return_value=(0.1, 0, 0)):
            text = printed(lambda: one.hold("c", [contests.over("peer", 2)],
                                            lambda number: {"ours": ours[number], "peer": theirs[number]}))
        self.assertRegex(text, r"peer / ours +4\.00 x \(3\.00 to 5\.00\), goal >= 2: met\n")
        self.assertEqual(one.summary(), "1 goals: 1 met, 0 within noise, 0 NOT MET")

    def test_warm_rounds_do_not_count(self):
        with mock.patch("os.getloadavg", return_value=(0.1, 0, 0)):
            text = printed(lambda: board(2).hold("c", [], lambda number: {"ours": 9.0 if number < 0 else 0.5}, warm_rounds=1))
        self.assertRegex(text, r"ours +500\.00 ms \(500\.00 to 500\.00\)")


class Waiting(unittest.TestCase):
    def hold(self, loads, max_load, wait):
        with mock.patch("os.getloadavg", side_effect=[(load, 0, 0) for load in loads]), mock.patch("contests.POLL_S", 0):
            return printed(lambda: board(1, max_load, wait).hold(
                "c", [Row("a", lambda times: times["a"])], lambda _: {"a": 1.0}))

    def test_it_waits_until_the_load_is_below(self):
        text = self.hold([2.5, 1.5, 1.49], 1.5, 60)
        self.assertIn("c (load 1.49 after a wait of 0 s)", text)
        self.assertNotIn("[load", text)

    def test_rows_at_a_higher_load_are_marked(self):
        text = self.hold([2.5], 1.5, 0)
        self.assertIn("NOT below 1.5", text)
        self.assertIn("x (1.00 to 1.00) [load 2.50]", text)


JOB = runs.Job("job", 8)


class FakePeers:
    """DDP that is fastest with buckets of 4 MB, and whose losses are as given."""

    def __init__(self, losses):
        self.losses, self.asked = losses, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def tune(self, *_):
        return {1: 0.3, 4: 0.1, 25: 0.2}

    def train(self, build, job, mode, bucket_mb):
        self.asked.append((mode, bucket_mb))
        return runs.Steps(0.1, self.losses)


class StepContests(unittest.TestCase):
    def hold(self, losses, num_rounds=2):
        peers = FakePeers(losses)
        ours = runs.Steps(0.05, [1.0] * 9)
        contest = step_contest.StepContest("c", "build", JOB, "place", ["default", "tuned"], [contests.over("DDP tuned", 1)],
                                           keep_25=True)
        with mock.patch("runs.DdpPeers", return_value=peers), mock.patch("runs.lockstep", return_value=ours), \
                mock.patch("os.getloadavg", return_value=(0.1, 0, 0)):
            text = printed(lambda: contest.hold(board(), num_rounds))
        return peers, text

    def test_the_best_bucket_is_named_and_used_and_sides_alternate(self):
        peers, text = self.hold([1.0] * 9)
        self.assertIn("bucket_cap_mb=4 is the best", text)
        self.assertEqual(peers.asked, [("default", None), ("tuned", 4), ("tuned", 25), ("tuned", 25), ("tuned", 4), ("default", None)])
        self.assertRegex(text, r"DDP tuned / ours +2\.00 x .*met")

    def test_losses_that_differ_stop_it(self):
        with self.assertRaisesRegex(SystemExit, "differ by 2.0e-05: nothing was measured"):
            self.hold([1.0] * 7 + [1 / 1.00002] * 2)

    def test_losses_behind_the_eighth_are_not_compared(self):
        self.hold([1.0] * 8 + [2.0])


class PageCache(unittest.TestCase):
    def test_a_dropped_file_is_not_cached(self):
        num_bytes = 8 << 20
        with tempfile.NamedTemporaryFile(dir=SOURCE) as file:
            file.write(os.urandom(num_bytes))
            file.flush()
            self.assertEqual(page_cache.cached_bytes(file.name), num_bytes)
            page_cache.drop(file.name)
            self.assertLess(page_cache.cached_bytes(file.name), num_bytes / 100)


if __name__ == "__main__":
    unittest.main()
