#!/usr/bin/env python3
"""Finds functions of modules that only tests call: tools/check_unused.py BUILD_DIR. Prints them; exit 1 if any.

A function counts as used if any object file other than a test's refers to it, its own included (calls use symbols, since objects are
position-independent). Templates and functions that are only in headers are not found. ALLOWED lists exceptions with their reasons.
"""
import pathlib
import re
import subprocess
import sys

LIBRARY = "interface for programs of one's own: docs/library.md, examples/"
CUDA = "the CUDA module calls it, which may not be built"
SEAM = "what tests look at, where the whole would hide it"
ALLOWED = {  # a name as `c++filt` shows it, without arguments: the reason
    "lockstep::checkpoint::Checkpoint::load_weights_now": LIBRARY,
    "lockstep::checkpoint::Checkpoint::look_for_new": LIBRARY,
    "lockstep::checkpoint::RestoreStatus::assert_consumed": LIBRARY,
    "lockstep::checkpoint::RestoreStatus::missing": LIBRARY,
    "lockstep::checkpoint::RestoreStatus::pending": LIBRARY,
    "lockstep::checkpoint::import_tensorflow": LIBRARY,
    "lockstep::checkpoint::make_trackable": LIBRARY,
    "lockstep::checkpoint::rule_for_prefix": LIBRARY,
    "lockstep::checkpoint::rules_for_layer": LIBRARY,
    "lockstep::checkpoint::track_script_module": LIBRARY,
    "lockstep::coord::CallbacksHandler::order": LIBRARY,
    "lockstep::flags::bool_value": LIBRARY,
    "lockstep::summary::audio": LIBRARY,
    "lockstep::summary::histogram": LIBRARY,
    "lockstep::summary::image": LIBRARY,
    "lockstep::summary::mean_scalar": LIBRARY,
    "lockstep::summary::text": LIBRARY,
    "lockstep::train::to_hook": LIBRARY,
    "lockstep::flags::has_value": LIBRARY,
    "lockstep::model::LazyConv2dImpl::LazyConv2dImpl": LIBRARY,
    "lockstep::model::LazyConv2dImpl::forward": LIBRARY,
    "lockstep::recal::ScheduledModifierManager::step_info": LIBRARY,
    "lockstep::model::few_samples::input_grads": SEAM,
    "lockstep::model::few_samples::outputs": SEAM,
    "lockstep::model::few_samples::write_grads": SEAM,
    "lockstep::recal::FakeQuantizer::view": SEAM,
    "lockstep::NameScopes::text": SEAM,
    "lockstep::dist::nccl::end_process": CUDA,
    "lockstep::dist::nccl::set_up_memory": CUDA,
    "lockstep::dist::nccl::start_communicator": CUDA,
    "lockstep::dist::nccl::view_of": CUDA,
}
TESTS = ("tests/",)
DEFINED = re.compile(r"^[0-9a-f]+ T (_ZNK?8lockstep\w+)$")
REFERRED = re.compile(r"\b(_ZNK?8lockstep\w+)")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def symbols(objects, tool, pattern):
    found = set()
    for begin in range(0, len(objects), 50):
        for line in output(*tool, *objects[begin:begin + 50]).splitlines():
            found.update(pattern.findall(line))
    return found


def readable(names):
    """Function names in sources: the variants of a constructor are one. Generated code is left out, and so is an anonymous namespace, which
    the compiler checks (nvcc alone shows it to others)."""
    shown = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in shown if "::pb::" not in name and "(anonymous namespace)" not in name}


def without_arguments(name):
    return re.sub(r"(\[abi:\w+\])?\(.*", "", name)


def main():
    build = pathlib.Path(sys.argv[1])
    modules = tuple(f"{line.split(':')[0]}/" for line in (build / "layers.txt").read_text().splitlines() if "/" not in line.split(":")[0])
    objects = [path.relative_to(build).as_posix() for path in build.rglob("*.o")]
    own = [str(build / path) for path in objects if path.startswith(modules)]
    others = [str(build / path) for path in objects if not path.startswith(TESTS)]
    if not own:
        sys.exit(f"no objects in {build}: build it first")
    defined = readable(symbols(own, ["nm", "--defined-only"], DEFINED))
    unused = sorted(defined - readable(symbols(others, ["readelf", "-rW"], REFERRED)))
    faults = [name for name in unused if without_arguments(name) not in ALLOWED]
    print("\n".join(f"called only by tests, or not at all: {fault}" for fault in faults)
          or f"every function of {len(own)} objects is called")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
