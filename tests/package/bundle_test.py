"""tools/bundle: a build packed for a machine that has LibTorch alone. Open MPI and libraries of Debian are hidden while it runs, in a
mount namespace."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/support"))
from mounts import own_mounts  # noqa: E402

BUILD, TORCH = os.environ["LOCKSTEP_BUILD"], os.environ["LOCKSTEP_TORCH"]
# Empty folders and files in their places: who needs them fails.
HIDE = """set -e
for folder in /usr/lib/*-linux-gnu/openmpi /usr/lib/*-linux-gnu/pmix2 /usr/share/openmpi; do
  [ ! -d "$folder" ] || mount -t tmpfs none "$folder"
done
for library in /usr/lib/*-linux-gnu/lib{mpi,open-pal,yaml-cpp,leveldb,isal,hwloc}.so.*; do mount --bind /dev/null "$library"; done
"""
TRAIN = """export LOCKSTEP_TORCH={torch}; . bundle/environment
mpirun --allow-run-as-root --oversubscribe -n 2 lockstepd --config {source}/configs/digits.yaml --set run.project_dir=run --set train.max_steps=20 \
  --set eval.every_epochs=0 --set metrics.listen=off
"""


class Bundle(unittest.TestCase):
    def shell(self, text, folder):
        done = subprocess.run([*own_mounts(), "bash", "-c", text], cwd=folder, capture_output=True, text=True, timeout=100, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_two_ranks_train_where_nothing_else_is_installed(self):
        with tempfile.TemporaryDirectory() as folder:
            archive = f"{folder}/bundle.tar.gz"
            subprocess.run([SOURCE / "tools/bundle", BUILD, archive], check=True, stdout=subprocess.DEVNULL)
            subprocess.run(["tar", "-xf", archive], cwd=folder, check=True)
            code, said = self.shell(HIDE + f"{BUILD}/bin/lockstepd --version", folder)
            self.assertNotEqual(code, 0, f"what the bundle brings is not hidden: {said}")
            code, said = self.shell(HIDE + TRAIN.format(torch=TORCH, source=SOURCE), folder)
            self.assertEqual(code, 0, said)
            self.assertIn("finished after 20 steps", said)


if __name__ == "__main__":
    unittest.main()
