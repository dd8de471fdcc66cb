#!/usr/bin/env python3
"""Checks every #include of ours against the arrows that CMake declares.

usage: check_layers.py SOURCE_DIR LAYERS_FILE
LAYERS_FILE has one line a folder: `recal: base dist`.
"""
import pathlib
import re
import sys

source_dir, layers_file = map(pathlib.Path, sys.argv[1:3])
allowed = {}
for line in layers_file.read_text().splitlines():
    folder, _, uses = line.partition(":")
    if folder:
        allowed[folder] = {folder, *uses.split()}
for folder in list(allowed):  # an arrow reaches what the used folder reaches
    reach = set(allowed[folder])
    while (more := set().union(*(allowed[f] for f in reach if f in allowed)) - reach):
        reach |= more
    allowed[folder] = reach

include = re.compile(r'^\s*#\s*include\s+"([a-z_]+)/')
faults, num_files = [], 0
for folder in allowed:
    for path in sorted((source_dir / folder).rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu"}:
            continue
        num_files += 1
        for number, text in enumerate(path.read_text().splitlines(), 1):
            match = include.match(text)
            if match and match.group(1) not in allowed[folder]:
                faults.append(f"{path.relative_to(source_dir)}:{number}: {folder} may not include {match.group(1)}")
print("\n".join(faults) or f"{num_files} files of {len(allowed)} folders follow the declared arrows")
sys.exit(bool(faults) or num_files == 0)
