"""One panel of the dashboard as SVG or HTML, from Prometheus' answers. This module sends no queries."""
import html
import math

from numbers_of_panels import log_marks, marks, on_axis, shown

COLOURS = ["#2f6fde", "#e07b1f", "#2f9e5b", "#c2413b", "#8a5bd1", "#1f9aa8", "#b5892a", "#d1569c", "#5f6b7a", "#7aa82f"]
LEFT, RIGHT, TOP, BOTTOM = 62, 10, 8, 20
MAX_NAMED = 8


class Series:
    def __init__(self, name, points):
        self.name, self.points = name, [(t, v) for t, v in points if math.isfinite(v)]

    def last(self):
        return self.points[-1][1]


class Frame:
    """Places of times and values in a box of pixels."""

    def __init__(self, width, height, span, levels, is_log=False):
        self.width, self.height, self.span, self.levels, self.is_log = width, height, span, levels, is_log

    def x(self, time):
        begin, end = self.span
        return LEFT + (time - begin) / max(end - begin, 1e-9) * (self.width - LEFT - RIGHT)

    def y(self, value):
        at, low, high = (math.log10(max(one, 1e-300)) if self.is_log else one for one in (value, self.levels[0], self.levels[-1]))
        return self.height - BOTTOM - (at - low) / max(high - low, 1e-300) * (self.height - TOP - BOTTOM)

    def grid(self, unit):
        lines = [f'<line x1="{LEFT}" x2="{self.width - RIGHT}" y1="{self.y(v):.1f}" y2="{self.y(v):.1f}" class="grid"/>'
                 f'<text x="{LEFT - 6}" y="{self.y(v) + 4:.1f}" class="level">{html.escape(on_axis(v, unit))}</text>' for v in self.levels]
        return "".join(lines) + self.times()

    def times(self):
        begin, end = self.span
        return "".join(f'<text x="{self.x(begin + after):.1f}" y="{self.height - 5}" class="time">{shown(after, "s")}</text>'
                       for after in marks(0, end - begin, "s")[1:] if after <= end - begin)


def levels_of(values, unit, is_log, starts_at_0):
    values = [value for value in values if value > 0] if is_log else values
    if not values:
        return [0, 1]
    if is_log:
        return log_marks(min(values), max(values))
    return marks(0 if starts_at_0 else min(values), max(values), unit)


def path_of(points, frame, closes_at=None):
    text = "M" + "L".join(f"{frame.x(t):.1f} {frame.y(v):.1f}" for t, v in points)
    if closes_at is None:
        return text
    return text + "L" + "L".join(f"{frame.x(t):.1f} {frame.y(v):.1f}" for t, v in reversed(closes_at)) + "Z"


def stacked(series):
    """(series, lower edge, upper edge), each on those before it."""
    times = sorted({t for one in series for t, _ in one.points})
    below = dict.fromkeys(times, 0.0)
    layers = []
    for one in series:
        values = dict(one.points)
        above = {t: below[t] + values.get(t, 0.0) for t in times}
        layers.append((one, [(t, below[t]) for t in times], [(t, above[t]) for t in times]))
        below = above
    return layers


def legend(series, unit):
    named = [f'<span><i style="background:{COLOURS[i % len(COLOURS)]}"></i>{html.escape(one.name)} <b>{html.escape(shown(one.last(), unit))}</b></span>'
             for i, one in enumerate(series[:MAX_NAMED])]
    more = [f"<span>and {len(series) - MAX_NAMED} more</span>"] if len(series) > MAX_NAMED else []
    return f'<p class="legend">{"".join(named + more)}</p>'


def lines(series, unit, size, span, is_stacked=False, is_log=False, moments=()):
    layers = stacked(series) if is_stacked else [(one, None, one.points) for one in series]
    values = [v for _, _, points in layers for _, v in points]
    starts_at_0 = not is_log and min(values, default=0) >= 0 and (is_stacked or min(values, default=0) < 0.5 * max(values, default=0))
    frame = Frame(*size, span, levels_of(values, unit, is_log, starts_at_0), is_log)
    drawn = "".join(f'<line x1="{frame.x(t):.1f}" x2="{frame.x(t):.1f}" y1="{TOP}" y2="{size[1] - BOTTOM}" stroke="{colour}" class="moment"/>'
                    for t, colour in moments if span[0] <= t <= span[1])
    for i, (_, below, points) in enumerate(layers):
        colour = COLOURS[i % len(COLOURS)]
        if is_log:
            points = [(t, v) for t, v in points if v > 0]
        if is_stacked:
            drawn += f'<path d="{path_of(points, frame, below)}" fill="{colour}" fill-opacity="0.35"/>'
        if points:
            drawn += f'<path d="{path_of(points, frame)}" stroke="{colour}" class="curve"/>'
    return f'<svg viewBox="0 0 {size[0]} {size[1]}">{frame.grid(unit)}{drawn}</svg>' + legend(series, unit)


def cells(rows, unit, size, span, names=None):
    """A row of coloured cells for each series: pale at the lowest value of all, dark at the highest."""
    values = [v for one in rows for _, v in one.points]
    low, high = min(values), max(values)
    height = (size[1] - TOP - BOTTOM) / len(rows)
    frame = Frame(*size, span, [0, 1])
    drawn = ""
    for i, one in enumerate(rows):
        y = size[1] - BOTTOM - (i + 1) * height
        width = (size[0] - LEFT - RIGHT) / max(len(one.points), 1) + 0.5
        if height > 10 or i % math.ceil(11 / height) == 0:
            drawn += f'<text x="{LEFT - 6}" y="{y + height / 2 + 4:.1f}" class="level">{html.escape(names[i] if names else one.name)}</text>'
        drawn += "".join(f'<rect x="{frame.x(t) - (width if t > span[0] else 0):.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="#2f6fde" '
                         f'fill-opacity="{0.04 + 0.96 * (v - low) / max(high - low, 1e-300):.2f}"/>' for t, v in one.points if v > 0)
    return f'<svg viewBox="0 0 {size[0]} {size[1]}">{drawn}{frame.times()}</svg><p class="legend"><span>{shown(low, unit)} to {shown(high, unit)}</span></p>'


def buckets(series, size, span):
    """A histogram over time from Prometheus' cumulative buckets, named by their upper bounds."""
    rows = sorted(series, key=lambda one: float(one.name))
    below, own = {}, []
    for one in rows:
        own.append(Series(one.name, [(t, max(0.0, v - below.get(t, 0.0))) for t, v in one.points]))
        below = dict(one.points)
    filled = [i for i, one in enumerate(own) if any(v > 0 for _, v in one.points)]
    own = own[max(0, filled[0] - 1):filled[-1] + 2] if filled else own
    names = ["more" if one.name == "+Inf" else shown(float(one.name), "s") for one in own]
    return cells(own, "short", size, span, names)


def number(series, unit, says_name):
    return "".join(f'<p class="number">{html.escape(one.name if says_name else shown(one.last(), unit))}</p>' for one in series[:1])


def table(series, unit):
    rows = "".join(f"<tr><td>{html.escape(one.name)}</td><td>{html.escape(shown(one.last(), unit))}</td></tr>" for one in series)
    return f"<table>{rows}</table>"
