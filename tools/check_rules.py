#!/usr/bin/env python3
"""Rules of the repository that no compiler checks: tools/check_rules.py [ROOT]. Prints every breach; exit 1 if any.

1. Every *_test.cpp and *_test.py is named in the CMakeLists.txt of its folder or of the next one above, so that no test is forgotten.
2. Every exit code of base/error.h has a row in docs/exit_codes.md, under its name and with its class of base/exit_class.h, and there are no other rows.
3. Every modifier of recal/schedule/modifier_table.cpp has a section in docs/recipe.md, and an item, by one of its names, in the recipe that a test
   trains with every modifier.
4. No file names a folder of the machine it was written on.
5. Relative links in *.md lead to files that exist.
6. Every variable of a module that lives as long as the process has a line in tools/process_state.txt, which says why no job of a server sees what
   another one left in it. A line that says ProcessState is of a file, or names one, that has such an object.
7. Tests outside tests/support neither sleep nor read a clock: tests/support/patience.{py,h} waits and checks times, so that a busy machine causes
   no failure. tests/slow_on_purpose.txt lists files that simulate slowness or measure, with the reason.
8. A case of tests/integration that is named after a concurrent event counts the event (counts.py there), since it may not have happened.
9. A file of a module declares its names in the namespace of its folder or one of FURTHER_NAMESPACES. In others it has only forward declarations.

Then those of tools/check_english.py: first words of doc comments, long sentences, home-made words, subjects of commits.
"""
import os
import pathlib
import re
import subprocess
import sys

import check_english

SLOW_ON_PURPOSE = "tests/slow_on_purpose.txt"
RAW_WAIT = {".py": re.compile(r"\btime\.(?:sleep|monotonic|perf_counter|time)\("),
            ".cpp": re.compile(r"\b(?:sleep_for|sleep_until|usleep|(?:steady|system)_clock::now)\b")}
RAW_WAIT[".h"] = RAW_WAIT[".cpp"]
RECIPE_OF_ALL = "tests/train/recipe_path_test.cpp"
# Variables inside a function, and at namespace scope, which clang-format puts at the begin of a line. Constants are no state.
LOCAL_VARIABLE = re.compile(r"^[ ]+(?:\[\[maybe_unused\]\] )?(?:static thread_local|thread_local static|static|thread_local) (?!const [^*=;({]*[=;({]|constexpr )"
                            r"[^()=;{]*?\b(\w+)(?: = |;|, (?=\w+;)|\{|\((?=\"|static_cast))")
WIDE_VARIABLE = re.compile(r"^(?:inline |static |thread_local )*(?!using |namespace|class |struct |enum |template|return|constexpr|const [\w:<>]+ \w|extern|typedef|"
                           r"friend|union|case |default|inline |else|#|//)(?:const )?[A-Za-z_][\w:]*(?:<.*>)?[ *&]+([a-z_]\w*)(?: = [^;()]*;|;|\{[^}]*\};)")
NAMESPACE = re.compile(r"^namespace (lockstep[\w:]*) \{\n(?!(?:(?:class|struct) \w+;\n)+\})", re.MULTILINE)  # with more than forward declarations
FOLDERS_WITH_NAMESPACE = {"infer/exports": "exports"}
FURTHER_NAMESPACES = {"base": ("lockstep", "lockstep::files", "lockstep::flags", "lockstep::log", "lockstep::trace", "lockstep::HWY_NAMESPACE"),
                      "daemon": ("lockstep::train_estimator",), "estimator": ("lockstep",), "metrics": ("lockstep::summary",), "plot": ("lockstep::chart",)}
