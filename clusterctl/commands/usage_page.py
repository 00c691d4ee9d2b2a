"""Print the usage of a cluster as a table on the screen, or as CSV."""

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from typing import Any

from rich.text import Text

from clusterctl.commands.usage_report import Group, Report, Usage
from clusterctl.inventory import schedulers
from clusterctl.ui.screen import Screen
from clusterctl.util.text import fold, plural, roughly

# Title and text of each column of numbers, by the field of Group.
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "jobs": ("Jobs", str),
    "gpu_hours": ("GPU hours", lambda hours: f"{hours:.1f}"),
    "share": ("Share", lambda share: percent(share)),
    "cpu_hours": ("CPU hours", lambda hours: f"{hours:.1f}"),
    "node_hours": ("Node hours", lambda hours: f"{hours:.1f}"),
    "wait_median_seconds": ("Median wait", roughly),
    "wait_p95_seconds": ("95 % wait", roughly),
    "waiting": ("Waiting", str),
    "energy_joules": ("Energy", lambda joules: f"{joules / 3.6e6:.1f} kWh"),
    "gpu_energy_joules": ("GPU energy", lambda joules: f"{joules / 3.6e6:.1f} kWh"),
    "utilisation": ("Utilised", lambda share: percent(share)),
    "idle_gpu_hours": ("Idle GPU hours", lambda hours: f"{hours:.1f}"),
}
_MOST_IDLE = 5  # nodes in the line about idle GPUs
# A spreadsheet takes a cell that begins like this for a formula (https://owasp.org/www-community/attacks/CSV_Injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def columns(report: Report) -> list[str]:
    """Return the columns of which a group has a number; jobs that wait only if there are any."""
    hidden = {"waiting": (None, 0)}
    return [
        name
        for name in COLUMNS
        if any(getattr(group, name) not in hidden.get(name, (None,)) for group in report.groups)
    ]


def cells(group: Group, names: list[str]) -> list[str]:
    """Return the texts of a group's numbers; a dash if one is not known."""
    values = [(getattr(group, name), COLUMNS[name][1]) for name in names]
    return ["-" if value is None else text(value) for value, text in values]


# --- on the screen ----------------------------------------------------------------------------------------------------


def show(screen: Screen, usage: Usage) -> None:
    """Print a table for each scheduler, then what the numbers refer to and what is not known."""
    for report in usage.reports:
        if len(usage.reports) > 1:
            screen.say((schedulers.named(report.scheduler).title, "bold"))
        if report.groups:
            _groups(screen, report)
        else:
            screen.say(f"No {schedulers.named(report.scheduler).workload} in this period.")
        screen.say("")
        for title, text in facts(usage, report):
            screen.hang((f"{title:<12}", "dim"), text)
        if report is not usage.reports[-1]:
            screen.say("")


def _groups(screen: Screen, report: Report) -> None:
    names = columns(report)
    titles = [report.by.capitalize(), *(COLUMNS[name][0] for name in names)]
    rows = [[group.name, *cells(group, names)] for group in (*report.groups, report.total)]
    screen.numbers(titles, [[Text(cell, "bold" if row is rows[-1] else "") for cell in row] for row in rows])


def facts(usage: Usage, report: Report) -> Iterator[tuple[str, str]]:
    """Yield what the numbers of a report refer to, and what is not known."""
    yield "Period", f"{usage.period}, {usage.period.hours:.1f} h"
    yield "Capacity", f"{plural(report.gpus, 'GPU')}, {report.capacity_gpu_hours:.1f} GPU-hours"
    total = report.total
    if total.utilisation is not None:
        yield "Utilisation", f"{percent(total.utilisation)} of {report.measured_gpu_hours or 0:.1f} measured GPU-hours"
    if total.idle_gpu_hours is not None:
        text = f"{total.idle_gpu_hours:.1f} of {report.idle_of_gpu_hours or 0:.1f} allocated GPU-hours"
        idle = sorted(((node.idle_gpu_hours or 0, node.name) for node in report.nodes), reverse=True)
        most = fold([name for hours, name in idle[:_MOST_IDLE] if hours])
        yield "Idle", f"{text}, most on {most}" if most else text
    for note in report.notes:
        yield "Unknown", note


# --- CSV --------------------------------------------------------------------------------------------------------------


def table(usage: Usage) -> str:
    """Return CSV with a line for each group; numbers that are not known are empty."""
    file = io.StringIO()
    names = [field.name for field in fields(Group)]
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(["scheduler", "by", *names])
    for report in usage.reports:
        for group in report.groups:
            values = asdict(group) | {"name": inert(group.name)}
            numbers = (round(value, 4) if isinstance(value, float) else value for value in values.values())
            lines.writerow([report.scheduler, report.by, *numbers])
    return file.getvalue()


def inert(text: str) -> str:
    """Return text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
