"""Contests of bench/sync between two ranks of one host."""
import dataclasses
import re

import contests
import runs
from contests import Row, over
from places import Here, finish
from step_contest import StepContest, one_alone, alone_at_once

LARGE_MIB = 64
ALLREDUCE_PAIRS = 5

TINY = runs.Job("tiny", 32, (784, 32, 10), samples=4096, steps=1030, peer_steps=610)
SMALL = runs.Job("small", 16, (64, 64, 64, 10), steps=1030, peer_steps=610)
DEEP = runs.Job("deep", 32, (64,) * 97 + (10,), steps=230, peer_steps=130)
NARROW = runs.Job("narrow", 64, (96,) * 41 + (10,), steps=230, peer_steps=130)
MLP = runs.Job("mlp", 8, (784, 4096, 4096, 10), steps=50, peer_steps=30)
PRUNED = dataclasses.replace(MLP, name="pruned", sparsity=0.9)
WIDE = runs.Job("wide", 16, (512, 3072, 3072, 1000), steps=50, peer_steps=30)
SQUARE = runs.Job("square", 4, (2048,) * 5 + (100,), steps=50, peer_steps=30)
MUON = dataclasses.replace(SQUARE, name="muon", optimizer="muon", learning_rate=0.002, steps=9, peer_steps=9, warm=4, peer_warm=3)
CNN = runs.Job("cnn", 32, model="{type: cnn}", shape=(3, 32, 32), steps=40, peer_steps=25, warm=16, peer_warm=5)

DDP = ["default", "tuned"]
ALONE = {"ours alone": one_alone}
FLOOR = Row("ours / one rank alone: the floor is 1", lambda times: times["ours"] / times["ours alone"])


def local_contests(build):
    here = Here()

    def contest(name, job, goals, beside=None, rows=(), modes=DDP):
        over_peers = [over(f"DDP {mode}", goal) for mode, goal in zip(modes, goals, strict=True)]
        return StepContest(name, build, job, here, modes, [*over_peers, *rows], beside)

    in_cpp, over_cpp = c10d_in_cpp(build)
    return [
        contest("tiny: mlp 784-32-10, batch 32, one host", TINY, [None, 4], in_cpp, over_cpp),
        contest("small: mlp 64-64-64-10, batch 16, one host", SMALL, [1], in_cpp, over_cpp, ["tuned"]),
        contest("deep: 97 linear layers of 64, batch 32, one host", DEEP, [None, 1.8]),
        contest("narrow: 41 linear layers of 96, batch 64, one host", NARROW, [1], modes=["tuned"]),
        contest("mlp: 784-4096-4096-10, batch 8, one host", MLP, [2.5, 2.5], ALONE, [FLOOR]),
        contest("wide: mlp 512-3072-3072-1000, batch 16, one host", WIDE, [2.1], ALONE, [FLOOR], ["tuned"]),
        StepContest("pruned: mlp, 90 % pruned, one host", build, PRUNED, here, ["tuned", "packed"], [over("DDP tuned", 3), over("Python packed", 2)]),
        contest("square: mlp 2048-2048-2048-2048-2048-100, batch 4, one host", SQUARE, [2.0], ALONE, [FLOOR], ["tuned"]),
        contest("muon: square with optimizer muon, one host", MUON, [1.7], modes=["tuned"]),
        contest("cnn: 2.2 M weights, batch 32, one host", CNN, [None, 1.08], {**ALONE, "two alone": alone_at_once(2)},
                [Row("ours on 1 rank / on 2 (efficiency)", lambda times: times["ours alone"] / times["ours"], 0.97),
                 Row("1 rank / two runs of 1 rank at once: the limit", lambda times: times["ours alone"] / times["two alone"]),
                 Row("two runs of 1 rank at once / ours", lambda times: times["two alone"] / times["ours"])])]


def c10d_in_cpp(build):
    """The peer without Python and its row; nothing where LibTorch has no headers of c10d."""
    if not (build / "bench/c10d_ddp").exists():
        return {}, []
    return ({"c10d in C++": lambda build, job, bucket_mb: runs.c10d(build, job, Here(), bucket_mb)}, [over("c10d in C++", 1)])


class AllreduceContest:
    """Ours and MPI's own in the same processes, call by call; gloo's in Python's."""

    def __init__(self, name, build, place, rows, gloo_calls=5, with_defaults=False):
        self.name, self.build, self.place, self.rows = name, build, place, rows
        self.gloo_calls, self.with_defaults = gloo_calls, with_defaults

    def hold(self, board, num_rounds):
        run_by_name = {"ours": lambda: self.ours_and_mpi(self.place.ranks), "gloo": self.gloo}
        if self.with_defaults:
            run_by_name["defaults"] = lambda: {f"{name}, MPI's defaults": value
                                               for name, value in self.ours_and_mpi(self.place.default_ranks).items()}

        def measure(number):
            found = {name: run_by_name[name]() for name in contests.in_turn(run_by_name, number)}
            return {name: value for part in run_by_name for name, value in found[part].items()}
        board.hold(self.name, self.rows, measure, num_rounds=num_rounds)

    def ours_and_mpi(self, start):
        """Medians of alternating calls, and the floor that memory sets."""
        text = finish(start(2, [self.build / "bench/allreduce", f"--mib={LARGE_MIB}", f"--pairs={ALLREDUCE_PAIRS}"], {}))
        found = {"ours": r"median ([\d.]+) ms \(least", "MPI_Allreduce": r"MPI_Allreduce: median ([\d.]+) ms",
                 "memory floor": r"floor: ([\d.]+) ms"}
        return {name: float(re.search(pattern, text)[1]) / 1e3 for name, pattern in found.items()}

    def gloo(self):
        return {"gloo": runs.gloo_allreduce(self.place, LARGE_MIB, self.gloo_calls)}


def allreduce_contest(build):
    defaults = ", MPI's defaults"
    return AllreduceContest(
        f"allreduce: {LARGE_MIB} MiB, one host", build, Here(),
        [over("gloo", 6, text="gloo (over loopback TCP) / ours"),
         over("MPI_Allreduce", 5, text="MPI_Allreduce / ours, both as launch/mpirun.sh starts"),
         over(f"MPI_Allreduce{defaults}", 5, f"ours{defaults}", "the same, both as Open MPI starts by itself, bound"),
         Row("MPI_Allreduce, its best / memory floor: reachable",
             lambda times: min(times["MPI_Allreduce"], times[f"MPI_Allreduce{defaults}"]) / times["memory floor"]),
         Row("ours / memory floor", lambda times: times["ours"] / times["memory floor"])],
        with_defaults=True)
