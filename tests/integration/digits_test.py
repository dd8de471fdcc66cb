"""The main job: the digits run reaches its goals, and does the same at every world size."""
import unittest

from harness import LockstepTest, metric

GRADIENT_BYTES = 25_866 * 4
SHARE_BYTES_MAX = 256  # loss, counts and votes of a step


class Digits(LockstepTest):
    def test_world_sizes_train_alike_and_share_the_work(self):
        runs = {ranks: self.train(ranks, run=f"n{ranks}") for ranks in (1, 2, 4)}
        summaries = {ranks: run.summary() for ranks, run in runs.items()}
        for ranks, summary in summaries.items():
            self.assertEqual(summary["exit_reason"], "finished")
            self.assertEqual(summary["world_size"], ranks)
            self.assertGreaterEqual(summary["eval"]["accuracy"], 0.96)
            self.assertGreaterEqual(summary["sparsity"], 0.80)
            self.assertAlmostEqual(summary["eval"]["accuracy"], summaries[1]["eval"]["accuracy"], delta=0.01)

        losses = {ranks: [line["loss"] for line in run.steps()] for ranks, run in runs.items()}
        for ranks in (2, 4):
            self.assertEqual(len(losses[ranks]), summaries[ranks]["steps"])
            worst = max(abs(a - b) / abs(b) for a, b in zip(losses[ranks][:100], losses[1][:100]))
            print(f"{ranks} ranks: largest relative difference of the first 100 losses {worst:.1e}")
            self.assertLessEqual(worst, 1e-5)

        for ranks, run in runs.items():
            steps = summaries[ranks]["steps"]
            pages = [run.last_page(rank) for rank in range(ranks)]
            samples = [metric(page, "lockstep_samples_total") for page in pages]
            self.assertEqual(sum(samples), 30 * 1438)
            for count in samples:  # shares of a batch differ by at most one sample
                self.assertLessEqual(abs(count - 30 * 1438 / ranks), steps)
            for page in pages:
                reduced = metric(page, "lockstep_allreduce_bytes_total") + metric(page, "lockstep_allreduce_saved_bytes_total")
                self.assertGreaterEqual(reduced, steps * GRADIENT_BYTES)
                self.assertLessEqual(reduced, steps * (GRADIENT_BYTES + SHARE_BYTES_MAX))

    def test_a_finished_run_is_not_trained_again(self):
        first = self.train(sets=["train.max_steps=30"])
        again = self.train(sets=["train.max_steps=30"])
        self.assertIn("resuming from step 30", again.log)
        self.assertEqual(again.summary()["parameters_sha256"], first.summary()["parameters_sha256"])
        self.assertEqual(again.summary()["checkpoint"], first.summary()["checkpoint"])

    def test_micro_batches_sum_to_the_same_update(self):
        whole = self.train(run="whole", sets=["train.max_steps=20"])
        parts = self.train(run="parts", sets=["train.max_steps=20", "train.replicas_to_aggregate=4"])
        for a, b in zip(whole.steps(), parts.steps()):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-5 * a["loss"])


if __name__ == "__main__":
    unittest.main()
