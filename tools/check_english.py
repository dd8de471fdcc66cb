"""Rules of plain English that a program can check. tools/check_rules.py runs them.

Doc comments are checked in all headers and sources, the rest in product files, which are those outside tests/, bench/ and examples/.
Pages are the *.md files outside bench/results and tests/.
"""
import re
import subprocess

MOST_WORDS = 25
MOST_OF_SUBJECT = 72
NUM_COMMITS = 20
NO_PRODUCT = ("tests/", "bench/", "examples/")
NO_NOUN = re.compile(r"(?:What|Of|Whose|Which|Whether|How|Where|When|Who|In|On|At|By|For|From|With|Without|To|As|If|It|Its|They|That|This|These|Those|Nothing|None|"
                     r"Into|Behind|Before|After|Whom|Whoever|Whatever)\b")
# Home-made words, and the word of the field for each.
FIELD_WORDS = {r"[Ww]h(?:o|om)ever": "any rank that, callers that", r"parted": "diverged", r"carriers?": "sending rank", r"a wish": "best effort",
               r"lets? go of": "releases", r"looks? after": "supervises", r"given? free": "releases",
               r"[Nn]obody": "no process, no caller, no thread", r"anew(?!\()": "again, from the beginning", r"mend(?:s|ed|ing)?": "repair, fix",
               r"told to (?:stop|end)": "a stop was requested", r"(?:is|was|are) passed over": "is skipped", r"go(?:es|ing)? on": "continue, resume",
               r"beside(?= [\w'`{!])": "next to, with", r"cannot be (?:with|told)": "cannot be combined with, is unknown", r"cut short": "truncated",
               r"(?:stands?|lies?) (?:in|beside|behind)": "is in, is next to", r"last commit stands": "the last checkpoint is kept",
               r"(?:list of|comma-separated) texts": "strings", r"holds? no (?:saves?|checkpoints?)": "no checkpoints in",
               r"leave \S+ out": "remove", r"takes? (?:it|them) out": "remove"}
SUBJECT = re.compile(r"(?:[\w./-]+(?:, [\w./-]+)*: \S.*|Merge .*|Revert .*)")


def name_of(root, path):
    return path.relative_to(root).as_posix()


def is_product(name, *endings):
    return name.endswith(endings) and not name.startswith(NO_PRODUCT)


def is_page(name):
    return name.endswith(".md") and not name.startswith(("bench/results", "tests/"))


def doc_comments(text):
    """(line, text) of the first line of each comment that begins with three slashes."""
    lines = [line.strip() for line in text.splitlines()]
    for i, line in enumerate(lines):
        if line.startswith("/// ") and not (i and lines[i - 1].startswith("///")):
            yield i + 1, line[4:].strip()


def comments_without_a_noun(root, files):
    for path in files:
        name = name_of(root, path)
        if name.endswith((".h", ".cpp", ".cu")):
            for line, first in doc_comments(path.read_text()):
                word = NO_NOUN.match(first)
                if word:
                    yield f"{name}:{line}: a doc comment begins with '{word[0]}': begin with a noun, or a verb such as 'Returns'"


def paragraphs(name, text):
    """(line, text) of prose: without code, tables, headings and lines with columns."""
    if name.endswith(".h"):
        pattern, marks = r"(?:^[ \t]*//.*\n)+", r"^[ \t]*///?<?"
    else:
        text = re.sub(r"^[ \t]*```.*?^[ \t]*```", lambda code: re.sub(r"[^\n]", "", code[0]), text, flags=re.MULTILINE | re.DOTALL)
        pattern, marks = r"(?:^(?![ \t]*(?:[|#<]|$)).*\n)+", r"^[ \t]*(?:[-*+]|\d+\.) "
    for block in re.finditer(pattern, text, re.MULTILINE):
        line = text.count("\n", 0, block.start()) + 1
        part = []
        for i, raw in enumerate([*block[0].splitlines(), ""]):
            bare = re.sub(marks, "", raw)
            ends = not bare.strip() or re.search(r"\S {2,}\S", bare) or (name.endswith(".h") and re.match(r" {3,}", bare))
            if part and (ends or (bare != raw and not name.endswith(".h"))):
                yield line + i - len(part), " ".join(part)
                part = []
            if not ends:
                part.append(bare.strip())


def long_sentences(root, files):
    for path in files:
        name = name_of(root, path)
        if not (is_product(name, ".h") or is_page(name)):
            continue
        for line, text in paragraphs(name, path.read_text()):
            for sentence in re.split(r"(?<=[.!?:;])[)\"`*]*\s+", text):
                words = [word for word in sentence.split() if re.search(r"\w", word)]
                if len(words) > MOST_WORDS:
                    yield f"{name}:{line}: a sentence of {len(words)} words, more than {MOST_WORDS}: {' '.join(words[:6])} ..."


def homemade_words(root, files):
    for path in files:
        name = name_of(root, path)
        if not (is_product(name, ".h", ".cpp", ".cu") or is_page(name)):
            continue
        text = path.read_text()
        for word, better in FIELD_WORDS.items():
            for match in re.finditer(rf"(?<![\w-]){word}(?![\w-])", text):
                yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: '{match[0]}': say {better}"


def commit_subjects(root, _):
    logged = subprocess.run(["git", "-C", root, "log", f"-{NUM_COMMITS}", "--format=%h %s"], capture_output=True, text=True)
    for commit, _, subject in (line.partition(" ") for line in logged.stdout.splitlines()):
        if not SUBJECT.fullmatch(subject) or len(subject) > MOST_OF_SUBJECT:
            yield f"commit {commit}: '{subject}': write 'area: imperative summary' in at most {MOST_OF_SUBJECT} characters"


RULES = (comments_without_a_noun, long_sentences, homemade_words, commit_subjects)
