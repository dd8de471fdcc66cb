"""Rank and size of this process, and the first connection of the ranks, under torchrun, mpirun or srun."""
import datetime
import os
import subprocess
import zlib

from torch import distributed

from .calls import call
from .programs import Error

# (rank, size) as each launcher says them, torchrun's first.
VARIABLES = (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))
JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "PMI_JOBID")  # equal on all ranks, and of this job alone
LOWEST_PORT, NUM_PORTS = 20000, 12768  # below Linux's range for outgoing connections


def rank_and_size():
    """(0, 1) without a launcher."""
    return next(((int(os.environ[rank]), int(os.environ[size])) for rank, size in VARIABLES if rank in os.environ and size in os.environ), (0, 1))


def first_address():
    """The address of rank 0's store."""
    job = next((os.environ[name] for name in JOBS if name in os.environ), None)
    if job is None:
        raise Error("[pytorch] several ranks, and neither MASTER_ADDR nor a job's name in the environment: set MASTER_ADDR and MASTER_PORT to a "
                    "free port of rank 0's host")
    host = "127.0.0.1"
    if os.environ.get("SLURM_JOB_NUM_NODES", "1") != "1":
        host = subprocess.check_output(["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]], text=True).split()[0]
    elif os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE")) != os.environ.get("OMPI_COMM_WORLD_SIZE"):
        raise Error("[pytorch] mpirun started ranks on several hosts: set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there "
                    "(mpirun -x MASTER_ADDR=... -x MASTER_PORT=...)")
    return f"tcp://{host}:{LOWEST_PORT + zlib.crc32(job.encode()) % NUM_PORTS}"


def launched():
    """Keywords of torch.distributed.init_process_group() for the ranks that torchrun, mpirun or srun started, or for this process alone."""
    rank, size = rank_and_size()
    found = {"rank": rank, "world_size": size}
    if size == 1:
        found["store"] = distributed.HashStore()
    elif "MASTER_ADDR" not in os.environ:
        found["init_method"] = first_address()
    return found


def connect(group, timeout):
    """(number of a new loop, this rank in it) over the ranks of the process group; without one, of all ranks that a launcher started."""
    limit = datetime.timedelta(seconds=timeout)
    if group is None and not distributed.is_initialized():
        found = launched()
        if found["world_size"] == 1:
            return call("loop_alone"), 0
        distributed.init_process_group("gloo", timeout=limit, **found)
    ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
    is_whole = len(ranks) == distributed.get_world_size()
    # Its own connections: messages of the loop never wait for those of the script.
    gloo = distributed.new_group(ranks, backend="gloo", timeout=limit, use_local_synchronization=not is_whole)
    return call("loop_connect", gloo.boxed(), ranks, float(timeout)), ranks.index(distributed.get_rank())
