"""Series of docs/metrics.md that a real run has changed. The harness records the last page of each run, by test file, under moved_series/ of
the build folder; this script lists those that no run has moved:

    python3 tests/integration/moved_series.py BUILD_FOLDER

A counter or histogram has moved once it is above 0, a gauge once it is on a page with a value other than 0.
"""
import contextlib
import pathlib
import re
import subprocess
import sys

# Why no test here moves them.
EXCUSED = {
    "lockstep_gpu_info": "needs a GPU",
    "lockstep_gpu_memory_bytes": "needs a GPU",
    "lockstep_gpu_memory_limit_bytes": "needs a GPU",
    "lockstep_gpu_memory_allocated_bytes": "needs a GPU",
    "lockstep_gpu_memory_reserved_bytes": "needs a GPU",
    "lockstep_gpu_memory_peak_bytes": "needs a GPU",
    "lockstep_gpu_ooms_total": "needs a GPU",
    "lockstep_data_wait_duration_seconds": "not on text pages; read by tests/metrics/page_oracle.py",
}
TESTS = pathlib.Path(__file__).resolve().parent
_seen = set()


def moved_on(page):
    """Names of the series of a page that have another value than 0; those of a histogram as itself."""
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE))
    moved = set()
    for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", page, re.MULTILINE):
        if float(value) != 0:
            moved.add(name if name in kinds else re.sub(r"_(bucket|sum|count)$", "", name))
    return moved


def record(build, page):
    """Records the series that a run of the current test file has changed."""
    _seen.update(moved_on(page))
    folder = pathlib.Path(build) / "moved_series"
    folder.mkdir(exist_ok=True)
    remove_what_is_old(build)
    path = folder / f"{pathlib.Path(sys.argv[0]).stem}.txt"
    if path.exists():
        _seen.update(path.read_text().split())  # of a case in a process of its own, or of a start before
    path.write_text("".join(f"{name}\n" for name in sorted(_seen)))


def remove_what_is_old(build):
    """Removes records of earlier builds, or of deleted tests, which say nothing about this build."""
    built_s = (pathlib.Path(build) / "bin/lockstepd").stat().st_mtime
    for path in (pathlib.Path(build) / "moved_series").glob("*.txt"):
        test = TESTS / f"{path.stem}.py"
        with contextlib.suppress(FileNotFoundError):  # another test may have removed it
            if not test.exists() or path.stat().st_mtime < max(built_s, test.stat().st_mtime):
                path.unlink()


def all_series(build):
    table = subprocess.run([pathlib.Path(build) / "bin/lockstep", "reference", "--metrics"], check=True, capture_output=True, text=True).stdout
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def unmoved(build):
    """Unchanged series in the table's order, without those that have an excuse."""
    remove_what_is_old(build)
    moved = {name for path in (pathlib.Path(build) / "moved_series").glob("*.txt") for name in path.read_text().split()}
    return [name for name in all_series(build) if name not in moved and name not in EXCUSED]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: moved_series.py BUILD_FOLDER")
    found = unmoved(sys.argv[1])
    print("\n".join(found) if found else f"every series has been moved, but {len(EXCUSED)} that cannot be here")
    sys.exit(1 if found else 0)
