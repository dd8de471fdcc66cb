"""`lockstep` itself is linked to no LibTorch: commands that need no tensor start in milliseconds, the others continue as lockstep-tensors."""
import os
import re
import shutil
import subprocess
import unittest

from harness import ANSWER_S, BUILD, DIGITS, LOCKSTEP, LockstepTest, Run, wait_for

NO_TENSORS = (["--help"], ["--version"], ["--man"], ["--completion"], ["run", "--help"], ["new", "recipe"], ["ps", "--queue", "{queue}"],
              ["logs", "1", "--queue", "{queue}"], ["cancel", "1", "--queue", "{queue}"], ["serve", "--queue", "{queue}", "--program", "true", "--max-restarts", "0"])


def needed_by(program):
    """The libraries that the loader opens with it, and their dependencies."""
    return re.findall(r"^\s*(\S+)", subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout, re.MULTILINE)


# Typing mistakes, the exit code, and text that the message must contain.
MISTAKES = (
    ("statsu", 64, ["unknown command 'statsu'", "--help"]),
    ("runn x.yaml", 64, ["unknown command 'runn' (did you mean 'run'?)"]),
    ("new recipee x.yaml", 64, ["unknown command 'recipee' (did you mean 'recipe'?)"]),
    ("run {digits} -n two", 64, ["--ranks: takes a whole number from 1 to 65536, without a unit, not 'two'"]),
    ("run {digits} -n 0", 64, ["from 1 to 65536", "not '0'"]),
    ("run {digits} --grace 30s", 64, ["--grace: takes a number from 0 to 1000000, without a unit, not '30s'"]),
    ("run {digits} --grace nan", 64, ["takes a number", "'nan'"]),
    ("logs --queue q x", 64, ["ID: takes a whole number above 0, without a unit, not 'x'"]),
    ("plan {digits} --scale 4x", 64, ["--scale: takes a whole number from 1 to 65536, without a unit, not '4x'"]),
    ("plan {digits} --scale 2.5", 64, ["--scale: takes a whole number from 1 to 65536", "not '2.5'"]),
    ("plan {digits} --scale 2 --ranks-per-host 4294967296", 64, ["--ranks-per-host: takes a whole number from 1 to 65536", "not '4294967296'"]),
    ("plan {digits} --scale 0", 64, ["--scale: takes a whole number from 1 to 65536", "not '0'"]),
    ("plan {digits} --scale 65537", 64, ["--scale: takes a whole number from 1 to 65536", "not '65537'"]),
    ("plan {digits} --scale 2 --link-gbit 0 --latency-us 1", 64, ["--link-gbit: takes a number from 1e-06 to 1000000000", "not '0'"]),
    ("plan {digits} --scale 2 --link-gbit 1 --latency-us -1", 64, ["--latency-us: takes a number from 0 to 1000000000", "not '-1'"]),
    ("plan {digits} --scale 1 --step-ms nan", 64, ["--step-ms: takes a number from 1e-06 to 1000000000", "not 'nan'"]),
    ("plan {digits} --latency-us 1", 64, ["--latency-us requires --scale"]),
    ("ctl none/run status", 66, ["none/run does not exist", "name the run file, the run's folder (run.project_dir), http://HOST:PORT or unix:PATH"]),
    ("ctl 127.0.0.1:9464 status", 66, ["did you mean 'http://127.0.0.1:9464'?"]),
    ("ctl http://127.0.0.1:1 status", 69, ["http://127.0.0.1:1 does not answer", "no job runs there, or it has another address", "[metrics] in its log"]),
    ("ctl http://127.0.0.1:1 set", 64, ["set takes KEY=VALUE, such as log.level=debug"]),
    ("ctl http://127.0.0.1:1 kill-rank", 64, ["kill-rank takes the number of a rank, such as 1"]),
    ("ctl http://127.0.0.1:1 save now", 64, ["save takes no arguments, not 'now'"]),
    ("serve --queue {folder}/q --listen here", 64, ["--listen here: it takes HOST:PORT, such as 127.0.0.1:9463, or off"]),
    ("serve --queue {folder}/q --token-file none.txt", 66, ["none.txt: no such file in {folder}; correct the path"]),
    ("serve --queue {folder}/q --program /no/such", 66, ["--program /no/such: no such file; name the program of the ranks"]),
    ("serve --queue {folder}/q --program no-such-program", 66, ["--program no-such-program: no folder of PATH contains this file"]),
    ("serve --queue {folder}/q --program {digits}", 66, ["this user may not execute it"]),
    ("serve --queue {folder}/q --hosts {digits}", 64, ["contains a character that host names cannot have", "@FILE"]),
    ("new recipe no/such/x.yaml", 73, ["no/such: no such folder to write to; create it, or name another"]),
    ("run none.yaml", 66, ["none.yaml: no such file in {folder}; correct the path"]),
    ("run {folder}", 66, ["is a folder, not a file"]),
    ("check {digits} --set preemption.signals=[USR1]", 78, ["takes SIGUSR1, SIGUSR2", "not 'USR1' (did you mean 'SIGUSR1'?)"]),
    ("eval {digits} --restore no-such-save", 66, ["checkpoint 'no-such-save' not found"]),
)


