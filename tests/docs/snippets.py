"""Blocks and commands of the project's pages, and what is wrong with them. Each kind has its own judge: bash, the programs' own --help, `lockstep
check`, Python's compiler, promtool.

LOCKSTEP_BUILD names the build folder.
"""
import ast
import functools
import json
import os
import pathlib
import re
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ["LOCKSTEP_BUILD"]).resolve() / "bin"
PROMTOOL = SOURCE / ".venv-test/bin/promtool"
# Blocks that others judge: compilers, as tests and examples hold the same code; `text` is what programs print.
OTHERS = {"cpp", "cmake", "text"}
SHELL = {"sh", "bash"}
# An indented block is of the shell where its first line begins with one of these.
COMMANDS = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:lockstepd?|make|cmake|ctest|mpirun|nvidia-smi|(?:tools|launch|build|bench)/\S+)(?: |$)")
FENCED = re.compile(r"^( *)```([\w-]*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)((?:    [^\n]*\n)+)")
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PROGRAM = re.compile(r"(?:^|[\s/(\"])(lockstepd?)((?: (?:[^|;&`#()]|\(docs)*)?)(?=$|[|;&`#()])")
FOLDERS = ("bench/", "configs/", "examples/", "launch/", "tests/", "tools/")


def pages():
    """Pages for readers. Decisions and results are history."""
    listed = subprocess.run(["git", "-C", SOURCE, "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.split()
    return [SOURCE / name for name in listed if not name.startswith(("CHANGELOG", "docs/decisions/", "bench/results/", "tests/"))]


class Block:
    def __init__(self, language, text, line):
        self.language, self.text, self.line = language, text, line


def blank(match):
    """The same lines without text, so that what follows keeps its place."""
    return re.sub(r"[^\n]", " ", match[0])


def blocks(page):
    """Fenced blocks, indented ones of the shell, and commands within sentences ("inline")."""
    def line_of(offset):
        return page.count("\n", 0, offset) + 1
    found = [Block(match[2], re.sub(rf"(?m)^{match[1]}", "", match[3]), line_of(match.start(3))) for match in FENCED.finditer(page)]
    rest = FENCED.sub(blank, page)
    for match in INDENTED.finditer(rest):
        text = re.sub(r"(?m)^    ", "", match[1])
        if COMMANDS.match(text):
            found.append(Block("sh", text.removeprefix("$ "), line_of(match.start(1))))
    rest = INDENTED.sub(blank, rest)
    found += [Block("inline", match[1], line_of(match.start())) for match in INLINE.finditer(rest)]
    return sorted(found, key=lambda block: block.line)


def run(*words, **kwargs):
    done = subprocess.run([*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **kwargs)
    return done.returncode, done.stdout


@functools.cache
def parts_of(program, *path):
    """Sub-commands and options that --help names."""
    code, text = run(BIN / program, *path, "--help")
    assert code == 0, f"{program} {path}: {text}"
    commands, options, section = set(), set(), ""
    for line in text.splitlines():
        if re.match(r"^\w.*:$", line):
            section = line
        elif found := re.match(r"^  (\S+)", line):
            if section == "Subcommands:":
                commands.add(found[1])
            elif found[1].startswith("-"):
                options.update(found[1].split(","))
    return commands, options


@functools.cache
def flags():
    """Flags of runs without a file, from the table that the programs write (tools.run_file_reference)."""
    rows = re.findall(r"(?m)^\| (`--[^|]*)\|", (SOURCE / "docs/flags.md").read_text())
    return {name for row in rows for name in re.findall(r"`--(\w+)`", row)}


def faults_of_command(program, arguments):
    words, path = arguments.split(" -- ")[0].split(), []
    for word in words:
        commands = parts_of(program, *path)[0]
        if word in commands:
            path.append(word)
        elif commands and path == [] and program == "lockstep" and re.fullmatch(r"[a-z]+", word):
            yield f"{program} has no command '{word}'"
            return
        else:
            break
    options = parts_of(program, *path)[1]
    for option in re.findall(r"(?<![\w-])--([a-z][\w-]*)", " ".join(words)):
        if f"--{option}" not in options and option not in flags():
            yield f"{' '.join([program, *path])} has no option --{option}"


def is_built(name):
    """True if the CMakeLists.txt of that folder builds a program of this name, here or with CUDA."""
    cmake = (SOURCE / name).parent / "CMakeLists.txt"
    return cmake.exists() and re.search(rf"\b(?:bench_)?{re.escape(pathlib.Path(name).name)}\b", cmake.read_text()) is not None


def faults_of_line(line):
    """Programs of ours, targets of make, and files of the repository or the build that a line names."""
    for match in PROGRAM.finditer(line):
        yield from faults_of_command(match[1], match[2])
    for target in re.findall(r"(?:^|[;&`] ?)make ([a-z][a-z-]*)", line):
        if not re.search(rf"(?m)^{target}:", (SOURCE / "Makefile").read_text()):
            yield f"the Makefile has no target '{target}'"
    for name in re.findall(r"(?<![\w/.$-])((?:%s)[\w./-]*\w)(?![\w*<{/])" % "|".join(FOLDERS), line):
        if not (SOURCE / name).exists() and not is_built(name):
            yield f"there is no {name}, nor is it built"


def faults_of_shell(text):
    code, said = run("bash", "-n", input=text)
    if code != 0:
        yield f"bash: {said.strip()}"
    joined = re.sub(r"\\\n", " ", text)
    for line in joined.splitlines():
        yield from faults_of_line(re.sub(r"(^| )#.*", "", line))
    for program in re.findall(r"python3 -c \"([^\"]*)\"", joined):
        yield from faults_of_python(program)


def faults_of_python(text):
    try:
        ast.parse(text)
    except SyntaxError as fault:
        yield f"Python: {fault}"


def faults_of_json(text):
    try:
        json.loads(text)
    except ValueError as fault:
        yield f"JSON: {fault}"


def promtool(command, files):
    """promtool's messages about the first file; "" if nothing is wrong, or without promtool."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            pathlib.Path(folder, name).write_text(text)
        if "server.key" in "".join(files.values()):
            run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-keyout", "server.key", "-out", "server.crt", cwd=folder)
        code, said = run(PROMTOOL, "check", *command, next(iter(files)), cwd=folder)
        return "" if code == 0 else f"promtool: {said.strip()}"


def indented(text):
    return re.sub(r"(?m)^(?=.)", "  ", text)


def faults_of_prometheus(text):
    """A configuration, or the part of one that a reader puts under scrape_configs."""
    whole = text if "scrape_configs:" in text else f"scrape_configs:\n{text if text.startswith(' ') else indented(text)}"
    return promtool(["config"], {"prometheus.yml": whole, "password": "x", "token": "x"})


def faults_of_promql(text):
    return promtool(["rules"], {"rules.yml": f"groups:\n- name: page\n  rules:\n  - record: a:b\n    expr: |\n{indented(indented(indented(text)))}"})


def faults_of_web_config(text):
    return promtool(["web-config"], {"web.yml": text.replace("$2y$10$...", "$2y$10$" + 53 * "a")})


def checked(text, folder):
    pathlib.Path(folder, "run.yaml").write_text(text)
    return run(BIN / "lockstep", "check", "run.yaml", cwd=folder)


def faults_of_run_file(text):
    """Faults of a run file. A whole file may only lack files that are not here. In a part each key must be one of a run file."""
    with tempfile.TemporaryDirectory() as folder:
        code, said = checked(text, folder)
    is_whole = re.search(r"(?m)^train:", text) and re.search(r"(?m)^model:", text)
    wrong = [line for line in said.splitlines() if "unknown key" in line]
    if wrong:
        yield from wrong
    elif is_whole and code not in (0, 66):
        yield said.strip()


def yaml_syntax(text):
    """The parser's message, for any tags; "" if nothing is wrong."""
    code, said = run(SOURCE / ".venv-test/bin/python", "-c", "import sys, yaml; list(yaml.compose_all(sys.stdin))", input=text)
    return "" if code == 0 else f"YAML: {said.strip().splitlines()[-1]}"


def faults_of_yaml(text):
    if syntax := yaml_syntax(text):
        return [syntax]
    if re.search(r"(?m)^\s*(?:scrape_configs:|- job_name:)", text):
        return [faults_of_prometheus(text)]
    if "tls_server_config:" in text or "basic_auth_users:" in text:
        return [faults_of_web_config(text)]
    if re.search(r"(?m)^groups:", text):
        return [promtool(["rules"], {"rules.yml": text})]
    if re.search(r"(?m)^apiVersion:", text):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            code, said = run(SOURCE / ".venv-test/bin/kubernetes-validate", file.name)
            return [] if code == 0 else [said.strip()]
    return faults_of_run_file(text)


JUDGES = {**dict.fromkeys(SHELL, faults_of_shell), "inline": faults_of_line, "python": faults_of_python, "json": faults_of_json,
          "yaml": faults_of_yaml, "promql": lambda text: [faults_of_promql(text)]}


def faults_of(block):
    if block.language in OTHERS:
        return []
    if block.language not in JUDGES:
        return [f"no judge for a block of '{block.language}': name its language, `text` where it is what a program prints"]
    return [fault for fault in JUDGES[block.language](block.text) if fault]
