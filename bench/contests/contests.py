"""Common part of the benchmarks in Python: alternating runs, rows with goals, verdicts, and the wait for an idle machine."""
import dataclasses
import os
import signal
import statistics
import sys
import time

POLL_S = 1


def add_options(parser, rounds):
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds of each contest; default: %(default)s")
    parser.add_argument("--max-load", type=float, default=1.5,
                        help="highest load of the last minute at which a contest starts; default: %(default)s")
    parser.add_argument("--wait", type=float, default=300, metavar="SECONDS",
                        help="longest wait for this load; later contests run, and their rows are marked; default: %(default)s")


def parse(parser):
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is ended
    return options


class Quiet:
    """Waits for other programs, and for the contest before, to leave the machine."""

    def __init__(self, options):
        self.max_load, self.wait_s = options.max_load, options.wait

    def wait(self):
        """Returns a text for the contest's first line, and the mark of its rows: empty if the machine was quiet."""
        begin = time.monotonic()
        while (load := os.getloadavg()[0]) >= self.max_load and time.monotonic() - begin < self.wait_s:
            time.sleep(POLL_S)
        text = f"load {load:.2f} after a wait of {time.monotonic() - begin:.0f} s"
        return (text, "") if load < self.max_load else (f"{text}, NOT below {self.max_load}", f" [load {load:.2f}]")


@dataclasses.dataclass
class Row:
    """One row of the table: `value` computes a number from one round's measures, a dict of seconds by name."""
    text: str
    value: object
    goal: float | None = None
    at_most: bool = False  # the goal
    unit: str = "x"


def over(peer, goal=None, ours="ours", text=None):
    """The peer's time over ours."""
    return Row(text or f"{peer} / {ours}", lambda times: times[peer] / times[ours], goal)


def judge(values, goal, at_most=False):
    """The goal holds in every round, in none, or lies between the least and the largest value."""
    num_good = sum(value <= goal if at_most else value >= goal for value in values)
    if num_good in (0, len(values)):
        return "met" if num_good else "NOT MET"
    return f"within noise ({num_good} of {len(values)} rounds reach it)"


class Board:
    """Runs contests, prints them, and counts their verdicts."""

    def __init__(self, options):
        self.quiet, self.num_rounds, self.verdicts = Quiet(options), options.rounds, []

    def hold(self, name, rows, measure, warm_rounds=0, num_rounds=None, hidden=()):
        """`measure(number)` is called for each round and returns its measures in seconds by name; those that are `hidden` are
        only for rows. Warm rounds, of negative numbers, do not count."""
        begin = time.monotonic()
        said, mark = self.quiet.wait()
        print(f"{name} ({said})", flush=True)
        rounds = [measure(number) for number in range(-warm_rounds, num_rounds or self.num_rounds)][warm_rounds:]
        for measured in rounds[0]:
            if measured not in hidden:
                self.tell(measured, [times[measured] for times in rounds])
        for row in rows:
            self.tell_row(row, [row.value(times) for times in rounds], mark)
        print(f"    took {time.monotonic() - begin:.0f} s", flush=True)

    @staticmethod
    def tell(name, seconds):
        least, middle, most = (1e3 * value for value in (min(seconds), statistics.median(seconds), max(seconds)))
        print(f"    {name:<34}{middle:>9.2f} ms ({least:.2f} to {most:.2f})")

    def tell_row(self, row, values, mark=""):
        text = f"    {row.text:<54}{statistics.median(values):>7.2f} {row.unit} ({min(values):.2f} to {max(values):.2f})"
        if row.goal is not None:
            verdict = judge(values, row.goal, row.at_most)
            self.verdicts.append(verdict)
            text += f", goal {'<=' if row.at_most else '>='} {row.goal}: {verdict}"
        print(text + mark, flush=True)

    def summary(self):
        num_met, num_missed = self.verdicts.count("met"), self.verdicts.count("NOT MET")
        return (f"{len(self.verdicts)} goals: {num_met} met, {len(self.verdicts) - num_met - num_missed} within noise, "
                f"{num_missed} NOT MET")


def in_turn(names, number):
    """The order of round `number`: sides alternate which goes first."""
    names = list(names)
    return names[::-1] if number % 2 else names
