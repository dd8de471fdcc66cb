"""`lockstep` itself is linked to no LibTorch: commands that need no tensor start in milliseconds, the others go on as lockstep-tensors."""
import os
import re
import shutil
import subprocess
import unittest

from harness import ANSWER_S, BUILD, DIGITS, LOCKSTEP, LockstepTest, Run, wait_for

NO_TENSORS = (["--help"], ["--version"], ["--man"], ["--completion"], ["run", "--help"], ["new", "recipe"], ["ps", "--queue", "{queue}"],
              ["logs", "1", "--queue", "{queue}"], ["cancel", "1", "--queue", "{queue}"], ["serve", "--queue", "{queue}", "--program", "true", "--max-restarts", "0"])


def needed_by(program):
    """The libraries that the loader opens with it, and what these need."""
    return re.findall(r"^\s*(\S+)", subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout, re.MULTILINE)


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
        for words, code in ((["ctl", self.folder, "status"], 66), (["trace", "merge", self.folder, "-o", "x.json"], 66), (["pss"], 64), (["wait", 9, "--queue", queue], 66)):
            self.assertEqual(self.call(*words, program=alone).returncode, code, words)
        done = self.call("check", DIGITS, program=alone)
        self.assertEqual(done.returncode, 69)
        self.assertIn(f"{self.folder}/lib/lockstep/lockstep-tensors cannot be started (No such file or directory): install it beside this program", done.stderr)

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
