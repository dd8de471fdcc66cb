"""Help at hand: every sub-command and option is in the completion and on the manual page, and each has an example; `lockstep doctor`."""
import functools
import os
import re
import subprocess
import unittest

from harness import ANSWER_S, LOCKSTEP, LOCKSTEPD, SOURCE, LockstepTest


@functools.cache
def said(program, *words):
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=ANSWER_S, check=True).stdout


def parts_of(program, *path):
    """Parts that --help names: sub-commands, and options in all their spellings."""
    commands, options, section = [], [], ""
    for line in said(program, *path, "--help").splitlines():
        if re.match(r"^\w.*:$", line):
            section = line
        elif found := re.match(r"^  (\S+)", line):
            if section == "Subcommands:":
                commands.append(found[1])
            elif section == "Options:" and found[1].startswith("-"):
                options += found[1].split(",")
    return commands, options


def all_commands(program, *path):
    yield path
    for command in parts_of(program, *path)[0]:
        yield from all_commands(program, *path, command)


class Help(LockstepTest):
    def completed(self, script, program, *words):
        """Completions that bash offers for the last of the words."""
        line = " ".join(f"'{word}'" for word in (program, *words))
        done = subprocess.run(["bash", "-c", f'source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _{program}; printf "%s\\n" "${{COMPREPLY[@]}}"'],
                              capture_output=True, text=True, timeout=ANSWER_S, check=True)
        self.assertEqual(done.stderr, "")
        return set(done.stdout.split())

    def test_completion_and_manual_have_all_commands_and_options(self):
        number = 0
        for program in (LOCKSTEP, LOCKSTEPD):
            script = self.folder / f"{program.name}.bash"
            script.write_text(said(program, "--completion"))
            manual = said(program, "--man").replace("\\-", "-")
            for path in all_commands(program):
                commands, options = parts_of(program, *path)
                self.assertIn("--help", options, path)
                offered = self.completed(script, program.name, *path, "")
                self.assertLessEqual({*commands, *options}, offered, f"{program.name} {' '.join(path)}")
                self.assertEqual({word for word in self.completed(script, program.name, *path, "--h")}, {word for word in offered if word.startswith("--h")})
                for option in options:
                    self.assertRegex(manual, rf"(?m)^\\fB(.*,)?{re.escape(option)}[, \\]", f"{path} {option}")
                if path:
                    self.assertIn(f'.SS "{program.name} {" ".join(path)}"', manual)
                number += len(commands) + len(options)
        self.assertGreater(number, 150)
        print(f"\n{number} sub-commands and options are completed by bash and stand on the manual pages")

    def test_positions_behind_options_and_files_do_not_confuse_it(self):
        script = self.folder / "lockstep.bash"
        script.write_text(said(LOCKSTEP, "--completion"))
        self.assertEqual(self.completed(script, "lockstep", "ckpt", "ls", "run", "--j"), {"--json"})
        self.assertEqual(self.completed(script, "lockstep", "su"), {"submit"})
        self.assertEqual(self.completed(script, "lockstep", "run", "configs/digits.yaml", "--ranks", "2", "--max"), {"--max-restarts"})

    def test_the_manual_is_sound(self):
        man = subprocess.run(["sh", "-c", "command -v man"], capture_output=True, check=False)
        for program in (LOCKSTEP, LOCKSTEPD):
            text = said(program, "--man")
            self.assertTrue(text.startswith(f".TH {program.name} 1 "), text[:80])
            for section in ("NAME", "SYNOPSIS", "OPTIONS", "COMMANDS", "NOTES"):
                self.assertIn(f".SH {section}\n", text)
            if man.returncode == 0:
                path = self.folder / f"{program.name}.1"
                path.write_text(text)
                shown = subprocess.run(["man", "--warnings", "-l", path], capture_output=True, text=True, env={**os.environ, "MANPAGER": "cat", "LC_ALL": "C.UTF-8"}, check=True)
                self.assertEqual(shown.stderr, "")
                self.assertIn("--version", shown.stdout.replace("‐", "-"))

    def test_each_command_shows_examples_of_its_own_and_no_others(self):
        for path in all_commands(LOCKSTEP):
            shown = re.findall(r"(?m)^  (lockstep .*)$", said(LOCKSTEP, *path, "--help"))
            self.assertTrue(shown, f"{path} has no example")
            for line in shown:
                self.assertTrue(line.startswith(" ".join(("lockstep", *path)) + " "), f"{path} shows '{line}'")

    def test_a_word_that_no_command_knows_is_a_usage_error(self):
        for program in (LOCKSTEP, LOCKSTEPD):
            for path in all_commands(program):
                done = subprocess.run([program, *path, "--no-such-option"], capture_output=True, text=True, timeout=ANSWER_S, check=False)
                self.assertEqual(done.returncode, 64, f"{path}: {done.stderr}")
                self.assertEqual(done.stdout, "")

    def test_each_command_that_starts_or_asks_a_run_has_an_example(self):
        for path in (("run",), ("ctl",), ("doctor",), ("serve",), ("submit",), ("ps",), ("logs",), ("cancel",), ("wait",), ("launch", "slurm"), ("launch", "kubernetes")):
            self.assertIn("Example:\n  lockstep " + " ".join(path), said(LOCKSTEP, *path, "--help"))
        for path in (("serve",), ("doctor",)):
            self.assertIn("Example:\n  mpirun -n 2 lockstepd " + path[0], said(LOCKSTEPD, *path, "--help"))


