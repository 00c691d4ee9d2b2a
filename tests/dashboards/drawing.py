"""Draw a dashboard as an HTML page from its definition and real results: for docs, and to look at. It is not Grafana.

The page has SVG and no scripts; scripts/pages turns it into a PNG.
"""

import html
import math
from collections.abc import Callable, Iterator, Sequence

from tests.dashboards.asking import Result, legend, values_of
from tests.dashboards.parts import WIDTH, Page, Panel

COLUMN, ROW, GAP = 56, 30, 8  # of Grafana's grid, in pixels
COLOURS = ("#3b78c2", "#d9822b", "#2f8f5b", "#b5423c", "#7d5fb2", "#0f8b8d", "#a06a2c", "#c2528b", "#5c6b7a", "#8a9a1f")
SIGNALS = {"green": "#1b7f4b", "orange": "#b35c00", "red": "#c0271f"}
NAMED = 4
"""Series that a legend lists."""
STYLE = """
body { margin: 0; background: #f4f5f5; font: 13px "DejaVu Sans", sans-serif; color: #1f2329; }
h1 { font-size: 20px; margin: 14px 12px 2px; } p { margin: 0 12px 6px; color: #4b5260; }
main { position: relative; } section { position: absolute; background: #fff; border: 1px solid #d8dade;
 border-radius: 3px; box-sizing: border-box; padding: 6px 8px; overflow: hidden; }
h2 { font-size: 13px; margin: 0 0 4px; } .value { font-size: 26px; display: inline-block; margin: 10px 18px 0 0; }
.value small { display: block; font-size: 12px; color: #4b5260; } .legend { font-size: 11px; line-height: 15px; }
.legend i { display: inline-block; width: 10px; height: 3px; margin: 0 4px 3px 0; } .legend span { margin-right: 10px;
 white-space: nowrap; } table { border-collapse: collapse; font-size: 12px; width: 100%; }
td, th { text-align: left; padding: 2px 8px 2px 0; border-bottom: 1px solid #e6e8eb; } .none { color: #8a8f98; }
text { font-size: 10px; fill: #4b5260; }
"""


def _scaled(value: float, steps: Sequence[tuple[float, str]]) -> str:
    for factor, name in steps:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {name}"
    return f"{value:.3g} {steps[-1][1]}"


_BYTES = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")]
_RATES = [(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")]
FORMATS: dict[str, Callable[[float], str]] = {
    "none": lambda v: f"{v:.6g}" if v == int(v) else f"{v:.3g}",
    "percent": lambda v: f"{v:.3g} %",
    "percentunit": lambda v: f"{100 * v:.3g} %",
    "bytes": lambda v: _scaled(v, _BYTES),
    "decmbytes": lambda v: f"{v:.0f} MB",
    "Bps": lambda v: _scaled(v, _RATES),
    "celsius": lambda v: f"{v:.3g} °C",
    "watt": lambda v: f"{v:.4g} W",
    "kwatth": lambda v: f"{v:.3g} kWh",
    "rotmhz": lambda v: f"{v:.0f} MHz",
    "rotrpm": lambda v: f"{v:.0f} rpm",
    "pps": lambda v: f"{v:.3g} p/s",
    "s": lambda v: f"{1000 * v:.3g} ms" if v < 1 else f"{v:.3g} s",
    "dateTimeFromNow": lambda v: "",
}


def _colour(panel: Panel, value: float) -> str:
    reached = [limit.colour for limit in panel.limits if value >= limit.value]
    return SIGNALS[reached[-1] if reached else "green"]


def _number(result: Result, end: float) -> str:
    parts = []
    for query, series in zip(result.panel.queries, result.series, strict=True):
        for one in series:
            value = values_of(one)[-1]
            shown = FORMATS[result.panel.unit](value)
            if result.panel.unit == "dateTimeFromNow":
                shown = f"{(end - value / 1000) / 3600:.1f} h ago"
            name = legend(query.legend, one["metric"])
            parts.append(f'<span class=value style="color:{_colour(result.panel, value)}">{html.escape(shown)}'
                         f"<small>{html.escape(name)}</small></span>")  # fmt: skip
    return "".join(parts)


def _table(result: Result) -> str:
    panel = result.panel
    rows: dict[tuple[str, ...], dict[int, float]] = {}
    for index, series in enumerate(result.series):
        for one in series:
            key = tuple(one["metric"].get(name, "") for name in panel.columns)
            rows.setdefault(key, {})[index] = values_of(one)[-1]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in [*panel.columns, *(q.legend for q in panel.queries)])
    body = ""
    for key in sorted(rows):
        cells = [html.escape(word) for word in key]
        cells += [f"{rows[key][n]:.4g}" if n in rows[key] else "" for n in range(len(panel.queries))]
        body += "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    return f"<table><tr>{head}</tr>{body}</table>"


def _round(value: float) -> float:
    """Return the end of an axis of four even parts for values up to this one."""
    if value <= 0:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 8, 10, 20) if step * power >= value)


