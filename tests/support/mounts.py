"""Mounts of a test in a separate namespace: none remains on the machine, however the test ends.

`unshare --mount` makes every mount private, which is refused in a plain chroot, whose root is no mount. There the namespace keeps what it
found, unless something is shared: then a mount in it would reach the machine.
"""
import atexit
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import skips

INSIDE = "LOCKSTEP_TEST_INSIDE"
PROBE = "mount -t tmpfs -o size=1m tmpfs /dev/shm"


def is_something_shared():
    return re.search(r" shared:\d", pathlib.Path("/proc/self/mountinfo").read_text()) is not None


def _folder():
    """A folder for temporary files: a plain user who is mapped to root may not write into those of root."""
    folder = tempfile.mkdtemp(prefix="lockstep-mounts-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _ways():
    """The words that work here, or why none do."""
    user, after = ([], []) if os.geteuid() == 0 else (["--user", "--map-root-user"], ["env", f"TMPDIR={_folder()}"])
    for propagation in [[], *([] if is_something_shared() else [["--propagation", "unchanged"]])]:
        words = ["unshare", *user, "--mount", *propagation, *after]
        done = subprocess.run([*words, "sh", "-c", PROBE], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return words, ""
    return [], done.stderr.strip()


def are_permitted():
    return bool(_ways()[0])


def own_mounts():
    """The words before a command that may mount; ends the test as skipped where that is forbidden."""
    skips.require_tool("unshare", "the package util-linux")
    words, why_not = _ways()
    return words or skips.skip(f"a mount in a namespace of its own is not permitted here: {why_not}")


def in_own_mounts(test):
    """Decorator of a test method that mounts: it runs in a separate process with its own mounts."""
    @functools.wraps(test)
    def outside(self):
        name = f"{type(self).__name__}.{test.__name__}"
        if os.environ.get(INSIDE) == name:
            return test(self)
        done = subprocess.run([*own_mounts(), sys.executable, sys.argv[0], name], env={**os.environ, INSIDE: name}, check=False)
        return self.assertEqual(done.returncode, 0, f"{name}: see above")
    return outside
