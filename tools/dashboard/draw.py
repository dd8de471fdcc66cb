"""The dashboard as one self-contained HTML page: metrics/grafana/lockstep.json, each panel's query answered by a Prometheus.

Grafana draws more; this shows what stands in the panels of a run, for pictures and tests.
"""
import html
import json
import math
import pathlib
import re
import time

import charts

DASHBOARD = pathlib.Path(__file__).resolve().parents[2] / "metrics/grafana/lockstep.json"
COLUMN, ROW = 58, 27  # pixels of Grafana's grid
NUM_POINTS = 240
STYLE = """
body{margin:0;padding:18px;background:#f4f5f7;color:#1d2733;font:13px/1.3 system-ui,"DejaVu Sans",sans-serif;width:1392px}
h1{font-size:20px;margin:0 0 2px}h2{font-size:15px;margin:16px 0 8px}p{margin:0}.what{color:#5f6b7a}
.row{display:grid;grid-template-columns:repeat(24,1fr);gap:8px}.panel{background:#fff;border:1px solid #dfe3e8;border-radius:6px;padding:8px 10px;overflow:hidden}
h3{font-size:13px;font-weight:600;margin:0 0 4px;white-space:nowrap}svg{display:block;width:100%}.grid{stroke:#e6e9ed}.curve{fill:none;stroke-width:1.6;stroke-linejoin:round}
.moment{stroke-width:1;stroke-opacity:.35;stroke-dasharray:3 3}text{font-size:11px;fill:#5f6b7a}.level{text-anchor:end}.time{text-anchor:middle}
.legend{font-size:11px;color:#3b4754;line-height:1.45;max-height:34px;overflow:hidden}.legend span{margin-right:12px;white-space:nowrap}
.legend i{display:inline-block;width:10px;height:3px;margin-right:5px;vertical-align:middle}.number{font-size:25px;font-weight:600;text-align:center;padding:12px 0;white-space:nowrap}
.none{color:#98a2ae;text-align:center;padding-top:60px}table{width:100%;border-collapse:collapse}td{padding:2px 0;border-bottom:1px solid #eef0f3}td+td{text-align:right;font-weight:600}
"""


class Source:
    """Asks a Prometheus for a span of time; `ask` is Prometheus.ask() of tests/integration/prometheus_server.py, or alike."""

    def __init__(self, ask, begin, end, rate_interval="10s"):
        self.ask, self.span, self.rate_interval = ask, (begin, end), rate_interval

    def expression(self, text):
        """The expression as Grafana sends it if all values of each variable are selected."""
        return re.sub(r"\$(job|run|node|instance)", ".*", text.replace("$__rate_interval", self.rate_interval))

    def series(self, expression, legend):
        begin, end = self.span
        step = max(0.25, (end - begin) / NUM_POINTS)
        answer = self.ask("query_range", query=self.expression(expression), start=begin, end=end, step=f"{step:.3f}")
        named = re.compile(r"{{(\w+)}}")
        found = [charts.Series(named.sub(lambda label, labels=one["metric"]: labels.get(label[1], ""), legend),
                               [(float(t), float(v)) for t, v in one["values"]]) for one in (answer or {"result": []})["result"]]
        return sorted((one for one in found if one.points), key=lambda one: one.name)


def moments_of(dashboard, source):
    """(time, colour) of the annotations, at most 20 of each."""
    found = []
    for mark in dashboard["annotations"]["list"]:
        before = -math.inf
        for t, _ in (point for one in source.series(mark["expr"], "") for point in one.points):
            if t - before > (source.span[1] - source.span[0]) / 20:
                found.append((t, mark["iconColor"]))
                before = t
    return found


def content(panel, source, moments):
    """Content below the title; empty without data."""
    series = [one for target in panel["targets"] for one in source.series(target["expr"], target["legendFormat"])]
    if not series:
        return ""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    size = (panel["gridPos"]["w"] * COLUMN - 30, panel["gridPos"]["h"] * ROW - 76)
    kind = panel["type"]
    if kind == "stat":
        now = [one for one in series if one.points[-1][0] >= source.span[1] - 2]
        return charts.number(now or series, unit, says_name=panel["title"] == "State")
    if kind == "table":
        return charts.table(sorted(series, key=lambda one: one.last()), unit)
    if kind == "heatmap" and panel["targets"][0].get("format") == "heatmap":
        return charts.buckets(series, size, source.span)
    if kind == "heatmap":
        return charts.cells(series, unit, size, source.span)
    return charts.lines(series, unit, size, source.span, is_stacked=custom.get("stacking", {}).get("mode") == "normal",
                        is_log=custom.get("scaleDistribution", {}).get("type") == "log", moments=moments)


def panel_html(panel, source, moments):
    inside = content(panel, source, moments) or '<p class="none">none in this run</p>'
    grid = panel["gridPos"]
    return (f'<div class="panel" style="grid-column:span {grid["w"]};height:{grid["h"] * ROW - 20}px" title="{html.escape(panel["description"])}">'
            f'<h3>{html.escape(panel["title"])}</h3>{inside}</div>')


def page(source, rows=None):
    """The page, of the rows named or of all that are open."""
    dashboard = json.loads(DASHBOARD.read_text())
    moments = moments_of(dashboard, source)
    parts, is_open, is_wanted = [], False, False
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            is_wanted = (rows is None or panel["title"] in rows) and not panel["collapsed"]
            if is_wanted:
                parts.append(("</div>" if is_open else "") + f'<h2>{html.escape(panel["title"])}</h2><div class="row">')
                is_open = True
        elif is_wanted:
            parts.append(panel_html(panel, source, moments))
    begin, end = source.span
    when = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(begin))} UTC, {end - begin:.0f} s"
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Lockstep: dashboard</title><style>{STYLE}</style></head><body>'
            f'<h1>{html.escape(dashboard["title"])}</h1><p class="what">The panels of metrics/grafana/lockstep.json with data of a Prometheus: {when}. '
            f'Dashed: masks updated (purple), saves (green).</p>{"".join(parts)}{"</div>" if is_open else ""}</body></html>\n')
