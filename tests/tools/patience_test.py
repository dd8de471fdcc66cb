"""tests/support/patience.py: limits hold, and time in which programs waited for a processor does not count."""
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import patience

NEVER = "no such thing"


class Limits(unittest.TestCase):
    def stalled(self, *values):
        """The kernel's answers, the last one again and again."""
        answers = iter(values)
        return unittest.mock.patch.object(patience, "stalled_s", lambda: next(answers, values[-1]))

    def test_the_kernel_is_asked(self):
        with tempfile.NamedTemporaryFile("w") as file, unittest.mock.patch.object(patience, "PRESSURE", file.name):
            file.write("some avg10=51.01 avg60=40.00 avg300=14.47 total=54690631\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
            file.flush()
            self.assertEqual(patience.stalled_s(), 54.690631)
        with unittest.mock.patch.object(patience, "PRESSURE", "/no/such/file"):
            self.assertEqual(patience.stalled_s(), 0)

    def test_a_limit_that_has_passed_fails(self):
        with self.stalled(0), self.assertRaisesRegex(AssertionError, "a thing took .* s, 0 s and 0.0 s for want of a processor"):
            with patience.within(0, "a thing"):
                pass
        with self.stalled(0), self.assertRaisesRegex(AssertionError, f"waited for {NEVER}"):
            patience.wait_for(lambda: False, NEVER, 0.05)

    def test_a_wait_for_a_processor_does_not_count(self):
        with self.stalled(10, 10.2), patience.within(0.1, "a thing") as limit:
            patience.wait_for(lambda: limit.passed_s() > 0.15, "more than the limit")

    def test_a_busy_machine_does_not_wait_without_end(self):
        with self.stalled(0, 1e9):
            self.assertEqual(patience.Patience(2).allowed_s(), 16)

    def test_a_factor_is_for_sanitizers(self):
        with self.stalled(0), unittest.mock.patch.object(patience, "FACTOR", 10):
            self.assertEqual(patience.Patience(2).allowed_s(), 20)

    def test_what_stays_is_looked_at_for_longer_on_a_busy_machine(self):
        looks = []
        with self.stalled(0, 0.1):
            patience.stays(lambda: looks.append(1) or True, "a thing", 0.1)
        self.assertGreater(len(looks), 1)
        with self.stalled(0), self.assertRaisesRegex(AssertionError, "a thing: no longer after"):
            patience.stays(lambda: False, "a thing", 1)

    def test_what_a_process_prints_is_whole_though_it_is_late(self):
        with self.stalled(0, 3):
            process = subprocess.Popen(["sh", "-c", "echo first; sleep 0.4; echo second"], stdout=subprocess.PIPE, text=True)
            self.assertEqual(patience.communicate(process, 0.4), "first\nsecond\n")
        process = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE, text=True)
        with self.stalled(0), self.assertRaises(subprocess.TimeoutExpired):
            patience.communicate(process, 0.1)
        process.kill()
        process.communicate()


if __name__ == "__main__":
    unittest.main()
