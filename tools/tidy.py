#!/usr/bin/env python3
"""clang-tidy over own sources, which looks only at what changed: tools/tidy.py BUILD_FOLDER FILE...

A file that passed is remembered under the digest of everything that its verdict depends on: clang-tidy's version, .clang-tidy, the
file's compile command, LibTorch's version, the *.proto files, the file itself and the repository's headers that it includes, at any depth
(Debian's headers are taken to stay). The memory is a folder of empty files, ${XDG_CACHE_HOME:-~/.cache}/lockstep/clang-tidy; removing it costs time only. Exit code 1 if any file has a finding.
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
# g++'s own flags that clang does not know, the precompiled header, and what starts the compiler.
GCC_ONLY = re.compile(r"\s-(fpch-preprocess|Winvalid-pch|Wno-restrict)\b|\s-include \S*cmake_pch\.hxx")
LAUNCHER = re.compile(r"^.*?(?=\S*/c\+\+ |\S*/g\+\+ )")


@functools.lru_cache(maxsize=None)
def own_file(path):
    """(digest of its bytes, own headers that it includes); None where the path is none of the repository's."""
    if not path.is_file():
        return None
    text = path.read_bytes()
    return hashlib.sha256(text).hexdigest(), tuple(name.decode() for name in INCLUDE.findall(text))


def texts_of(path, seen):
    """Names and digests of the file and of the own headers below it."""
    facts = own_file(path)
    if facts is None or path in seen:
        return
    seen.add(path)
    yield f"{path.relative_to(ROOT)} {facts[0]}"
    for name in facts[1]:
        for folder in (ROOT, path.parent, ROOT / "tests"):
            if (folder / name).is_file():
                yield from texts_of((folder / name).resolve(), seen)
                break


def clean_commands(build):
    commands = json.loads((build / "compile_commands.json").read_text())
    for entry in commands:
        entry["command"] = LAUNCHER.sub("", GCC_ONLY.sub(" ", entry["command"]))
    return commands


@functools.lru_cache(maxsize=None)
def text_beside(torch_include):
    """What names LibTorch's version, beside its include folder."""
    path = pathlib.Path(torch_include).parent / "version.py"
    return path.read_text() if path.is_file() else ""


@functools.lru_cache(maxsize=None)
def texts_of_protos():
    return "".join(path.read_text() for folder in ("checkpoint", "daemon") for path in sorted((ROOT / folder).rglob("*.proto")))


def verdict_key(path, command, version):
    torch = re.search(r"\s(/\S*/torch/include)(?:\s|$)", command)
    facts = [version, (ROOT / ".clang-tidy").read_text(), command.replace(str(ROOT), "."),
             text_beside(torch[1]) if torch else "", texts_of_protos()]
    return hashlib.sha256("\n".join(facts + sorted(texts_of(path, set()))).encode()).hexdigest()


def tidy(path, key, commands_folder):
    """Whether the file has no finding; findings are printed."""
    if (PASSED / key).exists():
        return True
    done = subprocess.run(["clang-tidy", "--quiet", "-p", commands_folder, path], capture_output=True, text=True, cwd=ROOT)
    if done.returncode == 0:
        (PASSED / key).touch()
        return True
    found = [line for line in done.stderr.splitlines() if not re.match(r"\d+ warnings? (and \d+ errors? )?generated", line)]
    print(done.stdout + "\n".join(found), flush=True)
    return False


def main(build, names):
    PASSED.mkdir(parents=True, exist_ok=True)
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        commands = clean_commands(build)
        (pathlib.Path(folder) / "compile_commands.json").write_text(json.dumps(commands))
        command_of = {pathlib.Path(entry["file"]).resolve(): entry["command"] for entry in commands}
        paths = [(ROOT / name).resolve() for name in names]
        unknown = [path for path in paths if path not in command_of]
        if unknown:
            sys.exit(f"tidy: no compile command for {unknown[0]}: configure first, with LOCKSTEP_CUDA=on for the CUDA module")
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            keys = [verdict_key(path, command_of[path], version) for path in paths]
            clean = list(pool.map(tidy, paths, keys, [folder] * len(paths)))
    print(f"clang-tidy: {clean.count(True)} of {len(clean)} files without findings")
    return 0 if all(clean) else 1


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