class Doctor(LockstepTest):
    def doctor(self, *arguments, expect=0, environment=None):
        done = subprocess.run([LOCKSTEP, "doctor", *map(str, arguments)], capture_output=True, text=True, timeout=ANSWER_S, cwd=SOURCE,
                              env={**os.environ, **(environment or {})}, check=False)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout

    def test_a_sound_host(self):
        text = self.doctor("-n", 3)
        for what in ("lockstep ", "cores", "memory", "/dev/shm", "mpirun", "srun", "lockstepd", "GPUs", "ranks", "programs", "devices"):
            self.assertRegex(text, rf"(?m)^(ok|note) +{re.escape(what)}")
        links = re.findall(r"(?m)^(?:ok|note) +link (\d)-(\d) +([\d.]+) us, ([\d.]+) GB/s \(in ", text)
        self.assertEqual([(first, second) for first, second, _, _ in sorted(links)], [("0", "1"), ("0", "2"), ("1", "2")])
        for _, _, latency, bandwidth in links:
            self.assertGreater(float(latency), 0)
            self.assertGreater(float(bandwidth), 0)
        print(f"\n{text}")

    def test_who_is_busy_on_a_gpu_is_named(self):
        smi = self.folder / "nvidia-smi"
        smi.write_text("#!/bin/sh\n[ \"$1\" = --query-compute-apps=gpu_uuid,pid,process_name,used_memory ] && echo 'GPU-1f, 812, /usr/bin/python3, 12000'\n")
        smi.chmod(0o755)
        text = self.doctor("-n", 1, environment={"PATH": f"{self.folder}:{os.environ['PATH']}"})
        self.assertRegex(text, r"(?m)^note +GPUs +GPU-1f is busy with process 812 \(python3, 12000 MiB\)\n +what to do: end it, or exclude that GPU")

    def test_what_stops_a_run_is_a_fault_with_a_cure(self):
        empty = self.folder / "empty"
        empty.mkdir()
        for tool in ("sh", "ssh"):
            (empty / tool).symlink_to(f"/usr/bin/{tool}")
        text = self.doctor(expect=69, environment={"PATH": str(empty)})
        self.assertRegex(text, r"(?m)^FAULT +mpirun +is not in PATH\n +what to do: install Open MPI")
        self.assertIn("no ranks are started until that is fixed", text)
        text = self.doctor("--program", "/bin/false", expect=69)
        self.assertRegex(text, r"(?m)^FAULT +lockstepd +/bin/false")
        text = self.doctor(expect=69, environment={"TMPDIR": "/proc"})
        self.assertRegex(text, r"(?m)^FAULT +temporary folder .*\n +what to do: set TMPDIR")

    def test_ranks_that_cannot_start_are_a_fault(self):
        text = self.doctor("--hosts", "no-such-host.invalid:2", expect=69)
        self.assertRegex(text, r"(?m)^FAULT +ranks +mpirun ended with \d+: ")


if __name__ == "__main__":
    unittest.main()
