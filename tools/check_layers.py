#!/usr/bin/env python3
"""Checks every own #include against the dependencies that CMake declares.

usage: check_layers.py SOURCE_DIR LAYERS_FILE
LAYERS_FILE has one line for each folder, `recal: base dist`, and one for each declared sub-folder, `recal/masks: params`
(names within recal; `.` is its own files). A sub-folder may use the folders of its line and those that they use. A name with a leading slash
is a folder of another module: `daemon/run: control /infer/exports` is above infer/exports, although daemon/config is below it.
"""
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s+"([\w/]+/)[\w.]+"')
GENERATED = re.compile(r'\.pb\.h"')


def read_layers(text):
    """{folder: its line's folders}, sub-folders as `recal/masks`."""
    def full(each, top, name):
        return each[1:] if each.startswith("/") else f"{top}/{each}" if "/" in name else each

    uses = {}
    for line in text.splitlines():
        name, _, used = line.partition(":")
        if name:
            top = name.split("/")[0]
            uses[name] = {full(each, top, name) for each in used.split()}
    return uses


def reach_of(name, uses):
    """Folders that a folder may include: those that it uses, and those that these use."""
    reach, new = {name}, {name}
    while new:
        new = set().union(*(uses.get(each, set()) for each in new)) - reach
        reach |= new
    return reach


def cycles(uses):
    return [f"{name}: uses itself, through {each}" for name in uses for each in sorted(uses[name])
            if name in reach_of(each, uses)]


def layer_of(folder, uses):
    """The declared sub-folder of a path such as recal/masks; the path itself where none is."""
    top = folder.split("/")[0]
    if not any(name.startswith(top + "/") for name in uses):
        return top
    return f"{top}/." if folder == top else folder


def breach(layer, included, uses):
    """The folder that may not be included from this layer; None if it may."""
    top, other = layer.split("/")[0], included.split("/")[0]
    target, reach = layer_of(included, uses), reach_of(layer, uses)
    if other != top and (other in reach_of(top, uses) or other in reach or other not in uses):
        return None
    return None if target in reach else target


def check(source_dir, uses):
    faults, num_files = cycles(uses), 0
    for top in (name for name in uses if "/" not in name):
        for path in sorted((source_dir / top).rglob("*")):
            if path.suffix not in {".h", ".cpp", ".cu"}:
                continue
            num_files += 1
            layer = layer_of(path.parent.relative_to(source_dir).as_posix(), uses)
            if layer not in uses:
                faults.append(f"{path.relative_to(source_dir)}: {layer} is no declared folder of {top}")
                continue
            for number, text in enumerate(path.read_text().splitlines(), 1):
                match = INCLUDE.match(text)
                if match and not GENERATED.search(text) and (other := breach(layer, match[1].rstrip("/"), uses)):
                    faults.append(f"{path.relative_to(source_dir)}:{number}: {layer} may not include {other}")
    return faults, num_files


def main():
    source_dir, layers_file = map(pathlib.Path, sys.argv[1:3])
    uses = read_layers(layers_file.read_text())
    faults, num_files = check(source_dir, uses)
    print("\n".join(faults) or f"{num_files} files of {len(uses)} folders follow the declared dependencies")
    return bool(faults) or num_files == 0


if __name__ == "__main__":
    sys.exit(main())
