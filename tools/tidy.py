#!/usr/bin/env python3
"""clang-tidy over own sources, which looks only at what changed: tools/tidy.py BUILD_FOLDER FILE...

A file that passed is remembered under the digest of everything that its verdict depends on: clang-tidy's version, .clang-tidy, the
file's compile command, LibTorch's version, the *.proto files, the file itself and the repository's headers that it includes, at any
depth (Debian's headers are taken to stay). Where the checkout and LibTorch lie does not matter, so CI in a bare Debian and a developer's
checkout use the same memory: a folder of empty files, ${XDG_CACHE_HOME:-~/.cache}/lockstep/clang-tidy; removing it costs time only.
Exit code 1 if any file has a finding.
"""
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
GCC_ONLY = re.compile(r"\s-(fpch-preprocess|Winvalid-pch|Wno-restrict)\b|\s--param=\S+|\s-O1\b|\s-include \S*cmake_pch\.hxx")
LAUNCHER = re.compile(r"^.*?(?=\S*/c\+\+ |\S*/g\+\+ )")
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
    return "".join(path.read_text() for folder in ("checkpoint", "daemon") for path in sorted((ROOT / folder).rglob("*.proto")))


def verdict_key(path, command, version):
    libtorch = LIBTORCH.search(command)
    if libtorch:
        command = command.replace(libtorch[1], "LIBTORCH")
    facts = [version, (ROOT / ".clang-tidy").read_text(), command.replace(str(ROOT), "."),
             libtorch_version(libtorch[1]) if libtorch else "", texts_of_protos()]
    return hashlib.sha256("\n".join(facts + sorted(texts_of(path, set()))).encode()).hexdigest()


def tidy(path, command, version, commands_folder):
    """Whether the file has no finding; findings are printed."""
    key = verdict_key(path, command, version)
    if (PASSED / key).exists():
        return True
    done = subprocess.run(["clang-tidy", "--quiet", "-p", commands_folder, path], capture_output=True, text=True, cwd=ROOT)
    if done.returncode == 0:
        if verdict_key(path, command, version) == key:  # else it was edited meanwhile
            (PASSED / key).touch()
        return True
    found = [line for line in done.stderr.splitlines() if not re.match(r"\d+ warnings? (and \d+ errors? )?generated", line)]
    print(done.stdout + "\n".join(found), flush=True)
    return False


def tidy_version():
    """Without the line that names this machine's processor."""
    lines = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()
    return "\n".join(line for line in lines if "version" in line)


def main(build, names):
    PASSED.mkdir(parents=True, exist_ok=True)
    version = tidy_version()
    entry_of = clean_commands(build)
    paths = [(ROOT / name).resolve() for name in names]
    unknown = [path for path in paths if path not in entry_of]
    if unknown:
        sys.exit(f"tidy: no compile command for {unknown[0]}: configure first, with LOCKSTEP_CUDA=on for the CUDA module")
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "compile_commands.json").write_text(json.dumps(list(entry_of.values())))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            clean = list(pool.map(lambda path: tidy(path, entry_of[path]["command"], version, folder), paths))
    print(f"clang-tidy: {clean.count(True)} of {len(clean)} files without findings")
    return 0 if all(clean) else 1


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
