"""lockstepd --spares: a spare process takes the place of a lost rank. No step is lost or made twice, and the run ends with the bits of an undisturbed one."""
import contextlib
import os
import pathlib
import random
import shutil
import signal
import time
import unittest

from harness import DIGITS, LockstepTest, metric, wait_for
import soak
from supervised import processes_of

KEEP_ALIVE = {"OMPI_MCA_orte_abort_on_non_zero_status": "0"}  # Open MPI: a lost rank does not end the others
NUM_STEPS, MANY_STEPS = 69, 460
PRUNED = """version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.1, final_sparsity: 0.8, start_step: 3, end_step: 60, update_frequency_steps: 3}
"""
QUANTIZED = """version: 1.0.0
modifiers:
  - !QuantizationModifier {start_epoch: 0.2}
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 3.0}
"""
FROZEN = """version: 1.0.0
modifiers:
  - !TrainableParamsModifier {params: ['blocks.0.conv.weight'], trainable: false, start_epoch: 1}
  - !EpochRangeModifier {start_epoch: 0.0, end_epoch: 3.0}
"""
QUICK = ["plain", "overlap", "pruned", "quantized", "batch norm", "evaluations"]
WITH_NORMS = "model={type: cnn, channels: [8, 16], hidden: 32, batch_norm: true}"
MODES = {
    "plain": [],
    "overlap": ["sync.overlap=true", "sync.bucket_bytes=16384"],
    "elastic": ["run.deterministic=elastic", "data.global_batch_size=64"],
    "clip": ["optimizer.clip_norm=1.0"],
    "adamw": ["optimizer={type: adamw, learning_rate: 0.002}"],
    "muon": ["optimizer={type: muon, learning_rate: 0.02}"],
    "bf16 messages": ["sync.comm_dtype=bf16"],
    "averages": ["optimizer.ema_decay=0.9"],
    "accumulation": ["train.replicas_to_aggregate=2"],
    "batch norm": [WITH_NORMS],
    "batch norm of all ranks": [WITH_NORMS, "train.batch_norm=sync"],
    "packed": ["sync.sparse_allreduce=always"],
    "saves": ["checkpoint.save_checkpoints_steps=3"],
    "evaluations": ["eval.every_epochs=1", "eval.on_save=true", "checkpoint.save_checkpoints_steps=5"],
}


