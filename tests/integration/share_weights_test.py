"""sync.share_weights: ranks of a host compute with one copy of the weights, and nothing else is different."""
import os
import pathlib
import signal
import subprocess
import unittest

from harness import LOCKSTEPD, MPIRUN, PRUNE_EARLY, SOURCE, LockstepTest
from mounts import own_mounts
from soak import rounds

SETS = [PRUNE_EARLY, "train.max_steps=60", "eval.every_epochs=0", "checkpoint.save_checkpoints_steps=20", "sync.replica_check_every=25"]
SHARED = "sync.share_weights=on"
SHARES, OWN = "share one copy of the weights", "has its own copy of the weights, as"


class ShareWeights(LockstepTest):
    def assert_same(self, run, other):
        self.assertEqual(run.summary()["parameters_sha256"], other.summary()["parameters_sha256"])
        self.assertEqual(run.steps(), other.steps())

    def test_same_bits_on_1_2_and_4_ranks(self):
        for ranks in rounds((1, 4), (2,)):
            own = self.train(ranks, run=f"own{ranks}", sets=[*SETS, "sync.share_weights=off"])
            shared = self.train(ranks, run=f"shared{ranks}", sets=[*SETS, SHARED])
            self.assert_same(shared, own)
            self.assertEqual(SHARES in shared.log, ranks > 1)
            self.assertNotIn("the weights, as", own.log)

    def test_elastic_runs_change_size_and_sharing_at_every_stop(self):
        sets = [*SETS, "run.deterministic=elastic"]
        alone = self.train(1, run="alone", sets=sets)
        for ranks, step, mode in ((4, 9, "on"), (2, 22, "off"), (2, 31, "on")):
            stopped = self.start_faulty("usr1", rank=0, step=step, ranks=ranks, run="resized",
                                        sets=[*sets, f"sync.share_weights={mode}"]).wait()
            self.assertEqual(stopped.code, 75, stopped.log)
        self.assert_same(self.train(4, run="resized", sets=[*sets, SHARED]), alone)

    def test_the_file_of_a_rank_that_was_killed_as_it_made_it_is_removed(self):
        left, young = pathlib.Path("/dev/shm/lockstep-4194999-0"), pathlib.Path("/dev/shm/lockstep-4194998-0")  # beyond all process numbers
        for path in (left, young):
            path.write_bytes(b"")
            self.addCleanup(path.unlink, missing_ok=True)
        os.utime(left, (1, 1))
        self.train(2, sets=[SHARED, "train.max_steps=1", "eval.every_epochs=0"])
        self.assertFalse(left.exists())
        self.assertTrue(young.exists(), "another container's, perhaps")

    def test_killed_and_gone_on(self):
        """A save is of one step, whatever was half updated when a rank died."""
        unbroken = self.train(2, run="unbroken", sets=SETS)
        killed = self.start(2, run="killed", sets=[*SETS, SHARED])
        killed.wait_for_commit(20)
        os.kill(killed.rank_pids()[1], signal.SIGKILL)
        self.assertNotEqual(killed.wait().code, 0)
        resumed = self.train(2, run="killed", sets=[*SETS, SHARED])
        self.assertGreaterEqual(resumed.summary()["resumed_from_step"], 20)
        self.assertEqual(resumed.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])

    def test_auto_leaves_small_weights_alone(self):
        run = self.train(2, sets=[*SETS, "train.max_steps=2", "checkpoint.save_at_end=false"])
        self.assertIn(f"{OWN} 0.1 MiB fit in the cores' caches", run.log)

    def test_what_cannot_be_shared_is_refused(self):
        for key, reason in (("sync.sync_replicas=false", "each rank trains its own weights"),
                            ("sync.shared_window=false", "the weights are in such memory"),
                            ("sync.comm_dtype=bf16", "no gradients are sent that could be rounded")):
            refused = self.train(2, sets=[*SETS, SHARED, key], expect=78)
            self.assertIn("'sync.share_weights: on' (--set sync.share_weights) cannot be combined with", refused.log)
            self.assertIn(reason, refused.log)


class SmallShm(LockstepTest):
    """/dev/shm of a container, in a mount namespace of its own."""

    def unshare(self, script):
        return subprocess.run([*own_mounts(), "sh", "-c", script], capture_output=True, text=True, timeout=100, cwd=SOURCE)

    def train_in(self, size, mode):
        settings = [f"run.project_dir={self.folder}/{mode}", "train.max_steps=3", "run.threads=1", f"sync.share_weights={mode}",
                    "'metrics.listen=\"off\"'", "checkpoint.save_at_end=false", "'data.train={type: random, shape: [512], classes: 10, samples: 64}'",
                    "data.eval=null", "'model={type: mlp, layers: [512, 2048, 2048, 10]}'"]
        command = " ".join([f"{MPIRUN} 2 {LOCKSTEPD} --config {SOURCE}/bench/step.yaml", *(f"--set {one}" for one in settings)])
        return self.unshare(f"mount -t tmpfs -o size={size} tmpfs /dev/shm && {command} && ls /dev/shm")

    def test_what_does_not_fit_is_refused_or_left_alone(self):
        """21 MB of weights and as many gradients a rank."""
        done = self.train_in("64m", "auto")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, rf"{OWN} /dev/shm has \d+\.\d MiB free of the \d+\.\d MiB needed")
        refused = self.train_in("64m", "on")
        self.assertEqual(refused.returncode, 78, refused.stderr)
        self.assertRegex(refused.stderr, r"sync.share_weights: on is not possible: /dev/shm has \d+\.\d MiB free")

    def test_what_fits_leaves_no_file(self):
        done = self.train_in("256m", "on")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(SHARES, done.stderr)
        self.assertNotIn("lockstep-", done.stdout)


if __name__ == "__main__":
    unittest.main()
