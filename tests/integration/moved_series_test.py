"""Every series of docs/metrics.md is changed by a real run of some test. CTest runs this after all the others of its folder."""
import os
import pathlib
import sys
import tempfile
import unittest

import moved_series

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skips

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD"])
# Files whose runs move what those of others do not.
NEEDED = ("callbacks_test", "console_test", "evaluation_test", "files_test", "last_scrape_test", "observe_test", "resume_test", "scope_test")
# The same of tests/slow_tests.txt, and the series: not looked at where `make test` has left these out.
SLOW = {"precision_test": {"lockstep_gradient_norm", "lockstep_loss_scale", "lockstep_nonfinite_steps_total"}, "quantize_test": {"lockstep_quantized_layers"}}


class MovedSeries(unittest.TestCase):
    def test_a_page_tells_what_has_moved(self):
        page = "# TYPE a_total counter\na_total 3\n# TYPE b gauge\nb 0\n# TYPE c histogram\nc_bucket{le=\"1\"} 0\nc_sum 0.5\nc_count 1\n" \
               "# TYPE d gauge\nd{x=\"1 2\"} 0\nd{x=\"3\"} -1\n"
        self.assertEqual(moved_series.moved_on(page), {"a_total", "c", "d"})

    def test_what_older_programs_have_moved_does_not_count(self):
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder)
            for name in ("bin/lockstepd", "moved_series/observe_test.txt", "moved_series/files_test.txt", "moved_series/gone_test.txt"):
                (build / name).parent.mkdir(exist_ok=True)
                (build / name).write_text("")
            os.utime(build / "moved_series/files_test.txt", (1e9, 1e9))
            moved_series.remove_what_is_old(build)
            self.assertEqual([path.name for path in (build / "moved_series").iterdir()], ["observe_test.txt"])

    def test_every_excuse_is_of_a_series(self):
        self.assertEqual(set(moved_series.EXCUSED) - set(moved_series.all_series(BUILD)), set())

    def test_every_series_is_moved(self):
        moved_series.remove_what_is_old(BUILD)
        def is_missing(name):
            return not (BUILD / "moved_series" / f"{name}.txt").exists()
        if missing := [name for name in NEEDED if is_missing(name)]:
            skips.skip(f"not run in this build folder: {', '.join(missing)}")
        slow = set().union(*(series for name, series in SLOW.items() if is_missing(name)))
        self.assertEqual([name for name in moved_series.unmoved(BUILD) if name not in slow], [], "no test of tests/integration moves these")


if __name__ == "__main__":
    unittest.main()
