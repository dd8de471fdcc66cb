"""Numbers as people read them: by the units that Grafana has names for, and round marks for an axis."""
import math

THOUSANDS = ["", "K", "M", "G", "T"]
BINARY = ["B", "KiB", "MiB", "GiB", "TiB"]
DECIMAL_BYTES = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]


def short(value):
    """Three digits, no trailing zeros."""
    text = f"{value:.3g}"
    return f"{float(text):.0f}" if "e+" in text else text


def scaled(value, names, base):
    at = 0
    while abs(value) >= base and at + 1 < len(names):
        value, at = value / base, at + 1
    return f"{short(value)} {names[at]}".strip()


def seconds(value):
    for limit, factor, name in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (120, 1, "s"), (7200, 1 / 60, "min"), (172800, 1 / 3600, "h")):
        if abs(value) < limit:
            return f"{short(value * factor)} {name}"
    return f"{short(value / 86400)} d"


def shown(value, unit):
    """1536, "bytes" -> "1.5 KiB"."""
    if math.isnan(value):
        return "NaN"
    if unit == "s":
        return "0 s" if value == 0 else seconds(value)
    if unit == "bytes":
        return scaled(value, BINARY, 1024)
    if unit == "Bps":
        return scaled(value, DECIMAL_BYTES, 1000)
    if unit == "percentunit":
        return f"{short(100 * value)} %"
    names = {"reqps": " req/s", "ops": "/s", "short": "", "percent": " %", "celsius": " °C", "watt": " W"}
    return scaled(value, THOUSANDS, 1000) + names.get(unit, f" {unit}")


def on_axis(value, unit):
    """The same for the narrow space beside an axis: units that are words are only in the legend."""
    return shown(value, "short" if "/" in unit else unit)


def marks(low, high, unit, count=4):
    """About `count` round values from low to high; of bytes in powers of 2."""
    if high <= low:
        high = low + (abs(low) or 1)
    raw = (high - low) / count
    base = 1024 ** math.floor(math.log(raw, 1024)) if unit == "bytes" and raw >= 1 else 1
    power = 10 ** math.floor(math.log10(raw / base))
    step = base * power * next(factor for factor in (1, 2, 2.5, 5, 10) if raw / base <= factor * power * (1 + 1e-9))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [step * i for i in range(first, last + 1)]


def log_marks(low, high):
    """Powers of 10 around the values; both above 0."""
    return [10.0 ** power for power in range(math.floor(math.log10(low) + 1e-9), max(math.ceil(math.log10(high) - 1e-9), math.floor(math.log10(low)) + 1) + 1)]