def _graph(result: Result, width: int, height: int) -> str:
    panel = result.panel
    lines = [
        (legend(query.legend, one["metric"]), [(float(at), float(value)) for at, value in one["values"]])
        for query, series in zip(panel.queries, result.series, strict=True)
        for one in series
    ]
    lines = [(name, [(at, value) for at, value in points if math.isfinite(value)]) for name, points in lines]
    times = sorted({at for _, points in lines for at, _ in points})
    if panel.stacked:
        base = dict.fromkeys(times, 0.0)
        stacked = []
        for name, points in lines:
            for at, value in points:
                base[at] += value
            stacked.append((name, [(at, base[at]) for at, _ in points]))
        lines = stacked
    top = max((value for _, points in lines for _, value in points), default=0)
    top = panel.top or _round(top)
    left, right, above, below = 56, 6, 6, 16
    span = (times[-1] - times[0]) or 1

    def x(at: float) -> float:
        return left + (at - times[0]) / span * (width - left - right)

    def y(value: float) -> float:
        return height - below - min(value, top) / top * (height - above - below)

    parts = []
    for part in range(5):
        value = top * part / 4
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#e6e8eb"/>'  # noqa: E501
                     f'<text x="{left - 4}" y="{y(value) + 3:.1f}" text-anchor="end">{FORMATS[panel.unit](value)}</text>')  # fmt: skip  # noqa: E501
    for limit in panel.limits:
        if limit.value <= top:
            parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(limit.value):.1f}" y2="{y(limit.value):.1f}"'
                         f' stroke="{SIGNALS[limit.colour]}" stroke-dasharray="4 3"/>')  # fmt: skip
    for part in range(3):
        ago = span * (2 - part) / 2
        anchor = ("start", "middle", "end")[part]
        parts.append(f'<text x="{x(times[-1] - ago):.1f}" y="{height - 3}" text-anchor="{anchor}">'
                     f"{'now' if ago == 0 else f'-{ago:.0f} s'}</text>")  # fmt: skip
    drawn = list(enumerate(lines))
    for index, (_, points) in reversed(drawn) if panel.stacked else drawn:
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)
        if panel.stacked and points:
            ends = f"{x(points[-1][0]):.1f},{y(0):.1f} {x(points[0][0]):.1f},{y(0):.1f}"
            parts.append(f'<polygon points="{path} {ends}" fill="{colour}" fill-opacity="0.75"/>')
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    names = "".join(f'<span><i style="background:{COLOURS[index % len(COLOURS)]}"></i>{html.escape(name)}</span>'
                    for index, (name, _) in enumerate(lines[:NAMED]))  # fmt: skip
    more = f"<span>and {len(lines) - NAMED} more</span>" if len(lines) > NAMED else ""
    return f'<svg width="{width}" height="{height}">{"".join(parts)}</svg><div class=legend>{names}{more}</div>'


def _places(panels: Sequence[Panel]) -> Iterator[tuple[int, int]]:
    """Yield the column and the row of each panel: from left to right, as Grafana's SDK lays them out."""
    column = row = tallest = 0
    for panel in panels:
        if column + panel.span > WIDTH:
            column, row, tallest = 0, row + tallest, 0
        yield column, row
        column, tallest = column + panel.span, max(tallest, panel.height)


def page_html(page: Page, found: Sequence[Result], end: float) -> tuple[str, int]:
    """Return a page as HTML, and its height in pixels."""
    sections, bottom = [], 0
    for result, (column, row) in zip(found, _places([one.panel for one in found]), strict=True):
        panel = result.panel
        width, height = panel.span * COLUMN - GAP, panel.height * ROW - GAP
        if not any(result.series):
            content = "<p class=none>No data here</p>"
        elif panel.kind == "number":
            content = _number(result, end)
        elif panel.kind == "table":
            content = _table(result)
        else:
            content = _graph(result, width - 18, height - 64)
        place = f"left:{column * COLUMN + GAP}px;top:{row * ROW + GAP}px;width:{width}px;height:{height}px"
        sections.append(f'<section style="{place}"><h2>{html.escape(panel.title)}</h2>{content}</section>')
        bottom = max(bottom, (row + panel.height) * ROW + GAP)
    text = (f"<!doctype html><meta charset=utf-8><style>{STYLE}</style><h1>{html.escape(page.title)}</h1>"
            f"<p>{html.escape(page.description)}</p><main style='height:{bottom}px'>{''.join(sections)}</main>")  # fmt: skip  # noqa: E501
    return text, bottom + 70
