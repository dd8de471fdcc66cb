"""Ranks of a process group: functions in forked children of this process, which has imported torch once, or programs.

LOCKSTEP_BUILD names the build, LOCKSTEP_TORCH the folder `torch` of the wheel whose LibTorch it links.
"""
import atexit
import dataclasses
import datetime
import os
import pathlib
import pickle
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/support"))
from cpu_torch import TORCH, torch  # noqa: E402
import patience  # noqa: E402
import python_package  # noqa: E402
from ports import free_port  # noqa: E402
import torch.distributed as dist  # noqa: E402

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD"]).resolve()
SKIPPED = 77  # exit code of a rank whose test is skipped
# Runs a script as `python SCRIPT ARGUMENTS...` does, after torch without the CUDA libraries that the wheel wants. Last it prints which backend a
# process group has had.
AS_PROGRAM = """
import os, runpy, sys
from cpu_torch import torch
sys.argv.pop(0)
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name='__main__')
backend = 'lockstep' if hasattr(torch.ops.lockstep, 'make_group') else 'gloo'
sys.stdout.flush()
os.write(1, f'backend {backend}\\n'.encode())  # in one piece: ranks of mpirun share the output
if backend == 'gloo':
    os._exit(0)  # gloo's threads may abort a process that ends on a busy machine ("terminate called without an active exception")
"""
TORCHRUN = "import cpu_torch; from torch.distributed.run import main; main()"
LIMIT_S = 60  # for all ranks of a case, without the time that they are to wait


def _installed():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-package-"))
    creator = os.getpid()
    atexit.register(lambda: os.getpid() == creator and shutil.rmtree(folder))
    python_package.install(BUILD, folder, python_package.version_of(TORCH))
    return folder


PACKAGES = _installed()
sys.path.insert(0, str(PACKAGES))
import lockstep  # noqa: E402, F401, which registers the backend


@dataclasses.dataclass
class Rank:
    """How one rank ended. value: of its function. fault: text of its exception, with the type. said: its output and log."""
    code: int
    value: object = None
    fault: str = ""
    said: str = ""


def init(rank, num_ranks, folder, backend="lockstep", timeout_s=LIMIT_S):
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=num_ranks,
                            timeout=datetime.timedelta(seconds=timeout_s))