SKIPPED_FOLDERS = {"build", "runs", "__pycache__"}
# In pieces, so that this file passes.
MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:" + "work|ro" + r"ot)(?:/|\b(?![\w-]))")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def files_of(root):
    """Tracked files and new ones that git does not ignore; without git, every file."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, text=True)
    if listed.returncode == 0:
        paths = [root / name for name in listed.stdout.split("\0") if name]
        return sorted(path for path in set(paths) if path.is_file() and not path.is_symlink())
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith(".venv")]
        found += [pathlib.Path(folder) / name for name in names]
    return sorted(found)


def text_of(path):
    """Text of the file; None if it is not text."""
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return None


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def unregistered_tests(root, files):
    for path in files:
        if not re.search(r"_test\.(cpp|py)$", path.name):
            continue
        cmake = next((up / "CMakeLists.txt" for up in path.parents if (up / "CMakeLists.txt").exists()), None)
        listed = cmake.read_text() if cmake else ""
        # Python tests are registered in a loop over their names without the ending.
        name = re.escape(path.name) if path.suffix == ".cpp" else f"{re.escape(path.stem)}\\.py"
        stem = re.escape(path.stem.removesuffix("_test"))
        loop = path.suffix == ".py" and re.search(r"_test\.py", listed) and re.search(rf"ITEMS[^)]*\b{stem}\b[^)]*\)", listed)
        if not re.search(rf"(?<![\w]){name}\b", listed) and not loop:
            yield f"{path.relative_to(root)}: no CMakeLists.txt runs this test"


def undocumented_exit_codes(root, _):
    codes = dict(re.findall(r"^\s*(k\w+) = (\d+),", (root / "base/error.h").read_text(), re.MULTILINE))
    rows = dict(re.findall(r"^\| (\d+) \| `(k\w+)` \|", (root / "docs/exit_codes.md").read_text(), re.MULTILINE))
    if not codes:
        yield "base/error.h: no exit codes found; this rule must learn how they are written"
    for name, code in codes.items():
        if rows.pop(code, None) != name:
            yield f"docs/exit_codes.md: no row '| {code} | `{name}` |'"
    for code, name in rows.items():
        yield f"docs/exit_codes.md: row {code} ({name}) is no exit code of base/error.h"


def undocumented_exit_classes(root, _):
    facts = dict(re.findall(r"ExitFact\{code_of\(ExitCode::(k\w+)\), ExitClass::k(\w+)", (root / "base/exit_class.h").read_text()))
    rows = dict(re.findall(r"^\| \d+ \| `(k\w+)` \| (\w+) \|", (root / "docs/exit_codes.md").read_text(), re.MULTILINE))
    if not facts:
        yield "base/exit_class.h: no rows found; this rule must learn how they are written"
    for name in re.findall(r"^\s*(k\w+) = \d+,", (root / "base/error.h").read_text(), re.MULTILINE):
        if name not in facts:
            yield f"base/exit_class.h: no row for {name}"
        elif rows.get(name) != facts[name].lower():
            yield f"docs/exit_codes.md: the class of {name} is '{rows.get(name)}', in base/exit_class.h it is '{facts[name].lower()}'"


def forgotten_modifiers(root, _):
    table = (root / "recal/schedule/modifier_table.cpp").read_text()
    tags = re.findall(r'own\.add\(\{"(\w+)"', table)
    if not tags:
        yield "recal/schedule/modifier_table.cpp: no rows found; this rule must learn how they are written"
    sections = re.findall(r"^### `!(\w+)`", (root / "docs/recipe.md").read_text(), re.MULTILINE)
    for tag in tags:
        if tag not in sections:
            yield f"docs/recipe.md: no section '### `!{tag}`'"
    there = set(re.findall(r"^ +- !(\w+)", (root / RECIPE_OF_ALL).read_text(), re.MULTILINE))
    for tag in tags:
        names = {tag, *re.findall(rf'AliasRow\{{"(\w+)", "{tag}"', table)}
        if there.isdisjoint(names):
            yield f"{RECIPE_OF_ALL}: no item '- !{tag}', though its recipe is there to train with every modifier"


def machine_paths(root, files):
    for path in files:
        text = text_of(path) or ""
        for match in MACHINE_PATH.finditer(text):
            yield f"{path.relative_to(root)}:{line_of(text, match.start())}: names a folder of one machine"


def dead_links(root, files):
    for path in files:
        if path.suffix != ".md":
            continue
        text = CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), path.read_text())
        for match in LINK.finditer(text):
            target = match[1].split("#")[0]
            if not target or re.match(r"[a-z]+:", target):
                continue
            if not (path.parent / target).exists():
                yield f"{path.relative_to(root)}:{line_of(text, match.start())}: {target} does not exist"


def stated_variables(path, text):
    for line in text.splitlines():
        match = (LOCAL_VARIABLE.match(line) if path.suffix != ".h" else None) or WIDE_VARIABLE.match(line)
        if match:
            yield match[1]


def modules_of(files):
    return {path.parent for path in files if path.name == "CMakeLists.txt" and "lockstep_module(" in (text_of(path) or "")}


def foreign_namespaces(root, files):
    modules = modules_of(files)
    for path in files:
        name = path.relative_to(root)
        if path.suffix not in (".cpp", ".h", ".cu") or modules.isdisjoint(path.parents):
            continue
        room = FOLDERS_WITH_NAMESPACE.get(name.parent.as_posix(), name.parts[0])
        text = text_of(path) or ""
        for match in NAMESPACE.finditer(text):
            if match[1] not in FURTHER_NAMESPACES.get(room, ()) and not f"{match[1]}::".startswith(f"lockstep::{room}::"):
                yield f"{name}:{line_of(text, match.start())}: namespace {match[1]} is not lockstep::{room}"


def unowned_state(root, files):
    modules = modules_of(files)
    list_file = root / "tools/process_state.txt"
    lines = list_file.read_text().splitlines() if list_file.exists() else []
    reasons = dict(line.split(": ", 1) for line in lines if ": " in line and not line.startswith("#"))
    for path in files:
        if path.suffix not in (".cpp", ".h") or modules.isdisjoint(path.parents):
            continue
        text = path.read_text()
        for name in sorted(set(stated_variables(path, text))):
            key = f"{path.relative_to(root)} {name}"
            reason = reasons.pop(key, None)
            owners = [text, *((root / name).read_text() for name in re.findall(r"[\w/]+\.cpp", reason or "") if (root / name).exists())]
            if reason is None:
                yield f"{key}: lives as long as the process: give it a ProcessState (base/process.h), and a line in tools/process_state.txt"
            elif "ProcessState" in reason and not any(re.search(r"ProcessState \w+\(", owner) for owner in owners):
                yield f"tools/process_state.txt: {key}: there is no ProcessState"
    for key in reasons:
        yield f"tools/process_state.txt: {key}: there is no such variable"


def raw_waits(root, files):
    table = root / SLOW_ON_PURPOSE
    lines = table.read_text().splitlines() if table.exists() else []
    excuses = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    for path in files:
        name = path.relative_to(root).as_posix()
        if path.suffix not in RAW_WAIT or not name.startswith("tests/") or name.startswith("tests/support/"):
            continue
        text = text_of(path) or ""
        found = RAW_WAIT[path.suffix].search(text)
        if found and excuses.pop(name, None) is None:
            yield f"{name}:{line_of(text, found.start())}: sleeps or reads a clock: use tests/support/patience, or say in {SLOW_ON_PURPOSE} what it simulates"
    for name in excuses:
        yield f"{SLOW_ON_PURPOSE}: {name} neither sleeps nor reads a clock"


def uncounted_events(root, files):
    for path in files:
        if not path.relative_to(root).as_posix().startswith("tests/integration/") or path.suffix != ".py":
            continue
        text = text_of(path) or ""
        for match in re.finditer(r"^    def (test_\w*meanwhile\w*)\(.*\n((?:        .*\n|\n)*)", text, re.MULTILINE):
            if not re.search(r"\b(?:happened|counted)\(", match[2]):
                yield f"{path.relative_to(root)}:{line_of(text, match.start())}: {match[1]} does not count what happens meanwhile: happened(what, number)"


RULES = (unregistered_tests, undocumented_exit_codes, undocumented_exit_classes, forgotten_modifiers, machine_paths, dead_links, foreign_namespaces,
         unowned_state, raw_waits, uncounted_events, *check_english.RULES)


def breaches(root):
    files = files_of(root)
    return [breach for rule in RULES for breach in rule(root, files)]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1]).resolve()
    found = breaches(root)
    print("\n".join(found) if found else f"{len(RULES)} rules hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
