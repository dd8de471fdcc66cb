"""Kills, failing disks and hanging ranks around saves that are written during training. tools/soak repeats them for longer."""
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import kills
import skips
from counts import counted
from harness import within
from mounts import in_own_mounts
from soak import rounds
from hindrances import FAILED, UNTIDY, check_hindered, check_tidied
from small_job import EACH_PHASE, EVERY, EVERY_PHASE, RANKS, STEPS, Job, debris_in, saves_in


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.base = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-faults-"))
        cls.addClassCleanup(shutil.rmtree, cls.base, ignore_errors=True)
        unbroken = Job(cls.base / "unbroken")
        assert unbroken.start().wait().code == 0
        cls.expected = unbroken.result()

    def job(self, name="", **kwargs):
        return Job(self.base / f"{self.id().rsplit('.', 1)[1]}{name}", **kwargs)

    def test_a_kill_at_every_phase_of_a_save_on_every_rank(self):
        """One run, killed again and again on its way; the only other save is the one before."""
        job = self.job(every=2, keep=1)
        for phase, rank in counted("kills at a phase of a save lost nothing", rounds(EACH_PHASE, [one for one in EVERY_PHASE if one not in EACH_PHASE])):
            killed = job.start_faulty("kill", rank, phase, when=2).wait()
            self.assertIn(killed.code, (137, 69), f"{phase} of rank {rank}: {killed.log()}")
            job.require_nothing_lost(killed.seen | killed.told)
        job.go_on_to_the_end(self.expected)

    def test_a_kill_of_anybody_at_any_moment(self):
        job, seeded = self.job(), random.Random(5)
        for whom in counted("kills at a random moment lost nothing", ("rank", "all ranks", "mpirun")):
            killed = kills.at_a_random_moment(seeded, whom).do(job).wait()
            job.require_nothing_lost(killed.seen | killed.told)
        job.go_on_to_the_end(self.expected)

    def test_a_kill_behind_the_last_commit(self):
        """The resumed run has nothing left to save; it still completes what the killed one had begun."""
        job = self.job()
        killed = job.start_faulty("kill", 0, "committed", when=STEPS // EVERY).wait()
        job.require_nothing_lost(killed.seen | {STEPS})
        (job.saves / "checkpoint.tmp").write_text("model_check")
        self.assertNotIn(f"model.ckpt-{STEPS}", (job.saves / "checkpoint").read_text())
        job.go_on_to_the_end(self.expected)
        self.assertIn(f'\nall_model_checkpoint_paths: "model.ckpt-{STEPS}"\n', (job.saves / "checkpoint").read_text())
        self.assertTrue((job.saves / "checkpoint").read_text().startswith(f'model_checkpoint_path: "model.ckpt-{STEPS}"\n'))

    def test_a_kill_by_the_kernel_at_a_call(self):
        skips.require_tool("strace")
        job = self.job()
        for rank, call, nth in counted("kills by the kernel at a call lost nothing", ((0, "fsync", 2), (1, "rename", 1))):
            killed = kills.by_strace(random.Random(rank), rank, call, nth).do(job).wait()
            self.assertIn(killed.code, (137, 69), killed.log())
            job.require_nothing_lost(killed.seen | killed.told)
        job.go_on_to_the_end(self.expected)

    def test_nothing_gets_its_name_before_it_is_on_disk(self):
        """The order that a loss of power needs, as each rank's calls show it."""
        for rank in range(RANKS):
            job = self.job(rank, keep=1)
            job.start_struck(rank, "NOTE", "1+").wait()
            calls = [(call, path) for call, _, path in job.struck()]
            folder = str(job.saves)
            renames = [at for at, (call, _) in enumerate(calls) if call == "rename"]
            self.assertEqual(len(renames), STEPS // EVERY * (3 if rank == 0 else 1))  # shard, index, state file
            for at in counted("names given to files that are on disk", renames):
                path = calls[at][1]
                touched = [call for call, one in calls[:at] if one == path + ".tmp" and call != "close"]
                self.assertEqual(touched[-1], "fsync", path)
                self.assertEqual(calls[at + 1:at + 3], [("open", folder), ("fsync", folder)], path)
            removed = [at for at, (call, path) in enumerate(calls) if call == "unlink" and path.endswith(".index")]
            self.assertEqual(len(removed), STEPS // EVERY - 1 if rank == 0 else 0)
            for at in removed:  # the index is gone for good before the first shard goes
                self.assertEqual(calls[at + 1:at + 3], [("open", folder), ("fsync", folder)], calls[at])
                self.assertIn(("unlink", calls[at][1].replace(".index", ".data-00000-of-00002")), calls[at + 3:])

    def test_calls_that_fail_now_and_then_cost_a_save_and_nothing_else(self):
        for rank, what, at in counted("disks that fail now and then cost a save and nothing else", rounds([(0, "ENOSPC", "61*"), (1, "EIO", "29*")], [(0, "EIO", "97*"), (1, "ENOSPC", "17*")])):
            job = self.job(f"{rank}{what}", every=3)
            start = job.start_struck(rank, what, at).wait()
            failed, untidy = check_hindered(job, start, self.expected)
            self.assertGreaterEqual(len(job.struck()), 5)
            self.assertGreater(failed + untidy, 2, start.log())
            self.assertGreater(len(start.told), 5, start.log())
            self.assertIn("Input/output error" if what == "EIO" else "No space left on device", start.log())
            check_tidied(job, self.expected)

    def test_a_disk_that_fails_for_good_leaves_no_half_save(self):
        """All calls fail on rank 0 from the moment of a commit on, also those that undo what was begun."""
        watched = self.job("watched")
        watched.start_struck(0, "NOTE", "1+").wait()
        renames = [number for call, number, path in watched.struck() if call == "rename" and path.endswith(f"ckpt-{2 * EVERY}.index")]
        for later in counted("disks that fail for good left no half save", rounds((0, 1), (2,))):
            job = self.job(later)
            start = job.start_struck(0, "EIO", f"{renames[0] + later}+").wait()
            self.assertEqual(start.code, 74, start.log())
            there = job.require_nothing_lost([EVERY])
            self.assertEqual(there, [EVERY, 2 * EVERY] if later else [EVERY])
            job.go_on_to_the_end(self.expected)

    @in_own_mounts
    def test_a_disk_that_is_full_for_a_while(self):
        job = self.job(sets=["checkpoint.keep_checkpoint_max=2"])
        job.saves.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", job.saves], check=True)
        self.addCleanup(subprocess.run, ["umount", job.saves], check=True)
        start = job.start_faulty("nap", rank=0, phase="staged", when="every")
        start.until(lambda: saves_in(job.saves))
        filler = job.saves / "filler"
        with self.assertRaisesRegex(OSError, "No space"), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(65536))
        start.until(lambda: FAILED in start.log())
        filler.unlink()
        start.wait()
        self.assertEqual(start.code, 0, start.log())
        self.assertRegex(start.log(), f"{FAILED}.*are free; free space, or lower checkpoint.keep_checkpoint_max")
        job.keep = 2
        self.assertGreater(check_hindered(job, start, self.expected)[0], 0)
        self.assertEqual(debris_in(job.saves), ["filler"] if filler.exists() else [])

    def test_a_fault_of_one_rank_fails_the_save_on_all(self):
        for rank, phase in counted("faults of one rank failed the save on all", rounds([(0, "staged"), (1, "shard_renamed")], [(1, "shard_written"), (0, "index_written")])):
            job = self.job(f"{rank}{phase}")
            start = job.start_faulty("fail", rank, phase, when=3).wait()
            self.assertEqual(check_hindered(job, start, self.expected), (1, 0))
            self.assertIn(f"model.ckpt-{3 * EVERY} {FAILED}rank {rank}: made to fail", start.log())
            check_tidied(job, self.expected)

    def test_a_fault_behind_the_commit_is_mended_by_the_next_save(self):
        job = self.job()
        start = job.start_faulty("fail", 1, "read_back", when=2).wait()
        self.assertEqual(check_hindered(job, start, self.expected), (0, 1))
        self.assertEqual(saves_in(job.saves), [STEPS - 2 * EVERY, STEPS - EVERY, STEPS])

    def test_a_request_to_stop_while_a_save_is_under_way(self):
        for rank, phase in counted("stops in a save went on to the same end", rounds([(1, "shard_written")], [(0, "staged"), (1, "shard_renamed")])):
            job = self.job(phase)
            stopped = job.start_faulty("usr1_twice", rank, phase, when=3).wait()
            self.assertEqual(stopped.code, 75, stopped.log())
            step = int(re.search(r"stopped at step (\d+) on request", stopped.log())[1])
            self.assertIn(3 * EVERY, saves_in(job.saves))
            self.assertEqual(saves_in(job.saves)[-1], step)
            job.require_nothing_lost(stopped.told)
            job.go_on_to_the_end(self.expected)

    def test_saves_that_take_longer_than_the_steps_between_them(self):
        """Each is waited for, none is left out; the last one is under way when the last step ends."""
        job = self.job(every=3, keep=-1)
        start = job.start_faulty("nap", rank=1, phase="shard_written", when="every", more=[f"train.max_steps={STEPS - 2}"]).wait()
        self.assertEqual(start.code, 0, start.log())
        self.assertEqual(saves_in(job.saves), [*range(3, STEPS - 2, 3), STEPS - 2])
        job.keep = STEPS
        job.require_nothing_lost(start.seen)
        job.go_on_to_the_end(self.expected)

    def test_a_rank_that_hangs_in_a_save_ends_the_run_in_time(self):
        """Whichever limit is the shorter one. What unwinds must not wait for the longer one."""
        hangs = [("sync", "stop", "shard_written"), ("checkpoint", "stop", "shard_written"), ("sync", "nap_and_stop", "staged"),
                 ("checkpoint", "nap_and_stop", "staged"), ("sync", "nap_and_stop", "shard_written")]
        for limit, action, phase in counted("ranks that hang in a save given up in time", hangs):
            job = self.job(f"{limit}_{action}_{phase}")
            waits = ["checkpoint.wait_for=commit"] if (action, phase) == ("nap_and_stop", "shard_written") else []
            start = job.start_faulty(action, rank=1, phase=phase, when=2, more=[f"{limit}.timeout_s=3", *waits])
            start.until(lambda: start.seen)
            with within(30, "the end of the run, in place of half an hour"):
                start.wait()
            if waits:  # both ranks wait for the save, whose own limit is half an hour
                self.assertRegex(start.log(), r"all_reduce of 1 Long \(maximum\), call \d+: waited [3-9]\d?\.\d s for rank 1")
            self.assertIn(start.code, (79, 69), start.log())
            if phase == "staged":  # training waits too, so no other limit can have ended it
                self.assertRegex(start.log(), r"all_gather of (0 Byte|1 Long), call \d+: waited [3-9]\d?\.\d s for rank 1")
            job.require_nothing_lost(start.seen)
            job.go_on_to_the_end(self.expected)

    def test_a_run_that_ends_for_another_reason_while_a_save_is_under_way(self):
        """The save is given its end, or the run would wait for it for ever."""
        job = self.job()
        start = job.start_faulty("nap", rank=0, phase="shard_written", when="every",
                                 more=["optimizer.learning_rate=1e30", "train.max_nonfinite_steps=3",
                                       "checkpoint.save_checkpoints_steps=1"]).wait(60)
        self.assertEqual(start.code, 80, start.log())

    def test_the_folder_is_given_free_when_nothing_is_written_there_any_more(self):
        """A run ends while a save is still in progress; the next run waits for it and resumes from it."""
        job = self.job(every=24)
        first = job.start_faulty("sleep", rank=0, phase="shard_renamed", when=1, more=["preemption.grace_seconds=0.001"])
        first.until((job.saves / "model.ckpt-24.data-00000-of-00002").exists)
        os.kill(first.rank_pids()[1], signal.SIGTERM)
        first.until(lambda: "without a save" in first.log())
        second = job.start()
        first.wait()
        second.wait()
        self.assertEqual((first.code, second.code), (75, 0), first.log() + second.log())
        self.assertIn(second.resumed_from(), (24, 48), first.log() + second.log())  # 0: it did not wait for the save


if __name__ == "__main__":
    unittest.main()
