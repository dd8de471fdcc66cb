"""A contest of training steps: ours and the peers' in turn, with equal losses."""
import concurrent.futures
import contextlib
import statistics

import contests
import runs
from places import Gpus, Here

NUM_COMPARED = 8
LOSSES_AGREE, ROUNDED_LOSSES_AGREE = 1e-5, 1e-2
TUNED_MODES = {"tuned", "fp16", "zero"}
UNHIDDEN = "ours, unhidden"  # what no overlap can hide, for rows
NAMES = {"packed": "Python packed", "zero": "DDP with ZeRO"}  # of modes of ddp.py; else "DDP mode"


class StepContest:
    """`modes` are DDP's, as in ddp.py; `beside` makes further runs by name, of the job's build and DDP's best bucket in MB."""

    def __init__(self, name, build, job, place, modes, rows, beside=None, keep_25=False, num_compared=NUM_COMPARED):
        self.name, self.build, self.job, self.place = name, build, job, place
        self.modes, self.rows, self.beside, self.keep_25 = modes, rows, beside or {}, keep_25
        self.buckets_mb, self.num_compared = {}, num_compared

    def hold(self, board, num_rounds):
        with runs.DdpPeers(self.place) as peers:
            def measure(number):
                self.tune(peers)
                return self.round(self.run_by_name(peers), number)
            board.hold(self.name, self.rows, measure, num_rounds=num_rounds, hidden=(UNHIDDEN,))

    def tune(self, peers):
        """Tunes both sides before the first round and after the wait for an idle machine."""
        for mode in TUNED_MODES.intersection(self.modes) - self.buckets_mb.keys():
            seconds = peers.tune(self.build, self.job, mode)
            self.buckets_mb[mode] = min(seconds, key=seconds.get)
            trials = ", ".join(f"{mb} MB {1e3 * value:.2f} ms" for mb, value in seconds.items())
            print(f"    {NAMES.get(mode, f'DDP {mode}')}: bucket_cap_mb={self.buckets_mb[mode]} is the best of {trials}", flush=True)

    def tolerance(self, name):
        """Tolerance of losses. Convolutions of a GPU compute in TF32 on both sides, and not always with the same kernel."""
        is_rounded = "fp16" in name or self.job.precision != "fp32" or isinstance(self.place, Gpus)
        return ROUNDED_LOSSES_AGREE if is_rounded else LOSSES_AGREE

    def run_by_name(self, peers):
        found = {"ours": lambda: runs.lockstep(self.build, self.job, self.place)}
        for mode in self.modes:
            found[NAMES.get(mode, f"DDP {mode}")] = (
                lambda mode=mode: peers.train(self.build, self.job, mode, self.buckets_mb.get("tuned" if mode == "graphed" else mode)))
        if self.keep_25 and self.buckets_mb["tuned"] != 25:
            found["DDP tuned, 25 MB"] = lambda: peers.train(self.build, self.job, "tuned", 25)
        for name, run in self.beside.items():
            found[name] = lambda run=run: run(self.build, self.job, self.buckets_mb.get("tuned"))
        return found

    def round(self, run_by_name, number):
        found = {name: run_by_name[name]() for name in contests.in_turn(run_by_name, number)}
        for name, steps in found.items():
            if "alone" not in name:
                compare(self.name, name, found["ours"].losses, steps.losses, self.tolerance(name), self.num_compared)
        times = {name: found[name].seconds for name in run_by_name}
        return {**times, UNHIDDEN: found["ours"].unhidden}


def compare(contest, name, ours, theirs, tolerance, num_compared=NUM_COMPARED):
    off = runs.largest_difference(ours, theirs, num_compared)
    if not off <= tolerance:
        raise SystemExit(f"{contest}: the losses of 'ours' and '{name}' differ by {off:.1e}: nothing was measured\n"
                         f"ours {ours[:NUM_COMPARED]}\n{name} {theirs[:NUM_COMPARED]}")


def one_alone(build, job, _bucket_mb):
    """The floor that memory and cores set: one rank, which shares them with no other process and sends nothing."""
    return runs.lockstep(build, job, Here(), ranks=1)


def alone_at_once(num_runs):
    """Runs of one rank at the same time, which share cores and memory but no gradients: the limit of the machine for this number of ranks."""
    def measure(build, job, _bucket_mb):
        with concurrent.futures.ThreadPoolExecutor(num_runs) as pool:
            found = list(pool.map(lambda _: runs.lockstep(build, job, Here(), ranks=1), range(num_runs)))
        return runs.Steps(statistics.mean(run.seconds for run in found), found[0].losses)
    return measure
