#!/usr/bin/env python3
"""clang-tidy over own sources, only for changed files: tools/tidy.py BUILD_FOLDER FILE...

Files of one target that have not passed yet are checked in batches, the batches of the default build (cmake/LockstepModule.cmake), since
reading LibTorch's headers takes most of the time. A batch with a finding is checked again file by file.

A file that passed is cached under the digest of everything that its result depends on: clang-tidy's version, .clang-tidy, the
file's compile command, LibTorch's version, the *.proto files, the file itself and the repository's headers that it includes, at any
depth (Debian's headers are considered constant). The paths of the checkout and of LibTorch do not matter, so CI in a bare Debian and a developer's
checkout use the same cache: a folder of empty files, ${XDG_CACHE_HOME:-~/.cache}/lockstep/clang-tidy. It can be removed at any time.
Exit code 1 if any file has a finding.
"""
import collections
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PASSED = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "lockstep" / "clang-tidy"
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
# g++'s own flags that clang does not know, how much is optimised, the precompiled header, and what starts the compiler.
GCC_ONLY = re.compile(r"\s-(fpch-preprocess|fopenmp|Winvalid-pch|Wno-restrict)\b|\s--param=\S+|\s-O1\b|\s-include \S*cmake_pch\.hxx")
LAUNCHER = re.compile(r"^.*?(?=\S*/c\+\+ |\S*/g\+\+ )")
OWN_OUTPUT = re.compile(r" -o (?P<target>\S*)\.dir/\S+ -c \S+")
FILES_A_BATCH = 16
# Named, as clang-tidy would look for it in the source's folder, and a batch lies elsewhere.
OPTIONS = ("--quiet", "--config-file={root}/.clang-tidy")
BATCH_OPTIONS = ("--checks=-bugprone-suspicious-include",)  # added to the file's: a batch includes sources
LIBTORCH = re.compile(r"-idirafter (/\S*?/include)(?=\s|$)")  # the first of its two folders, which holds the second


@functools.lru_cache(maxsize=None)
def own_file(path, changed_ns):
    """(digest of its bytes, own headers that it includes)."""
    text = path.read_bytes()
    return hashlib.sha256(text).hexdigest(), tuple(name.decode() for name in INCLUDE.findall(text))


def texts_of(path, seen):
    """Names and digests of the file and of the own headers below it."""
    if path in seen:
        return
    seen.add(path)
    facts = own_file(path, path.stat().st_mtime_ns)
    yield f"{path.relative_to(ROOT)} {facts[0]}"
    for name in facts[1]:
        for folder in (ROOT, path.parent, ROOT / "tests"):
            if (folder / name).is_file():
                yield from texts_of((folder / name).resolve(), seen)
                break


def clean_commands(build):
    """One for each file: the first, where two programs compile it. With two, clang-tidy would look at the file twice."""
    entry_of = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        entry["command"] = LAUNCHER.sub("", GCC_ONLY.sub(" ", entry["command"]), count=1)
        entry_of.setdefault(pathlib.Path(entry["directory"], entry["file"]).resolve(), entry)
    return entry_of


@functools.lru_cache(maxsize=None)
def libtorch_version(include):
    path = pathlib.Path(include) / "torch/headeronly/version.h"
    return path.read_text() if path.is_file() else ""


@functools.lru_cache(maxsize=None)
def texts_of_protos():
    return "".join(path.read_text() for folder in ("checkpoint", "infer") for path in sorted((ROOT / folder).rglob("*.proto")))


def verdict_key(path, command, version):
    libtorch = LIBTORCH.search(command)
    if libtorch:
        command = command.replace(libtorch[1], "LIBTORCH")
    facts = [version, *OPTIONS, *BATCH_OPTIONS, (ROOT / ".clang-tidy").read_text(), command.replace(str(ROOT), "."),
             libtorch_version(libtorch[1]) if libtorch else "", texts_of_protos()]
    return hashlib.sha256("\n".join(facts + sorted(texts_of(path, set()))).encode()).hexdigest()


def batches_of(entry_of):
    """The files that compile with equal flags into one target, sixteen a batch: these are also compiled together."""
    files_by_flags = collections.defaultdict(list)
    for path, entry in entry_of.items():
        files_by_flags[OWN_OUTPUT.sub(r" \g<target>", entry["command"])].append(path)
    return [files[first : first + FILES_A_BATCH] for files in files_by_flags.values() for first in range(0, len(files), FILES_A_BATCH)]


class Linter:
    """Looks at the files of one build; a file that passed is not looked at again."""

    def __init__(self, entry_of, folder):
        self.entry_of = entry_of
        self.folder = pathlib.Path(folder)
        self.version = tidy_version()
        (self.folder / "compile_commands.json").write_text(json.dumps(list(entry_of.values())))

    def key(self, path):
        return verdict_key(path, self.entry_of[path]["command"], self.version)

    def passed(self, path):
        return (PASSED / self.key(path)).exists()

    def finding_of(self, commands_folder, source, paths, more_options=()):
        """clang-tidy's messages about a source that is, or includes, these files; None (remembered) if there are none."""
        keys = [self.key(path) for path in paths]
        options = [option.format(root=ROOT) for option in (*OPTIONS, *more_options)]
        done = subprocess.run(["clang-tidy", *options, "-p", commands_folder, source], capture_output=True, text=True, cwd=ROOT)
        if done.returncode == 0:
            for path, key in zip(paths, keys):
                if self.key(path) == key:  # else it was edited meanwhile
                    (PASSED / key).touch()
            return None
        found = [line for line in done.stderr.splitlines() if not re.match(r"\d+ warnings? (and \d+ errors? )?generated", line)]
        return done.stdout + "\n".join(found)

    def batch_passes(self, paths):
        """True if they pass as one source, which contains only their include lines."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            source = pathlib.Path(folder, "batch.cpp")
            source.write_text("".join(f'#include "{path}"\n' for path in paths))
            entry = dict(self.entry_of[paths[0]], file=str(source))
            entry["command"] = entry["command"].replace(f" -c {paths[0]}", f" -c {source}")
            pathlib.Path(folder, "compile_commands.json").write_text(json.dumps([entry]))
            return self.finding_of(folder, source, paths, BATCH_OPTIONS) is None

    def clean_files(self, paths):
        """Number of a batch's files without a finding; findings are printed."""
        pending = [path for path in paths if not self.passed(path)]
        if len(pending) > 1 and self.batch_passes(pending):
            return len(paths)
        findings = [self.finding_of(self.folder, path, [path]) for path in pending]
        for finding in filter(None, findings):
            print(finding, flush=True)
        return len(paths) - sum(finding is not None for finding in findings)


def tidy_version():
    """Version without the line that names this machine's processor."""
    lines = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()
    return "\n".join(line for line in lines if "version" in line)


def main(build, names):
    PASSED.mkdir(parents=True, exist_ok=True)
    entry_of = clean_commands(build)
    paths = [(ROOT / name).resolve() for name in names]
    unknown = [path for path in paths if path not in entry_of]
    if unknown:
        sys.exit(f"tidy: no compile command for {unknown[0]}: configure a build that compiles sources one by one (cmake --preset develop, again for a new file), with LOCKSTEP_CUDA=on for the CUDA module")
    asked = set(paths)
    batches = [[path for path in batch if path in asked] for batch in batches_of(entry_of)]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        clean = sum(pool.map(Linter(entry_of, folder).clean_files, batches))
    print(f"clang-tidy: {clean} of {len(asked)} files without findings")
    return 0 if clean == len(asked) else 1


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
