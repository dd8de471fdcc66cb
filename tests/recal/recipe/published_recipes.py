#!/usr/bin/env python3
"""Reads a folder of published recipes with `lockstep plan` and prints what becomes of each file.

    published_recipes.py FOLDER [--lockstep build/default/bin/lockstep] [--steps-per-epoch 100]

A recipe file has `recipe` in its path and is YAML or Markdown. Each is one of
  loads         with how many notes and warnings
  is refused    with the first fault: what is missing, or what is wrong in the file itself
  is a page     Markdown without a recipe in front matter
A refused file that names only modifiers which Lockstep has is listed once more with its fault, so that each can be judged by
itself. Exits with 1 if one of them is refused for another reason than those in KNOWN_REASONS, or if a file ends the program in
another way than with a plan or the exit code of a configuration fault.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ENDINGS = {".md", ".mdx", ".yaml", ".yml"}
CONFIG_FAULT = 78
NAME = re.compile(r"!(\w+Modifier)\b|^\s*-?\s*(\w+Modifier):", re.M)

# Why a file that names only modifiers which there are may be refused all the same.
KNOWN_REASONS = {
    "the file names an anchor that it does not define": r"referenced anchor is not defined|unknown anchor",
    "the file names a variable that it does not define": r"unknown variable",
    "a sparsity that falls": r"must not be less than init_sparsity",
    "a stage without training": r"is one-shot",
    "a loss of the outputs of layers": r"OutputDistillationModifier\.targets' is not supported",
}


def recipe_part(text):
    """The front matter of a Markdown text, or None if it has none, or none that holds modifiers."""
    match = re.match(r"\s*(?:<!--.*?-->\s*)*---[ \t]*\n(.*?)^---[ \t]*$", text, re.S | re.M)
    return match.group(1) if match and "modifiers" in match.group(1) else None


def known_modifiers(lockstep, scratch):
    """Modifiers that the program lists when an unknown one is named."""
    scratch.write_text("modifiers:\n  - !Wrong {a: 1}\n")
    told = subprocess.run([lockstep, "plan", scratch, "--steps-per-epoch", "1"], capture_output=True, text=True)
    return set(re.findall(r"!(\w+Modifier)", told.stderr))


def first_fault(stderr):
    for line in stderr.splitlines():
        match = re.match(r".*?: error: (.*)", line)
        if match:
            return match.group(1)
    return stderr.strip().splitlines()[-1] if stderr.strip() else "nothing is said"


def shortened(text, width=150):
    return text if len(text) <= width else text[: width - 3] + "..."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--lockstep", default="build/default/bin/lockstep")
    parser.add_argument("--steps-per-epoch", default="100")
    options = parser.parse_args()

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        known = known_modifiers(options.lockstep, pathlib.Path(folder) / "wrong.yaml")
    files = sorted(
        path
        for path in options.folder.rglob("*")
        if path.suffix in ENDINGS and "recipe" in str(path.relative_to(options.folder)).lower() and path.is_file()
    )
    counts = {"loads": 0, "is a page": 0, "is refused": 0}
    judged, broken = [], []
    for path in files:
        name = path.relative_to(options.folder)
        text = path.read_text(errors="replace")
        part = recipe_part(text) if path.suffix in {".md", ".mdx"} else text
        if part is None:
            counts["is a page"] += 1
            print(f"is a page   {name}")
            continue
        told = subprocess.run(
            [options.lockstep, "plan", path, "--steps-per-epoch", options.steps_per_epoch], capture_output=True, text=True
        )
        if told.returncode == 0:
            counts["loads"] += 1
            said = [line.split(":")[0] for line in told.stdout.splitlines()]
            print(f"loads       {name} ({said.count('note')} notes, {said.count('warning')} warnings)")
            continue
        counts["is refused"] += 1
        fault = first_fault(told.stderr)
        print(f"is refused  {name}: {shortened(fault)}")
        named = {a or b for a, b in NAME.findall(part)}
        if told.returncode != CONFIG_FAULT:
            broken.append((name, f"it ends with {told.returncode}"))
        elif named <= known:
            reason = next((why for why, pattern in KNOWN_REASONS.items() if re.search(pattern, told.stderr)), None)
            judged.append((name, reason, fault))
            if reason is None:
                broken.append((name, fault))

    print(f"\n{len(files)} files: " + ", ".join(f"{number} {what}" for what, number in counts.items()))
    print(f"refused though all their modifiers are there: {len(judged)}")
    for name, reason, fault in judged:
        print(f"  {name}: {reason or 'NO KNOWN REASON'}: {shortened(fault)}")
    for name, why in broken:
        print(f"NOT AS IT SHOULD BE: {name}: {why}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
