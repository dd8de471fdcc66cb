"""A signal at any moment between exec and exit: the exit code is documented, and every launcher interprets it correctly."""
import fcntl
import os
import signal
import subprocess
import time
import unittest

from counts import count, counted
from harness import ANSWER_S, ENDLESS, LOCKSTEPD, SOURCE, wait_for
from launch_test import is_heard
from soak import rounds
from supervised import SupervisedTest

SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
SHORT = ["train.max_steps=20", "eval.every_epochs=0", "checkpoint.save_checkpoints_steps=1000000", "run.threads=1", "metrics.listen='off'"]


def moments(number):
    return [((place + 0.5) / number, SIGNALS[place % len(SIGNALS)]) for place in range(number)]


class Moments(SupervisedTest):
    def alone(self, name):
        """One rank without a launcher."""
        words = [LOCKSTEPD, "--config", ENDLESS, "--set", f"run.project_dir={self.folder / name}", *(word for one in SHORT for word in ("--set", one))]
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        process = subprocess.Popen([*map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=SOURCE,
                                   env=environment)
        self.started.append(process)
        return process

    def supervised(self, name):
        return self.supervise(config=ENDLESS, run=name, sets=SHORT).process

    def struck(self, process, after_s, number):
        """Its exit code, whether it could handle the signal when that came, and its output."""
        try:
            process.wait(after_s)
            return process.returncode, True, ""
        except subprocess.TimeoutExpired:
            pass
        try:
            heard = is_heard(process.pid, number)
        except OSError:
            heard = True
        process.send_signal(number)
        said = process.communicate(timeout=ANSWER_S)
        return process.returncode, heard, said

    def duration_s(self, start):
        begin = time.monotonic()
        process = start("whole")
        process.communicate(timeout=ANSWER_S)
        self.assertEqual(process.returncode, 0)
        return time.monotonic() - begin

    def strike(self, start, number_of_moments, what):
        whole_s = 1.05 * self.duration_s(start)
        for place, (share, number) in enumerate(counted(f"signals at moments of {what} ended in a code that launchers know", moments(number_of_moments))):
            code, heard, said = self.struck(start(str(place)), share * whole_s, number)
            where = f"{number.name} after {share * whole_s:.2f} s: {code} {said}"
            if heard:
                self.assertIn(code, (0,) if number == signal.SIGUSR2 else (0, 75), where)
            else:  # while the system still loads the program
                self.assertIn(code, (0, 75, -number), where)
                count(f"of them before the program could take {what}'s signals")

    def test_of_a_rank(self):
        self.strike(self.alone, rounds([10], [200])[-1], "a rank")

    def test_of_a_supervised_run(self):
        self.strike(self.supervised, rounds([6], [200])[-1], "a supervised run")

    def test_after_the_end_is_written_a_signal_changes_nothing(self):
        """A rank whose log is not read flushes it for a while after its summary: a launcher that ends the others meanwhile must not change its code."""
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        words = [LOCKSTEPD, "--config", ENDLESS, "--set", f"run.project_dir={self.folder / 'run'}", "--set", "summary.progress_secs=0.000001",
                 *(word for one in SHORT[1:] for word in ("--set", one))]
        process = subprocess.Popen([*map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=writer, cwd=SOURCE,
                                   env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        self.started.append(process)
        os.close(writer)
        wait_for(lambda: (self.folder / "run/train/steps.csv").exists() and (self.folder / "run/train/steps.csv").stat().st_size > 8192, "steps")
        process.send_signal(signal.SIGUSR1)
        wait_for((self.folder / "run/summary.json").exists, "the summary")
        while process.poll() is None:  # until it has ended by itself
            process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        os.close(reader)
        self.assertEqual(process.returncode, 75)


if __name__ == "__main__":
    unittest.main()
