"""Requirements that tests have of a machine, by the names of tests/may_skip.txt, and those that this machine lacks."""
import os
import pathlib
import shutil
import subprocess

import mounts

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def _has_gpu():
    return pathlib.Path("/dev/nvidia0").exists()


def _has_namespaces_of_networks():
    return subprocess.run([SOURCE / "tools/netns", "exec", "true"], capture_output=True, check=False).returncode == 0


def _has_sshd():
    """sshd, and its folder /run/sshd. tools/setup installs none where systemd would start it."""
    found = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin") is not None
    return found and (os.geteuid() == 0 or pathlib.Path("/run/sshd").exists())


def _may_make_control_groups():
    """Version 2 has one tree, version 1 one for each controller."""
    root = pathlib.Path("/sys/fs/cgroup")
    tree = root if (root / "cgroup.controllers").exists() else root / "cpu"
    folder = tree / f"lockstep-needs-{os.getpid()}"
    try:
        folder.mkdir()
        folder.rmdir()
    except OSError:
        return False
    return True


# Each says whether the machine has it.
NEEDS = {
    "gpu": _has_gpu,
    "no_gpu": lambda: not _has_gpu(),
    "shared_gpu": lambda: _has_gpu() and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1",
    "root": lambda: os.geteuid() == 0,
    "slurm": lambda: os.geteuid() == 0,  # fake nodes of a cluster
    "mount": mounts.are_permitted,
    "cgroup": _may_make_control_groups,
    "netns": _has_namespaces_of_networks,
    "sshd": _has_sshd,
    "clang_tidy": lambda: shutil.which("clang-tidy") is not None,  # tools/setup lint installs it, tools/setup test does not
    "two_cores": lambda: len(os.sched_getaffinity(0)) > 1,
    "shm_60m": lambda: shutil.disk_usage("/dev/shm").free >= 60 << 20,
}
# Two more are of the run of the tests: `all` (nothing is left out), `ranks` (more than one).
OF_THE_RUN = {"all", "ranks"}
