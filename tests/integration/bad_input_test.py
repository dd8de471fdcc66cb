"""Bad input: the error names the place and the fix, nothing is started, nothing is changed."""
import os
import re
import subprocess
import unittest

from harness import DIGITS, SOURCE, LockstepTest

GOOD = DIGITS.read_text().replace("recipes/", f"{SOURCE}/configs/recipes/")


class BadInput(LockstepTest):
    def check(self, text, *expected, code=78):
        path = self.folder / "run.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        output = self.tool("check", path, expect=code)
        for part in expected:
            self.assertIn(part, output)
        return output

    def replace(self, old, new):
        self.assertIn(old, GOOD)
        return GOOD.replace(old, new)

    def test_the_good_file_passes(self):
        self.assertIn("690 steps in all", self.check(GOOD, code=0))

    def test_documents(self):
        self.tool("check", self.folder / "absent.yaml", expect=66)
        self.check("", "run.yaml: error: is empty")
        self.check(GOOD + "---\nversion: 1.0.0\n", "second document")
        self.check(GOOD + "eval:\n\tevery_epochs: 1\n", "this line contains a tab")
        self.check(GOOD + "version: 1.0.0\n", ":16:1: error: duplicate key 'version'")
        self.check(b"run: {name: \xff}\n", "not valid UTF-8")

    def test_keys_and_values(self):
        output = self.check(self.replace("learning_rate: 0.1", "learning_rat: 0.1"),
                            "run.yaml:10:30: error: unknown key 'learning_rat' in 'optimizer' (did you mean 'learning_rate'?)",
                            "1 error; nothing was started")
        caret = output.splitlines()[output.splitlines().index(next(line for line in output.splitlines() if "learning_rat" in line and line.startswith("  "))) + 1]
        self.assertEqual(caret.strip(), "^")
        self.check(self.replace("learning_rate: 0.1", "learning_rate: .nan"), "'optimizer.learning_rate' must be a finite decimal number")
        self.check(self.replace("global_batch_size: 64", "global_batch_size: many"), "'data.global_batch_size' must be a whole number, not 'many'")
        self.check(self.replace("type: digits_net", "type: digit_net"), "did you mean 'digits_net'")
        self.check(self.replace("name: digits,", ""), "'run.name' is required")
        self.check(GOOD.replace("recipe: ", "#"), "the length of the training is unknown")
        self.check(self.replace("{type: momentum", "{type: adam"), "unknown key 'momentum' in 'optimizer'")

    def test_all_faults_in_one_pass(self):
        text = self.replace("learning_rate: 0.1", "learning_rate: -1").replace("seed: 17", "seed: x").replace("every_epochs: 5", "every_epoch: 5")
        self.check(text, "3 errors; nothing was started")
        twice = self.check(text + "version: 1.0.0\n", "duplicate key 'version'", "4 errors; nothing was started")
        self.assertIn("unknown key 'every_epoch'", twice)

    def test_recipes(self):
        recipe = self.folder / "recipe.yaml"
        text = GOOD.replace(f"{SOURCE}/configs/recipes/digits_prune.yaml", str(recipe))
        self.check(text, "recipe.yaml")  # does not exist
        recipe.write_text("version: 1.0.0\nmodifiers:\n  - !GradualKSModifier {params: ['blocks.9.conv'], init_sparsity: 0.05, "
                          "final_sparsity: 0.8, start_epoch: 0, end_epoch: 5, update_frequency: 1}\n")
        self.check(text, "recipe.yaml:3:", "blocks.9.conv", "blocks.0.conv")
        recipe.write_text("version: 1.0.0\nmodifiers:\n  - !GradualKSModifer {params: __ALL__}\n")
        self.check(text, "recipe.yaml:3:", "did you mean", "GradualKSModifier")

    def test_data(self):
        short = self.folder / "short.csv"
        whole = (SOURCE / "data/digits/digits.csv").read_text()
        short.write_text(whole[:5000])
        self.check(self.replace("split: train", f"split: train, path: {short}"), "short.csv:", "truncated", code=65)
        self.check(self.replace("split: train", "split: train, path: /nonexistent.csv"), "/nonexistent.csv", code=66)

    def test_overrides_and_environment(self):
        self.tool("check", DIGITS, "--set", "optimizer.learning_rate", expect=64)
        output = self.tool("check", DIGITS, "--set", "optimizer.learning_rat=3", expect=78)
        self.assertIn("did you mean 'optimizer.learning_rate'", output)
        os.environ["LOCKSTEP_TRAIN_MAX_STEPS"] = "77"
        self.addCleanup(os.environ.pop, "LOCKSTEP_TRAIN_MAX_STEPS")
        self.assertIn("77 steps in all", self.tool("check", DIGITS))
        self.assertIn("33 steps in all", self.tool("check", DIGITS, "--set", "train.max_steps=33"))  # flags win
        for name, value in (("LOCKSTEP_VERSION", "0.1.0"), ("LOCKSTEP_TRAIN_MAX_STPS", "3")):
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name)
        warned = self.tool("check", DIGITS)
        self.assertIn("warning: LOCKSTEP_TRAIN_MAX_STPS in the environment is not a key of the run file and is ignored "
                      "(did you mean LOCKSTEP_TRAIN_MAX_STEPS?)", warned)
        self.assertEqual(warned.count("warning: LOCKSTEP"), 1)
        self.assertIn("[config] LOCKSTEP_TRAIN_MAX_STPS in the environment", self.train(2, sets=["train.max_steps=1"]).log)

    def test_command_lines(self):
        self.assertIn("did you mean 'check'", self.tool("chek", expect=64))
        self.tool("check", expect=64)
        for words in (["ckpt", "ls", self.folder], ["ckpt", "verify", self.folder], ["curves", self.folder]):
            self.assertIn("estimator flags go after -- and work only with run, launch, submit, check, plan, eval and sensitivity", self.tool(*words, "--", "--width", "3", expect=64))
        for program, words in (("lockstepd", ["--config", "--resume", "SIGUSR1", "Examples"]), ("lockstep", ["check", "plan", "ckpt", "Examples"])):
            shown = subprocess.run([os.environ["LOCKSTEP_BUILD"] + "/bin/" + program, "--help"], capture_output=True, text=True)
            self.assertEqual(shown.returncode, 0)
            for word in words:
                self.assertIn(word, shown.stdout)
        self.assertIn("LibTorch  2.11", self.tool("--version"))
        shown = subprocess.run([os.environ["LOCKSTEP_BUILD"] + "/bin/lockstepd", "--version"], capture_output=True, text=True, check=True)
        self.assertRegex(shown.stdout, r"(?m)^LibTorch  2\.11")
        self.assertRegex(shown.stdout, r"(?m)^MPI       .*\d+\.\d+")
        self.assertRegex(shown.stdout, r"(?m)^NCCL      (\d+\.\d+|none: .*\w)")
        self.assertRegex(shown.stdout, r"(?m)^Python    (for Python 3\.10 and later, \S+|none: .*\w)")

    def test_a_folder_that_cannot_be_written(self):
        occupied = self.folder / "file"
        occupied.write_text("")
        run = self.train(2, run="file/below", sets=["train.max_steps=1"], expect=73)
        self.assertIn("file/below", run.log)
        self.assertEqual(occupied.read_text(), "")

    def test_the_daemon_says_the_same(self):
        path = self.folder / "run.yaml"
        path.write_text(self.replace("learning_rate: 0.1", "learning_rat: 0.1"))
        run = self.train(2, config=path, expect=78)
        self.assertEqual(run.log.count("did you mean 'learning_rate'"), 1)  # rank 0 speaks for all
        self.assertFalse(run.folder.exists())

    def test_pages_whose_files_are_not_there(self):
        for metrics, code, said in (("{listen: '0.0.0.0:9999', token_file: /nope}", 66, "/nope: no such file"),
                                    ("{listen: '127.0.0.1:0', web_config: nope.yml}", 66, "nope.yml: no such file"),
                                    ("{listen: '0.0.0.0:0'}", 78, "0.0.0.0:0 is reachable from other hosts")):
            self.assertIn(said, self.tool("check", DIGITS, "--set", f"metrics={metrics}", expect=code))
            self.assertIn(said, self.train(1, sets=[f"metrics={metrics}"], expect=code).log)
        self.tool("check", DIGITS, "--set", "metrics={listen: 'off', token_file: /nope}")

    def test_rows_of_one_name_are_refused_with_both_origins(self):
        """A program that embeds Lockstep adds them before anything can catch."""
        refused = self.start_faulty("two_networks", rank="all", step=0).wait()
        self.assertEqual(refused.code, 78, refused.log)
        origins = re.findall(r"faulty_rank\.cpp:(\d+)", refused.log)
        self.assertGreaterEqual(len(origins), 2, refused.log)
        self.assertIn("two rows have the name 'mine'", refused.log)
        refused = self.start_faulty("taken_metric", rank="all", step=0).wait()
        self.assertEqual(refused.code, 78, refused.log)
        self.assertIn("lockstep_step", refused.log)


if __name__ == "__main__":
    unittest.main()
