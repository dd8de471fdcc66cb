"""Runs configured by flags: the command lines of the Estimator framework, and refused flags."""
import os
import re
import shlex
import signal
import unittest

from flag_runs import NETWORK, FlagRuns
from harness import BUILD, LOCKSTEPD, SOURCE, evaluated_steps, faked_time, saves_of, wait_for


class Flags(FlagRuns):
    def test_the_local_command_line_runs_as_written(self):
        """Runs on CSV files and on TFRecords whose pattern has no ending; stopped, since 10000 steps are long."""
        pixels = 3 * 299 * 299
        network = ["--model", "mlp", "--set", f"model.layers=[{pixels}, 3]"]
        start = ["--train_metadata", self.data / "train*", *network, "--train_steps", "0"]
        pretrained = self.train(1, config=None, run="pretrained", arguments=start).folder / "checkpoints/model.ckpt-0"
        for train, held_out in (("train*", "many*.csv"), ("records*", "many-*")):
            words = ["--batch_size", "64", "--train_steps", "10000", "--train_metadata", self.data / train,
                     "--eval_metadata", self.data / held_out, "--warm_start_ckpt", pretrained, "--eval_freq", "10",
                     "--eval_throttle_secs", "30", "--learning_rate", "0.00001"]
            sets = [f"data.{use}.num_classes=3" for use in ("train", "eval")] if train == "records*" else []
            run = self.start(1, config=None, run=train[:-1], sets=sets, arguments=[*network, *words])
            run.rank_pids()  # it has started
            run.process.send_signal(signal.SIGUSR1)
            run.wait()
            self.assertEqual(run.code, 75, run.log)
            self.assertRegex(run.log, r"mlp with .* 12 training samples, 1 steps an epoch, 10000 steps in all")
            self.assertAlmostEqual(self.rates(run)[0], 0.00001)

    def test_E28_an_evaluation_comes_every_eval_throttle_secs(self):
        """The flag alone sets the time: saves have their own time of 600 s."""
        clock = self.folder / "clock"
        clock.write_text("+0\n")
        run = self.start(1, config=None, environment=faked_time(clock),
                         arguments=[*NETWORK, *self.described(train_steps=10**9, eval_throttle_secs=30), "--set", "summary.log_every=1000"])
        run.wait_for_step(2000)
        self.assertEqual(evaluated_steps(run), [])
        for count in (1, 2, 3):
            clock.write_text(f"+{count * 31}\n")
            wait_for(lambda: len(evaluated_steps(run)) == count, "an evaluation after 31 s")
            run.wait_for_step(evaluated_steps(run)[-1] + 2000)  # no other before the next 30 s
            self.assertEqual(len(evaluated_steps(run)), count)
        self.assertEqual(saves_of(run), evaluated_steps(run))
        os.kill(run.rank_pids()[0], signal.SIGUSR1)
        self.assertEqual(run.wait().code, 75, run.log)

    def test_a_run_without_a_network_says_so_in_a_line(self):
        refused = self.train(2, config=None, arguments=["--train_metadata", "x"], expect=64)
        self.assertEqual(refused.log.count("[usage] rank 0: without --config FILE a run also needs --model TYPE"), 1, refused.log)
        self.assertFalse(refused.folder.exists())

    def test_mistyped_flags_are_refused_before_mpi_starts(self):
        for words, said in ((["--bacth_size=3"], "unknown flag --bacth_size (did you mean '--batch_size'?)"),
                            (["--batch_size=3", "--batch_size", "4"], "--batch_size is given 2 times (3, 4)"),
                            (["--debug", self.data / "eval.csv"], "put a pattern in quotes"),
                            (["--train_metadata=", "--train_steps=3"], "--train_metadata= has no value: give one, or remove the flag"),
                            (["--train_steps=many"], "--train_steps takes a whole number, not 'many'")):
            refused = self.train(2, config=None, arguments=words, expect=64)
            self.assertEqual(refused.log.count(said), 1, refused.log)

    def test_what_flags_say_passes_the_run_files_checks(self):
        both = self.run_with(save_checkpoints_steps=2, save_checkpoints_secs=3, expect=78)
        self.assertIn("are both given: remove one", both.log)
        self.assertIn("image_size:1:1: error: 'data.train.image_size' must be a whole number from 1", self.run_with(image_size=0, expect=78).log)
        self.assertIn("no such file", self.run_with(train_metadata=self.data / "none*", expect=66).log)
        self.assertIn("train_metadata:1:1: error: 'data.train.path' is empty", self.run_with("--train_metadata", "", train_metadata=None, expect=78).log)
        (self.data / "none.csv").write_text("\n")
        self.assertIn("none.csv: contains no line", self.run_with(eval_metadata=self.data / "none.csv", expect=65).log)
        self.assertRegex(self.run_with(eval_freq=4, expect=78).log, r"'eval.eval_freq' \(flag --eval_freq.*\) asks for 4 batches of 4 samples .* 12 samples, which are 3")
        mixed = self.data / "t*"
        (self.data / "train.tfrecord").write_bytes((self.data / "held_out.tfrecord").read_bytes())
        self.addCleanup((self.data / "train.tfrecord").unlink)
        self.assertIn("names files of several formats", self.run_with(train_metadata=mixed, expect=78).log)

    def test_a_bucket_cannot_be_written(self):
        run = self.train(1, config=None, arguments=[*NETWORK, *self.described(), "--set", "run.project_dir=x"], expect=0)
        self.assertTrue(run.folder.exists())  # the flag stands above --set
        config = self.folder / "run.yaml"
        config.write_text("run: {name: b, project_dir: 'gs://bucket/models'}\nmodel: {type: mlp, layers: [64, 10]}\n"
                          "data: {train: {type: digits}, global_batch_size: 8}\ntrain: {max_steps: 1}\n")
        refused = self.train(2, config=config, sets=["run.project_dir='gs://bucket/models'"], expect=78)
        self.assertIn("gs://bucket/models: run.project_dir (--model_dir) must be a folder", refused.log)

    def test_ranks_with_other_flags_are_told_apart(self):
        program = self.folder / "other.sh"
        program.write_text(f'#!/bin/sh\nexec {LOCKSTEPD} "$@" --learning_rate 0.$((OMPI_COMM_WORLD_RANK + 1))\n')
        program.chmod(0o755)
        refused = self.train(2, config=None, program=program, arguments=[*NETWORK, *self.described(learning_rate=None)], expect=76)
        self.assertRegex(refused.log, r"settings differ between ranks:\n +rank 0 has optimizer.learning_rate=0.1, rank 1 does not")

    def test_flags_behind_the_dashes_are_the_estimators_or_the_tables(self):
        moons = BUILD / "examples/estimator_plugin/libmoons.so"
        flags = ["--train_steps", "4", "--learning_rate=0.25", "--", "--width", "3", "--batch_size=50", "--nodebug"]
        run = self.train(2, config=None, arguments=[f"--estimator={moons}", *flags])
        self.assertIn("Moons with 13 parameters", run.log)  # 2 x 3 + 3 + 3 + 1
        self.assertIn("2000 training samples, 20 steps an epoch, 4 steps in all", run.log)
        self.assertEqual(run.log.count("[moons] learning rate 0.25"), 1)  # read in a plug-in
        self.assertIn("accuracy", run.summary()["eval"])
        refused = self.train(2, config=None, run="b", arguments=[f"--estimator={moons}", "--", "--width", "3", "--width=4"], expect=64)
        self.assertIn("flag --width is given twice", refused.log)
        refused = self.train(2, config=None, run="c", arguments=[f"--estimator={moons}", "--", "--batchsize", "3"], expect=64)
        self.assertIn("unknown flag --batchsize (did you mean '--batch_size'?)", refused.log)

    def test_the_page(self):
        """docs/flags.md: its command runs, its run file passes, its C++ is in the example."""
        page = (SOURCE / "docs/flags.md").read_text()
        command = re.search(r"^```sh\n.*?lockstepd (.*?)^```", page, re.MULTILINE | re.DOTALL)[1].replace("\\\n", " ")
        words = [word.replace("data/", f"{self.data}/") for word in shlex.split(command)]
        for left_out in ["--model_dir"]:
            at = words.index(left_out)
            words = words[:at] + words[at + 2:]
        run = self.train(2, config=None, arguments=words)
        self.assertEqual(run.summary()["steps"], 60)
        for i, snippet in enumerate(re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)):
            path = self.folder / f"snippet{i}.yaml"
            path.write_text(snippet)
            self.assertIn("ok", self.tool("check", path))
        example = (SOURCE / "examples/train_estimator/circle.cpp").read_text()
        quotes = re.findall(r"^```cpp\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        self.assertEqual(len(quotes), 2)
        for quote in quotes:
            for part in quote.split("...\n"):
                self.assertIn(part, example)


if __name__ == "__main__":
    unittest.main()