class LostRank(LockstepTest):
    def setUp(self):
        super().setUp()
        self.modes = {**MODES, **{name: [self.recipe(text, f"{name}.yaml")]
                                  for name, text in (("pruned", PRUNED), ("quantized", QUANTIZED), ("frozen", FROZEN))}}

    def unbroken(self, mode, ranks, steps=NUM_STEPS):
        return self.train(ranks, run=f"{mode}-{ranks}".replace(" ", "_"),
                          sets=[f"train.max_steps={steps}", *self.modes[mode], "sync.share_weights=off"])

    def start_with_spares(self, mode, ranks, spares, sets=(), steps=NUM_STEPS, config=DIGITS, **fault):
        start = self.start_faulty if fault else self.start
        shutil.rmtree(self.folder / "broken", ignore_errors=True)
        return start(ranks=ranks + spares, run="broken", config=config, sets=[f"train.max_steps={steps}", *self.modes[mode], *sets], arguments=["--spares", spares],
                     environment={**KEEP_ALIVE, **fault.pop("more", {})}, **fault)

    def assert_undisturbed(self, run, unbroken):
        """All samples once, in their order: the same losses of the same steps. The same weights to the bit."""
        summary = run.summary()
        self.assertEqual(summary["exit_code"], 0, run.log)
        self.assertEqual([row["step"] for row in run.steps()], [row["step"] for row in unbroken.steps()])
        self.assertEqual([row["loss"] for row in run.steps()], [row["loss"] for row in unbroken.steps()], run.log)
        self.assertEqual(summary["parameters_sha256"], unbroken.summary()["parameters_sha256"], run.log)
        self.tool("ckpt", "verify", run.folder / "checkpoints")

    def assert_lost(self, run, ended, hung, spares):
        """What rank 0's last page says."""
        page = (run.folder / "logs/rank0.prom").read_text()
        self.assertEqual(metric(page, "lockstep_lost_ranks_total", cause="ended"), ended)
        self.assertEqual(metric(page, "lockstep_lost_ranks_total", cause="hung"), hung)
        self.assertEqual(metric(page, "lockstep_spare_processes"), spares)
        self.assertGreater(metric(page, "lockstep_takeover_seconds"), 0)

    def test_a_rank_lost_at_any_step(self):
        chance = random.Random(17)
        for mode in soak.rounds(QUICK, [mode for mode in self.modes if mode not in QUICK]):
            for ranks in soak.rounds([2], [3, 4]):
                unbroken = self.unbroken(mode, ranks)
                for _ in range(20 if soak.IS_SOAK else 1):
                    rank, step = chance.randrange(ranks), chance.randrange(NUM_STEPS)
                    with self.subTest(mode=mode, ranks=ranks, rank=rank, step=step):
                        run = self.start_with_spares(mode, ranks, 1, action="kill", rank=rank, step=step).wait()
                        self.assertIn(f"rank {rank} is lost: process", run.log)
                        self.assertIn(f"continuing from step {step} in the memory of rank", run.log)
                        self.assert_undisturbed(run, unbroken)

    def test_a_rank_lost_at_any_moment(self):
        chance = random.Random(18)
        for mode in soak.rounds(["saves"], list(self.modes)):
            unbroken = self.unbroken(mode, 3, MANY_STEPS)
            for number in range(20 if soak.IS_SOAK else 2):
                rank, wait_s = chance.randrange(3), chance.random() * 0.3
                with self.subTest(mode=mode, number=number, rank=rank):
                    run = self.start_with_spares(mode, 3, 1, steps=MANY_STEPS)
                    run.wait_for_step(1)
                    pid = run.rank_pids()[rank]
                    time.sleep(wait_s)  # not a limit: it chooses the moment
                    with contextlib.suppress(ProcessLookupError):  # the run has ended before
                        os.kill(pid, signal.SIGKILL)
                    self.assert_undisturbed(run.wait(), unbroken)

    def test_a_rank_lost_in_each_phase_of_a_save(self):
        unbroken = self.unbroken("saves", 2)
        for phase in soak.rounds([0, 3, 6], [1, 2, 4, 5, 7, 8, 9]):
            with self.subTest(phase=phase):
                run = self.start_with_spares("saves", 2, 1, action="kill", rank=0, step=4, more={"LOCKSTEP_TEST_PHASE": str(phase)}).wait()
                self.assertIn("rank 0 is lost: process", run.log)
                self.assert_undisturbed(run, unbroken)

    def test_several_ranks_lost_at_once_and_one_after_another(self):
        unbroken = self.unbroken("plain", 3, MANY_STEPS)
        for both in (True, False):
            with self.subTest(both=both):
                run = self.start_with_spares("plain", 3, 2, steps=MANY_STEPS)
                run.hold()
                pids = run.rank_pids()
                os.kill(pids[0], signal.SIGKILL)
                if not both:
                    wait_for(lambda run=run, pid=pids[0]: run.rank_pids()[0] != pid, "the spare in place 0")
                os.kill(run.rank_pids()[2] if not both else pids[2], signal.SIGKILL)
                wait_for(lambda run=run, pid=pids[2]: run.rank_pids()[2] != pid, "the spare in place 2")
                run.wait_for_status("the pause", state="paused")
                run.ctl("resume")
                self.assert_undisturbed(run.wait(), unbroken)
                self.assert_lost(run, ended=2, hung=0, spares=0)

    def test_the_run_file_of_the_start_changes_and_a_pause_stay(self):
        unbroken = self.unbroken("plain", 2, MANY_STEPS)
        for rank in (0, 1):
            with self.subTest(rank=rank):
                config = self.folder / "changing.yaml"
                config.write_text(DIGITS.read_text().replace("recipes/", f"{DIGITS.parent}/recipes/"))
                run = self.start_with_spares("plain", 2, 1, steps=MANY_STEPS, config=config)
                run.wait_for_step(1)
                run.ctl("set", "checkpoint.save_checkpoints_steps=50")
                run.hold()
                config.write_text(config.read_text().replace("seed: ", "seed: 1"))
                pid = run.rank_pids()[rank]
                os.kill(pid, signal.SIGKILL)
                wait_for(lambda run=run, rank=rank, pid=pid: run.rank_pids()[rank] != pid, "the spare")
                run.wait_for_status("the pause", state="paused")
                run.ctl("resume")
                self.assert_undisturbed(run.wait(), unbroken)
                self.assertIn(f"model.ckpt-{MANY_STEPS // 50 * 50}.index", os.listdir(run.folder / "checkpoints"))

    def test_a_run_can_be_stopped_after_a_loss(self):
        run = self.start_with_spares("plain", 2, 1, steps=MANY_STEPS)
        run.hold()
        pid = run.rank_pids()[1]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: run.rank_pids()[1] != pid, "the spare")
        run.wait_for_status("the pause", state="paused")
        run.ctl("stop")
        run.wait()  # mpirun waits forever for a process that ends with another code than 0
        self.assertEqual(run.summary()["exit_code"], 75, run.log)
        self.assert_undisturbed(self.train(2, run="broken", sets=[f"train.max_steps={MANY_STEPS}"]), self.unbroken("plain", 2, MANY_STEPS))

    def test_another_recipe_on_disk_is_refused(self):
        run = self.start_with_spares("pruned", 2, 1)
        run.hold()
        self.recipe(PRUNED.replace("final_sparsity: 0.8", "final_sparsity: 0.7"), "pruned.yaml")
        os.kill(run.rank_pids()[1], signal.SIGKILL)
        run.wait()
        self.assertIn("the recipe's timeline has changed on disk since the run began", run.log)

    def test_a_rank_that_hangs_is_killed_and_replaced(self):
        unbroken = self.unbroken("plain", 2)
        for rank in (0, 1):
            with self.subTest(rank=rank):
                run = self.start_with_spares("plain", 2, 1, sets=["sync.timeout_s=2"], action="stop", rank=rank, step=9).wait()
                self.assertRegex(run.log, r"process \d+ hangs: it is killed, and its rank counts as lost")
                self.assert_undisturbed(run, unbroken)
                self.assert_lost(run, ended=0, hung=1, spares=0)

    def test_without_a_spare_left_the_run_ends_and_continues_from_its_checkpoint(self):
        unbroken = self.unbroken("saves", 2, MANY_STEPS)
        run = self.start_with_spares("saves", 2, 1, steps=MANY_STEPS)
        for rank in (0, 1):
            run.wait_for_commit(6)
            pids = run.rank_pids()
            os.kill(pids[rank], signal.SIGKILL)
            if rank == 0:
                wait_for(lambda pid=pids[0]: run.rank_pids()[0] != pid, "the spare in place 0")
        run.wait()
        self.assertIn("a rank is lost, and no spare process is left to take its place", run.log)
        self.assert_undisturbed(self.train(2, run="broken", sets=[f"train.max_steps={MANY_STEPS}", *self.modes["saves"]]), unbroken)

    def test_a_rank_that_holds_state_alone_is_not_replaced(self):
        run = self.start_with_spares("plain", 2, 1, sets=["sync.shard_optimizer=true"], action="kill", rank=1, step=9).wait()
        self.assertIn("a peer is lost", run.log)
        self.assertNotIn("takes its place", run.log)

    def test_spares_end_when_all_ranks_are_lost(self):
        run = self.start_with_spares("plain", 1, 2, action="kill", rank=0, step=9).wait()
        self.assertNotIn("takes its place", run.log)

    def test_a_lost_spare_does_not_matter(self):
        run = self.start_with_spares("plain", 2, 1, steps=MANY_STEPS)
        run.hold()
        programs = {pid for pid in processes_of(run.folder) if pathlib.Path(f"/proc/{pid}/comm").read_text() == "lockstepd\n"}
        spare = programs - set(run.rank_pids().values())
        os.kill(spare.pop(), signal.SIGKILL)
        run.ctl("resume")
        run.wait()
        self.assert_undisturbed(run, self.unbroken("plain", 2, MANY_STEPS))

    def test_spares_that_nobody_needs_end_with_the_run(self):
        run = self.start_with_spares("plain", 2, 2).wait()
        self.assertEqual(run.code, 0, run.log)
        self.assert_undisturbed(run, self.unbroken("plain", 2))
        for spares, code in ((2, 64), (70000, 64)):
            self.assertEqual(self.start(2, run="none", arguments=["--spares", spares]).wait().code, code)


if __name__ == "__main__":
    unittest.main()
