"""Differences between ranks are detected, every rank stops with exit 76 (or 78), and the message names what differs."""
import unittest

from harness import BUILD, DIGITS, LockstepTest, SOURCE
from counts import counted


class Divergence(LockstepTest):
    def run_divergent(self, rank, step, ranks):
        return self.start_faulty("alter", rank, step, ranks, run=f"rank{rank}of{ranks}").wait()

    def test_a_weight_changed_on_one_rank_stops_all_at_the_next_mask(self):
        # The message takes rank 0's side, even where that is the altered one. 0: pruned, which only the altered rank does.
        sides = {(2, 1): (r"rank 1 from rank 0", r"rank 0: 1; rank 1: 0"),
                 (2, 0): (r"rank 1 from rank 0", r"rank 0: 0; rank 1: 1"),
                 (4, 2): (r"rank 2 from ranks 0, 1, 3", r"ranks 0, 1, 3: 1; rank 2: 0")}
        for (ranks, rank), (who, values) in counted("altered weights caught at the next mask, and named", sides.items()):
            run = self.run_divergent(rank, step=92, ranks=ranks)  # the first mask is due before step 92
            self.assertEqual(run.code, 76, run.log)
            self.assertRegex(run.log, r" E rank \d.* the new mask at step 92 of blocks\.1\.conv\.weight differs: "
                             rf"{who}; first at item 37 \[[\d, ]+\]: {values} \(1 of \d+ tensors differs\)")
            self.assertEqual(run.summary()["exit_reason"], "failed")
            self.assertNotIn("MPI_ABORT", run.log)  # all ranks end in order
            self.assertEqual(run.log.count(" E rank"), 1, run.log)  # and one of them speaks

    def test_a_weight_that_no_mask_covers_stops_all_at_the_next_comparison(self):
        """Only the comparison every replica_check_every steps, or the one before a save, can detect it without a recipe."""
        no_recipe = [self.recipe("version: 1.0.0\nmodifiers: []\n"), "train.max_steps=40", "eval.every_epochs=0"]
        for every, save_steps, when in counted("altered weights caught at the next comparison, and not saved", ((5, 1000, "at step 15"), (0, 20, "to be saved at step 20"))):
            run = self.start_faulty("alter", rank=1, step=12, ranks=2, run=f"every{every}", sets=[
                *no_recipe, f"sync.replica_check_every={every}", f"checkpoint.save_checkpoints_steps={save_steps}"]).wait()
            self.assertEqual(run.code, 76, run.log)
            self.assertRegex(run.log, rf"the state {when} of model/\S+ differs: rank 1 from rank 0; "
                             r"first at item \d+ \[[\d, ]+\]: rank 0: \S+; rank 1: \S+ \(\d+ of \d+ tensors differ")
            self.assertFalse(list(run.folder.glob("checkpoints/*.index")))  # what differs is not saved

    def test_comparisons_are_counted(self):
        run = self.train(2, sets=["train.max_steps=23", "sync.replica_check_every=5", "checkpoint.save_checkpoints_steps=1000"])
        page = run.last_page(1)
        self.assertIn("\nlockstep_agreement_checks_total 6\n", page)  # the start, steps 5, 10, 15, 20, the last save

    def test_without_a_change_nothing_is_reported(self):
        run = self.run_divergent(rank=9, step=92, ranks=2)
        self.assertEqual(run.code, 0, run.log)

    def test_another_file_on_one_rank(self):
        other = self.folder / "other.yaml"
        other.write_text(DIGITS.read_text().replace("seed: 17", "seed: 18").replace("recipes/", f"{SOURCE}/configs/recipes/"))
        wrapper = self.folder / "lockstepd"
        wrapper.write_text(f'#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && shift 2 && set -- --config {other} "$@"\n'
                           f'exec {BUILD}/bin/lockstepd "$@"\n')
        wrapper.chmod(0o755)
        run = self.start(program=wrapper).wait()
        self.assertEqual(run.code, 76, run.log)
        self.assertIn("rank 0 has run.seed=17", run.log)
        self.assertIn("rank 1 has run.seed=18", run.log)
        self.assertFalse(run.folder.exists())

    def test_a_file_missing_on_one_rank(self):
        wrapper = self.folder / "lockstepd"
        wrapper.write_text('#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && shift 2 && set -- --config /nonexistent.yaml "$@"\n'
                           f'exec {BUILD}/bin/lockstepd "$@"\n')
        wrapper.chmod(0o755)
        run = self.start(program=wrapper).wait()
        self.assertEqual(run.code, 66, run.log)
        self.assertIn("/nonexistent.yaml", run.log)
        self.assertIn("rank 1", run.log)

    def test_an_unexpected_world(self):
        run = self.train(2, sets=["run.expect_world_size=4"], expect=78)
        self.assertIn("the world has 2 rank(s), run.expect_world_size is 4", run.log)
        run = self.train(2, sets=["run.expect_nodes=2"], expect=78)
        self.assertIn("the world spans 1 host(s), run.expect_nodes is 2", run.log)
        self.train(2, sets=["run.expect_world_size=2", "run.expect_nodes=1", "train.max_steps=2"])


if __name__ == "__main__":
    unittest.main()
