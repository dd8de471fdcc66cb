"""Console output: on a terminal a bar below the log, elsewhere lines; --quiet, --json-logs, NO_COLOR, a log file of each rank."""
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import unittest

from harness import ANSWER_S, DIGITS, LOCKSTEPD, SOURCE, LockstepTest, Run, metric, wait_for
import skips

CLEAR = "\r\x1b[K"


class Console(LockstepTest):
    def on_a_terminal(self, *arguments, environment=None):
        """Exit code and all that a terminal shows of a process that no launcher started."""
        screen, terminal = pty.openpty()
        command = [LOCKSTEPD, "--config", DIGITS, "--set", f"run.project_dir={self.folder}/run", "--set", "metrics.listen='127.0.0.1:0'",
                   "--set", "run.threads=1", *arguments]
        process = subprocess.Popen([*map(str, command)], stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, cwd=SOURCE,
                                   env={**os.environ, "TERM": "xterm", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                                        **(environment or {})})
        self.started.append(process)
        os.close(terminal)
        shown = b""
        while select.select([screen], [], [], ANSWER_S)[0]:
            try:
                shown += os.read(screen, 65536)
            except OSError:  # the other end is closed
                break
        os.close(screen)
        return process.wait(ANSWER_S), shown.decode().replace("\r\n", "\n")

    def log_of(self, rank):
        return (self.folder / f"run/logs/rank{rank}.log").read_text()

    def test_a_bar_where_a_person_watches(self):
        code, shown = self.on_a_terminal("--set", "summary.progress_secs=0.5")
        self.assertEqual(code, 0, shown)
        bars = re.findall(r"\[([#-]{20})\] (\d+)%  step (\d+)/690  loss [\d.-]+  \d+ samples/s  ETA [\dms?]+", shown)
        self.assertGreater(len(bars), 3, shown)
        steps = [int(step) for _, _, step in bars]
        self.assertEqual(steps, sorted(steps))
        self.assertGreater(len(set(steps)), 3)
        for cells, percent, step in bars:
            self.assertEqual(int(percent), 100 * int(step) // 690)
            self.assertEqual(cells.count("#"), 20 * int(step) // 690)
        self.assertIn(CLEAR, shown)
        last_line = shown.rstrip("\n").split("\n")[-1]
        self.assertNotIn("%  step", last_line.rpartition(CLEAR)[2], "the bar is gone at the end")
        self.assertNotRegex(shown, r"\[train\] step \d+", "lines are in the file")
        self.assertRegex(self.log_of(0), r"D \[train\] step \d+/690 \(\d+%\)  epoch [\d.]+  loss [\d.]+  lr [\d.e-]+  \d+ samples/s  data \d+%"
                                         r"  all-reduce \d+%  sparsity [\d.]+%  \d+ MiB  ETA \S+")

    def test_warnings_have_a_color_unless_the_person_wants_none(self):
        wrong = {"LOCKSTEP_RUN__SEEED": "1"}  # a warning
        code, shown = self.on_a_terminal("--set", "train.max_steps=2", environment=wrong)
        self.assertEqual(code, 0, shown)
        self.assertRegex(shown, r"\x1b\[33m\S+ W \[config\]")
        code, shown = self.on_a_terminal("--set", "train.max_steps=2", "--resume", "auto", environment={**wrong, "NO_COLOR": "1"})
        self.assertEqual(code, 0, shown)
        self.assertIn(" W [config]", shown)
        self.assertNotIn("\x1b[33m", shown)

    def test_lines_where_nobody_watches_and_a_file_of_each_rank(self):
        run = self.train(2, sets=["summary.progress_secs=0.1", "train.max_steps=120"])
        self.assertRegex(run.log, rf"\[summary\] for TensorBoard: tensorboard --logdir {run.folder}, then http://localhost:6006 in a browser, or with --bind_all http://[\w.-]+:6006 from elsewhere\n")
        self.assertNotIn("ASCII", run.log)
        self.assertNotIn("\x1b", run.log)
        self.assertRegex(run.log, r"I rank 0 \[train\] step \d+/120 .* data \d+%  all-reduce \d+%  .* MiB  ETA \S+\n")
        for rank in (0, 1):
            self.assertIn(f"[start] rank {rank} of 2", self.log_of(rank))
        self.assertEqual(run.log.count("[config] "), run.log.count("rank 0 [config] "), "told once")
        for line in ("digits.yaml, with settings of the command line", "  optimizer: learning_rate=0.1, ", "  run: name=digits, ", "threads=1", "  summary: progress_secs=0.1"):
            self.assertIn(line, run.log)

    def test_C50_a_folder_that_is_not_ASCII_is_warned_of(self):
        run = self.train(1, run="läufe", sets=["train.max_steps=2"])
        self.assertRegex(run.log, r" W \[summary\] \S+/läufe contains non-ASCII characters, .* another run.project_dir")

    def alone(self, *sets, stderr):
        """A run without a recipe in a process without a launcher, since a launcher would read its output."""
        command = [LOCKSTEPD, "--config", DIGITS, "--resume", "never", "--set", f"run.project_dir={self.folder}/run",
                   "--set", "metrics.listen='127.0.0.1:0'", "--set", "run.threads=1", "--set", "recipe=null",
                   *(word for text in sets for word in ("--set", text))]
        process = subprocess.Popen([*map(str, command)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, cwd=SOURCE,
                                   env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        self.started.append(process)
        return Run(process, self.folder / "run")

    def test_training_does_not_wait_for_a_pipe_that_nobody_reads(self):
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        small = ("model={type: mlp, layers: [64, 10]}", "data.global_batch_size=8", "eval.every_epochs=0")  # lines make the work here, more than 1 MiB of them
        run = self.alone("summary.progress_secs=0.000001", "train.max_steps=4000", *small, stderr=writer)
        os.close(writer)
        self.assertEqual(run.wait().code, 0, "it ended, whoever reads")
        os.close(reader)
        self.assertGreater(len(re.findall(r"I \[train\] step \d+/4000 ", self.log_of(0))), 3900, "the file has what the pipe has lost")
        self.assertIn("finished after 4000 steps", self.log_of(0))
        self.assertGreater(metric(run.last_page(0), "lockstep_log_lost_lines_total"), 100)

    def test_training_does_not_wait_for_the_disk_of_the_event_files(self):
        skips.require_tool("strace")
        run = self.alone("train.max_steps=10000000", "summary.save_summary_steps=1", "summary.flush_secs=0", "summary.histogram_steps=1",
                         stderr=subprocess.DEVNULL)
        run.wait_for_step(10)
        writers = [task.parent.name for task in pathlib.Path(f"/proc/{run.process.pid}/task").glob("*/comm") if task.read_text() == "event_file\n"]
        self.assertNotEqual(writers, [])
        trace = self.folder / "calls"
        slow = subprocess.Popen(["strace", "-qq", "-o", trace, "-e", "trace=write", "-e", "inject=write:delay_enter=3000000",
                                 *(word for writer in writers for word in ("-p", writer))])
        self.started.append(slow)
        wait_for(lambda: trace.exists() and trace.stat().st_size > 0, "a write that takes 3 s")
        before = run.status()["step"]
        wait_for(lambda: run.status()["step"] > before + 20, "steps, of which one that waits makes none", 2)
        slow.terminate()
        slow.wait(ANSWER_S)
        run.process.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait().code, 75)

    def test_quiet(self):
        run = self.train(2, sets=["train.max_steps=3"], arguments=["--quiet"])
        self.assertEqual([line for line in run.log.splitlines() if " W rank 0 [recipe] " not in line], [])
        self.assertIn(" I rank 0 [run] ", self.log_of(0))
        run = self.start(1, sets=["train.max_stepz=3"], arguments=["--quiet"]).wait()
        self.assertEqual(run.code, 78)
        self.assertIn("max_stepz", run.log)

    def test_json(self):
        run = self.train(2, sets=["train.max_steps=3"], arguments=["--json-logs"])
        lines = [json.loads(line) for line in run.log.splitlines()]
        self.assertGreater(len(lines), 5)
        for line in lines:
            self.assertEqual(list(line), ["time", "level", "rank", "area", "message"])
        self.assertEqual({line["rank"] for line in lines}, {0, 1})
        for line in self.log_of(1).splitlines():
            self.assertEqual(json.loads(line)["rank"], 1)


if __name__ == "__main__":
    unittest.main()
