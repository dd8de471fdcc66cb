"""The example trains its estimator with flags, on one rank and on two, stops, resumes and evaluates."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "integration"))
from harness import BUILD, LockstepTest  # noqa: E402

CIRCLE = BUILD / "examples" / "train_estimator" / "circle"
FLAGS = ["--learning_rate", "0.05", "--learning_rate_decay_type", "fixed", "--opt_epsilon", "1e-7"]


class TrainEstimator(LockstepTest):
    def circle(self, run, ranks, *flags, expect=0):
        return self.train(ranks, config=None, program=CIRCLE, run=run, arguments=[*FLAGS, *flags], expect=expect)

    def test_one_rank_and_two_train_with_the_same_call(self):
        for ranks in (1, 2):
            run = self.circle(f"on{ranks}", ranks, "--train_steps", "200", "--", "--width", "32")
            self.assertIn("[circle] width 32, learning rate 0.05, batches of 50", run.log)
            self.assertIn(f"2000 training samples, {2000 // 50 // ranks} steps an epoch", run.log)
            self.assertEqual(run.summary()["steps"], 200)
            self.assertGreater(run.summary()["eval"]["accuracy"], 0.9)

    def test_the_command_line_stands_above_what_the_program_sets(self):
        run = self.circle("run", 1, "--batch_size=100", "--train_steps=1")
        self.assertIn("batches of 100", run.log)

    def test_a_stopped_run_goes_on_bit_for_bit(self):
        """Gradients are sent at every step: a run that ends averages its ranks' weights, and a longer one would not do that there."""
        whole = self.circle("whole", 2, "--sync_replicas", "--train_steps", "40")
        self.circle("stopped", 2, "--sync_replicas", "--train_steps", "15")
        resumed = self.circle("stopped", 2, "--sync_replicas", "--train_steps", "40")
        self.assertEqual(resumed.summary()["parameters_sha256"], whole.summary()["parameters_sha256"])

    def test_faults_have_their_exit_codes(self):
        self.assertIn("unknown flag --bacth_size (did you mean '--batch_size'?)", self.circle("a", 1, "--bacth_size", "3", expect=64).log)
        self.assertIn("unknown flag --widht (did you mean '--width'?)", self.circle("b", 1, "--", "--widht", "3", expect=64).log)
        self.assertIn("'estimator.width' is 0", self.circle("c", 2, "--", "--width=0", expect=78).log)


if __name__ == "__main__":
    unittest.main()
