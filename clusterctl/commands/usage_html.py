"""Print the usage of a cluster as one HTML file, without scripts and without anything to load."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

from clusterctl.commands import usage_page
from clusterctl.commands.usage_report import Report, Usage
from clusterctl.inventory import schedulers

_TEMPLATE = Path(__file__).with_name("usage.html.j2")
_MOST_BARS = 20
_WIDTH = 400.0  # of the longest bar, in the units of the picture


@dataclass(frozen=True)
class Bar:
    """One bar of a picture: its label, its text and its width."""

    label: str
    text: str
    width: float


def page(usage: Usage, now: datetime) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    parts = [_part(usage, report) for report in usage.reports]
    return template.render(cluster=usage.cluster, period=str(usage.period), now=now, parts=parts) + "\n"


def _part(usage: Usage, report: Report) -> dict[str, Any]:
    """Return what the template prints of a report."""
    names = usage_page.columns(report)
    is_measured = any(day.utilisation is not None for day in report.days)
    return {
        "title": schedulers.named(report.scheduler).title,
        "by": report.by,
        "titles": [usage_page.COLUMNS[name][0] for name in names],
        "rows": [(group.name, usage_page.cells(group, names)) for group in report.groups],
        "total": usage_page.cells(report.total, names),
        "facts": list(usage_page.facts(usage, report)),
        "groups": bars([(group.name, group.gpu_hours) for group in report.groups]),
        "days": bars([(day.day, day.gpu_hours) for day in report.days], most=None),
        "busy": [(day.day, _percent(day.utilisation)) for day in report.days] if is_measured else [],
        "nodes": [(node.name, _percent(node.utilisation), _hours(node.idle_gpu_hours)) for node in report.nodes],
    }


def _percent(share: float | None) -> str:
    return "-" if share is None else usage_page.percent(share)


def _hours(hours: float | None) -> str:
    return "-" if hours is None else f"{hours:.1f}"


def bars(values: Sequence[tuple[str, float]], most: int | None = _MOST_BARS) -> list[Bar]:
    """Return a bar for each of the first `most` values, and one for the sum of the others."""
    shown, rest = (values, ()) if most is None else (values[:most], values[most:])
    found = [*shown, *([(f"{len(rest)} others", sum(value for _, value in rest))] if rest else [])]
    longest = max((value for _, value in found), default=0.0) or 1.0
    return [Bar(label, f"{value:.1f}", _WIDTH * value / longest) for label, value in found]