class Tool(LockstepTest):
    def call(self, *words, program=LOCKSTEP):
        return subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=ANSWER_S, check=False)

    def test_it_is_linked_to_no_libtorch(self):
        heavy = re.compile(r"lib(torch|c10|mpi|cuda|nccl|protobuf)")
        self.assertEqual([name for name in needed_by(LOCKSTEP) if heavy.match(name)], [])
        self.assertTrue([name for name in needed_by(BUILD / "lib/lockstep/lockstep-tensors") if name.startswith("libtorch")])

    def test_commands_without_tensors_need_no_other_program(self):
        alone, queue = self.folder / "bin/lockstep", self.folder / "queue"
        alone.parent.mkdir()
        shutil.copy(LOCKSTEP, alone)
        self.assertEqual(self.call("submit", "--queue", queue, DIGITS).stdout, "1\n")
        for words in NO_TENSORS:
            done = self.call(*(word.format(queue=queue) for word in words), program=alone)
            self.assertNotIn("cannot be started (", done.stderr, words)
            if words[0] not in ("serve",):  # whose ranks end here before they serve
                self.assertEqual(done.returncode, 0, f"{words}: {done.stderr}")
        for words, code in ((["ctl", self.folder, "status"], 66), (["pss"], 64), (["wait", 9, "--queue", queue], 66)):
            self.assertEqual(self.call(*words, program=alone).returncode, code, words)
        done = self.call("check", DIGITS, program=alone)
        self.assertEqual(done.returncode, 69)
        self.assertIn(f"{self.folder}/lib/lockstep/lockstep-tensors cannot be started (No such file or directory): install it next to this program", done.stderr)

    def test_a_mistake_is_told_with_what_to_do(self):
        for line, code, texts in MISTAKES:
            words = line.format(digits=DIGITS, folder=self.folder).split()
            done = subprocess.run([LOCKSTEP, *words], capture_output=True, text=True, timeout=ANSWER_S, cwd=self.folder, check=False)
            self.assertEqual(done.returncode, code, line + done.stderr)
            for text in texts:
                self.assertIn(text.format(folder=self.folder), done.stdout + done.stderr, line)
            self.assertLess(len(done.stderr.splitlines()), 7, line)
        self.assertEqual(list(self.folder.glob("q/jobs/*")), [], "nothing was begun")
        print(f"\n{len(MISTAKES)} mistakes on the command line")

    def test_the_other_program_is_the_same_process(self):
        run = self.folder / "run"
        process = subprocess.Popen([LOCKSTEP, "run", DIGITS, "--set", f"run.project_dir={run}", "--set", "metrics.listen='127.0.0.1:0'", "--set", "train.max_steps=1000000"],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.started.append(process)
        wait_for(lambda: os.readlink(f"/proc/{process.pid}/exe").endswith("lockstep-tensors"), "the other program")
        Run(process, run).wait_for_step(1)
        process.terminate()
        self.assertIn(process.wait(ANSWER_S), (75, 0))


if __name__ == "__main__":
    unittest.main()
