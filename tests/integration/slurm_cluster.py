"""A cluster of four fake nodes on this host, under Debian's Slurm: nothing is left outside of its folder.

Needs root and the packages slurm-wlm and munge (which Slurm pulls in; no key of it is used).
"""
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile

from exported import skips
import patience

NODES = 4
CONFIGURATION = """ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
MpiDefault=pmix
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
KillWait=5
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd-%n.pid
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdLogFile={base}/log/slurmd-%n.log
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool-%n
TmpFS={base}/tmp-%n
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
"""


def require():
    """Skips the test where there can be no cluster."""
    if os.geteuid() != 0:
        skips.skip("fake nodes of Slurm need root")
    for name in ("slurmctld", "slurmd", "sbatch"):
        skips.require_tool(name)


class Cluster:
    def __init__(self):
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-slurm-"))
        port = random.randrange(20000, 30000, 10)
        host = os.uname().nodename
        for name in ("state", "log", *(f"{kind}-n{i}" for i in range(1, NODES + 1) for kind in ("spool", "tmp"))):
            (self.base / name).mkdir()
        lines = CONFIGURATION.format(host=host, port=port, base=self.base)
        for i in range(1, NODES + 1):
            lines += f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={port + i} CPUs={os.cpu_count()} RealMemory=1000 State=UNKNOWN\n"
        lines += f"PartitionName=all Nodes=n[1-{NODES}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES\n"
        (self.base / "slurm.conf").write_text(lines)
        (self.base / "cgroup.conf").write_text("CgroupAutomount=no\nIgnoreSystemd=yes\n")
        self.environment = {**os.environ, "SLURM_CONF": str(self.base / "slurm.conf")}
        self.command("slurmctld", "-c", "-f", self.base / "slurm.conf")
        for i in range(1, NODES + 1):
            self.start_node(f"n{i}")
        self.wait_for(lambda: self.command("sinfo", "-h", "-t", "idle", "-o", "%D") == str(NODES), "idle nodes")

    def start_node(self, name):
        self.command("slurmd", "-f", self.base / "slurm.conf", "-N", name)

    def bring_back(self, node):
        """Resumes nodes after `down`; a node that registers again resumes automatically (ReturnToService), and then cannot be resumed."""
        def is_up():
            if not self.command("sinfo", "-h", "-n", node, "-o", "%t").startswith("down"):
                return True
            subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], env=self.environment, capture_output=True, check=False)
            return False
        self.wait_for(is_up, f"{node} to come back")

    def command(self, *words):
        done = subprocess.run([*map(str, words)], env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{words}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def wait_for(self, condition, what, timeout_s=120):
        try:
            return patience.wait_for(condition, what, timeout_s)
        except AssertionError as late:
            raise AssertionError(f"{late}: " + (self.base / "log" / "slurmctld.log").read_text()[-3000:]) from late

    def submit(self, script):
        return self.command("sbatch", "--parsable", f"--chdir={self.base}", script)

    def fact(self, job, name):
        """One field of `scontrol show job`."""
        for word in self.command("scontrol", "show", "job", job).split():
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        raise AssertionError(f"no {name}")

    def wait_for_end(self, job, timeout_s=120):
        """State and exit code of a job that has ended."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self.wait_for(lambda: self.fact(job, "JobState") in over, f"job {job} to end", timeout_s)
        return self.fact(job, "JobState"), int(self.fact(job, "ExitCode").split(":")[0])

    def close(self):
        subprocess.run(["scancel", "--full", "--user=root", "--signal=KILL"], env=self.environment, capture_output=True, check=False)
        for file in (*self.base.glob("slurmd-n*.pid"), self.base / "slurmctld.pid"):
            try:
                os.kill(int(file.read_text()), signal.SIGTERM)
            except (OSError, ValueError):
                pass
        with contextlib.suppress(AssertionError):
            patience.wait_for(lambda: not any(self.base.glob("*.pid")), "Slurm to end", 10)
        shutil.rmtree(self.base, ignore_errors=True)
