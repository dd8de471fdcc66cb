"""Common part of the tests of dashboard and alerts: the existing series, the names in an expression, and promtool's parser."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROMTOOL = SOURCE / ".venv-test" / "bin" / "promtool"

sys.path.insert(0, str(SOURCE / "tests" / "support"))
import skips


def documented_types():
    """Type by name, from docs/metrics.md, which a test of TrainingMetrics compares with the code."""
    rows = re.findall(r"^\| `(\w+)` \| (gauge|counter|histogram) \|", (SOURCE / "docs/metrics.md").read_text(), re.MULTILINE)
    assert len(rows) > 50, "docs/metrics.md has no table of series as this test knows it"
    return dict(rows)


def exported_types():
    """The same by the names that a page holds: a histogram is its buckets, sum and count."""
    types = {"up": "gauge"}  # Prometheus' own
    for name, kind in documented_types().items():
        for ending in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            types[name + ending] = "counter" if kind == "histogram" else kind
    return types


def series_in(expression):
    """Names of series in an expression, without those of recording rules, which contain a colon."""
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]', "", expression)
    return re.findall(r"(?<![\w:])(?:lockstep|process)_\w+(?![\w:]*:)|\bup\b", bare)


def promtool(*arguments, **kwargs):
    if not PROMTOOL.exists():
        skips.missing_tool(f"no {PROMTOOL} (tools/setup test makes it)")
    return subprocess.run([PROMTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=60, **kwargs)


def parser_fault(expressions):
    """promtool's message about expressions that are not PromQL; empty if all are. JSON is YAML."""
    rules = [{"record": f"parsed_{i}", "expr": expression} for i, expression in enumerate(expressions)]
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        json.dump({"groups": [{"name": "parsed", "rules": rules}]}, file)
        file.flush()
        done = promtool("check", "rules", file.name)
    return "" if done.returncode == 0 else done.stdout + done.stderr
