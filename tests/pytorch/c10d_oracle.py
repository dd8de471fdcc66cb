"""PyTorch's own tests of a c10d backend, over lockstep and, where one does not pass, over gloo: none may fail over lockstep alone, except for KNOWN.

The tests come with torch (torch.testing._internal.distributed.distributed_test). Each runs on ranks that are forked from this process. They
name the backends that they know; lockstep takes the place of gloo in these lists, so that it is judged as gloo is.

By hand: c10d_oracle.py [WORD [RANKS]] runs the tests whose names contain the word, and prints a line for each.
"""
import importlib.util
import os
import re
import sys
import tempfile
import types
import unittest

import ranks
from ranks import dist, torch  # noqa: F401
import skips

# Tests that fail over lockstep alone, and why.
KNOWN = {
    "test_ddp_logging_data_cpu": "PyTorch calls every backend from outside 'custom' in DDP's log, where the test expects its name",
    "test_monitored_barrier_gloo": "PyTorch refuses monitored_barrier of any backend not named gloo",
    "test_monitored_barrier_gloo_subgroup": "the same",
}
NUM_RANKS, LIMIT_S = 2, 60
MODULE = "torch.testing._internal.distributed.distributed_test"
# How the tests name gloo, and how they name both.
SAME_AS_GLOO = (('BACKEND != "gloo"', 'BACKEND not in ("gloo", "lockstep")'), ('BACKEND == "gloo"', 'BACKEND in ("gloo", "lockstep")'),
                ("    dist.Backend.GLOO,\n", '    dist.Backend.GLOO,\n    "lockstep",\n'), ('{"gloo"', '{"lockstep", "gloo"'),
                ('["gloo"', '["lockstep", "gloo"'), ('"nccl", "gloo"', '"nccl", "lockstep", "gloo"'),
                ('"gloo", "nccl"', '"lockstep", "gloo", "nccl"'))


def load(backend, num_ranks, folder):
    """PyTorch's module of tests, which reads its settings from the environment when it is imported."""
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(num_ranks), TEMP_DIR=folder, MASTER_ADDR="127.0.0.1",
                      INIT_METHOD=f"file://{folder}/init")
    from torch.testing._internal import common_distributed
    features = common_distributed.DistTestCases.backend_feature
    for name in ("ddp", "subgroup", "gpu", "cuda"):
        features[name] = features[name] | {"lockstep"}
    spec = importlib.util.find_spec(MODULE)
    with open(spec.origin) as file:
        text = file.read()
    for of_gloo, of_both in SAME_AS_GLOO:
        text = text.replace(of_gloo, of_both)
    module = types.ModuleType(MODULE)
    module.__file__, module.__spec__ = spec.origin, spec
    sys.modules[MODULE] = module
    exec(compile(text, spec.origin, "exec"), module.__dict__)
    return module


def outcome(codes, faults, reasons):
    """'ok', 'skip' or 'FAIL', with the reason."""
    if all(code == 0 for code in codes):
        return "ok"
    skipped = [code for code in codes if code]
    if all(code in reasons for code in skipped):
        return f"skip: {reasons[skipped[0]] or faults[codes.index(skipped[0])]}"
    return f"FAIL: {codes} {' | '.join(faults)}"


class Suite:
    """PyTorch's tests over one backend. Forks ranks, so that torch is imported once."""

    def __init__(self, backend, num_ranks, folder):
        self.backend, self.num_ranks, self.folder = backend, num_ranks, folder
        self.module = load(backend, num_ranks, folder)
        from torch.testing._internal.common_distributed import TEST_SKIPS
        self.reasons = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()} | {ranks.SKIPPED: ""}
        self.tests = type("Tests", (self.module.TestDistBackend, self.module.DistributedTest._DistTestBase), {})
        self.module.initialize_temp_directories()

    def names(self, word):
        return [name for name in sorted(dir(self.tests)) if name.startswith("test_") and word in name]

    def run(self, name):
        self.module.Barrier.init()
        store = f"{self.folder}/{self.backend}_{name}"

        def body(rank):
            test = self.tests(name)
            test.rank, test.file_name = rank, store
            ranks.init(rank, self.num_ranks, store, self.backend, self.module.CUSTOM_PG_TIMEOUT.get(name, LIMIT_S))
            getattr(test, name)()
            dist.destroy_process_group()
        os.mkdir(store)
        found = ranks.fork(self.num_ranks, body, LIMIT_S)
        return outcome([rank.code for rank in found], [first_line(rank.fault) or last_error(rank.said) for rank in found], self.reasons)


def first_line(text):
    return text.partition("\n")[0][:300]


def last_error(said):
    errors = [line for line in said.splitlines() if "Error" in line]
    return errors[-1] if errors else ""


def outcomes(backend, num_ranks=NUM_RANKS, word="", names=()):
    """{test: outcome} of these tests, or of those with the word, in a process of its own, since PyTorch's module is for one backend."""
    with tempfile.TemporaryDirectory(prefix="lockstep-oracle-") as folder:
        suite = Suite(backend, num_ranks, folder)
        for name in names or suite.names(word):
            print(f"{backend} {name}: {suite.run(name)}", flush=True)


class Oracle(unittest.TestCase):
    def setUp(self):
        if importlib.util.find_spec("expecttest") is None:
            skips.missing_tool("no Python package expecttest, which PyTorch's tests need; tools/setup test installs it")

    def outcomes(self, backend, *names):
        lines = ranks.program(__file__, "--of", backend, *names, limit_s=20 * LIMIT_S)
        return dict(re.findall(rf"^{backend} (\w+): (.*)$", lines, re.MULTILINE))

    def test_nothing_fails_over_lockstep_alone(self):
        ours = self.outcomes("lockstep")
        self.assertGreater(sum(said == "ok" for said in ours.values()), 80)
        others = {name: said for name, said in ours.items() if said != "ok"}
        theirs = self.outcomes("gloo", *others)
        worse = {name: said for name, said in others.items() if theirs[name] == "ok"}
        print(*(f"{name}: {worse[name][:100]} ({KNOWN[name]})" for name in worse if name in KNOWN), sep="\n")
        unknown = {name: said for name, said in worse.items() if name not in KNOWN}
        self.assertFalse(unknown, "\n".join(f"{name}: {said}" for name, said in unknown.items()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--of"]:
        outcomes(sys.argv[2], names=sys.argv[3:])
    elif len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        outcomes("lockstep", int(sys.argv[2]) if len(sys.argv) > 2 else NUM_RANKS, sys.argv[1])
    else:
        unittest.main()