def _child(rank, folder, function):
    log = os.open(folder / f"{rank}.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    value, fault = None, ""
    code = 0
    try:
        value = function()
    except unittest.SkipTest as reason:
        code, fault = SKIPPED, str(reason)
    except SystemExit as error:
        code = error.code or 0
    except BaseException as error:
        traceback.print_exc()
        code, fault = 1, f"{type(error).__name__}: {error}"
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps((value, fault)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _wait_for(pids, limit_s, stopped=None):
    """Exit codes by rank; those of ranks that hang, and of the stopped one, are -SIGKILL."""
    codes, limit = {}, patience.Patience(limit_s)

    def all_ended():
        for rank, pid in enumerate(pids):
            if rank not in codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[rank] = os.waitstatus_to_exitcode(status)
        return codes.keys() | {stopped} >= {*range(len(pids))} or limit.is_over()
    patience.wait_for(all_ended, "the ranks", timeout_s=2 * limit_s)
    for rank, pid in enumerate(pids):
        if rank not in codes:
            os.kill(pid, signal.SIGKILL)
            codes[rank] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return codes


def fork(num_ranks, body, limit_s=LIMIT_S, stopped=None):
    """Runs body(rank) in a forked child for each rank. A child that hangs is killed after the limit, the stopped rank when the others have ended."""
    with tempfile.TemporaryDirectory(prefix="lockstep-ranks-") as name:
        folder, pids = pathlib.Path(name), []
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(num_ranks):
            pid = os.fork()
            if pid == 0:
                _child(rank, folder, lambda rank=rank: body(rank))
            pids.append(pid)
        codes = _wait_for(pids, limit_s, stopped)
        return [Rank(codes[rank], *_result(folder / f"{rank}.pickle"), (folder / f"{rank}.log").read_text()) for rank in range(num_ranks)]


def _result(file):
    return pickle.loads(file.read_bytes()) if file.exists() else (None, "")


def run(num_ranks, function, *arguments, backend="lockstep", timeout_s=LIMIT_S, environment=None):
    """Runs function(*arguments) on each rank of a group and returns a list of Rank."""
    with tempfile.TemporaryDirectory(prefix="lockstep-store-") as store:
        def body(rank):
            os.environ.update(environment or {})
            init(rank, num_ranks, store, backend, timeout_s)
            value = function(*arguments)
            if dist.is_initialized():
                dist.destroy_process_group()
            return value
        return fork(num_ranks, body)


def values(num_ranks, function, *arguments, **options):
    """What the function returns on each rank; a fault on any rank is one of the test."""
    ranks = run(num_ranks, function, *arguments, **options)
    for number, rank in enumerate(ranks):
        assert rank.code == 0, f"rank {number} ended with {rank.code}: {rank.fault}\n{rank.said}"
    return [rank.value for rank in ranks]


def environment(**more):
    """For programs that import torch and lockstep."""
    folders = [str(PACKAGES), str(SOURCE / "tests/support"), *os.environ.get("PYTHONPATH", "").split(":")]
    return {**os.environ, "PYTHONPATH": ":".join(filter(None, folders)), "OMP_NUM_THREADS": "1", **more}


def start_programs(num_ranks, program, *arguments, **more):
    """Starts the Python program on each rank, with the variables of torchrun. Each is the leader of a process group of the system."""
    port = str(free_port())
    return [subprocess.Popen([sys.executable, program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             start_new_session=True,
                             env=environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(num_ranks), MASTER_ADDR="127.0.0.1",
                                             MASTER_PORT=port, **more))
            for rank in range(num_ranks)]


def finish_programs(processes, limit_s=LIMIT_S):
    """List of (exit code, output); those that hang are killed, with the code -SIGKILL."""
    found = []
    for process in processes:
        try:
            output = patience.communicate(process, limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = process.communicate()[0]
        found.append((process.returncode, output))
    return found


def torchrun(num_ranks, script, *arguments, limit_s=2 * LIMIT_S, **more):
    """Output of each rank of a script under torchrun, all of which must end with 0."""
    with tempfile.TemporaryDirectory(prefix="lockstep-torchrun-") as logs:
        process = subprocess.Popen([sys.executable, "-c", TORCHRUN, "--standalone", f"--nproc-per-node={num_ranks}", f"--log-dir={logs}",
                                    "--redirects=3", "--no-python", sys.executable, "-c", AS_PROGRAM, script, *map(str, arguments)],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**more))
        said = patience.communicate(process, limit_s)
        logged = {path.parent.name + path.name: path.read_text() for path in sorted(pathlib.Path(logs).rglob("std*.log"))}
        assert process.returncode == 0, f"{script} {arguments} ended with {process.returncode}:\n{said}\n" + "\n".join(map("\n".join, logged.items()))
        return [logged[f"{rank}stdout.log"] for rank in range(num_ranks)]


def _keep_groups_of_gloo():
    """gloo's destructor waits for its thread, which may wait for the interpreter that is in the destructor."""
    destroy = dist.destroy_process_group
    dist.destroy_process_group = lambda group=None: dist.get_backend(group) == "gloo" or destroy(group)


def script(num_ranks, file, *arguments):
    """Output of each rank of a script that starts as under torchrun, in forks of this process, which has imported what the script imports."""
    port = str(free_port())

    def body(rank):
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(num_ranks), LOCAL_WORLD_SIZE=str(num_ranks), GROUP_RANK="0",
                          MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TORCHELASTIC_RUN_ID="none", OMP_NUM_THREADS="1")
        sys.argv[:] = [str(file), *map(str, arguments)]
        sys.path[0] = os.path.dirname(file)
        _keep_groups_of_gloo()
        runpy.run_path(str(file), run_name="__main__")
        print("backend", "lockstep" if hasattr(torch.ops.lockstep, "make_group") else "gloo", flush=True)
    found = fork(num_ranks, body, 2 * LIMIT_S)
    for number, rank in enumerate(found):
        assert rank.code == 0, f"rank {number} of {file} {arguments} ended with {rank.code}: {rank.fault}\n{rank.said}"
    return [rank.said for rank in found]


def program(file, *arguments, limit_s=LIMIT_S, **more):
    """Output of one Python program, which must end with 0."""
    process = subprocess.Popen([sys.executable, file, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env=environment(**more))
    output = patience.communicate(process, limit_s)
    assert process.returncode == 0, f"{file} {arguments} ended with {process.returncode}:\n{output}"
    return output
