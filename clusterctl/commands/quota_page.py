"""Print the quotas of a cluster as a table on the screen, or as CSV."""

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict, fields

from rich.table import Table
from rich.text import Text

from clusterctl.commands.quota_report import Quota, Row, Wait
from clusterctl.commands.usage_page import inert, percent
from clusterctl.ui.screen import Screen

_TITLES = ("Account", "Share", "Use", "LevelFS", "GPUs", "GPU minutes", "Running", "Waiting")
_INDENT = "  "
_NARROWEST = 12  # columns for the name of an account
_LARGEST_FS = 1000.0
_LEGEND = (
    ("Share", "part of the shares below the same account"),
    ("Use", "part of the cluster's use, which decays (PriorityDecayHalfLife)"),
    ("LevelFS", "share / part of the account's use; below 1 is more use than share"),
    ("GPUs", "in use / limit (GrpTRES); - is no limit"),
    ("GPU minutes", "used / limit (GrpTRESMins); they decay as all use does"),
)


def show(screen: Screen, quota: Quota) -> None:
    """Print the accounts, what their jobs wait for, and what differs from the inventory."""
    _rows(screen, quota.rows)
    if waits := [row for row in quota.rows if row.waits and not row.user]:
        screen.say("")
        _waits(screen, waits)
    screen.say("")
    for title, text in (*_LEGEND, *_differences(quota), *(("Unknown", note) for note in quota.notes)):
        screen.hang((f"{title:<18}", "dim"), text)


def _differences(quota: Quota) -> Iterator[tuple[str, str]]:
    """Yield what is in Slurm or in the inventory alone."""
    found = quota.by_hand
    for text in (*found.objects, *found.options):
        yield "Not in inventory", text
    for text in found.changed:
        yield "Differs", f"{text} (clusterctl bootstrap sets it)"
    for text in found.missing:
        yield "Not in Slurm", f"{text} (clusterctl bootstrap adds it)"


def cells(row: Row) -> list[str]:
    """Return the texts of a row's numbers."""
    return [
        "parent" if row.shares is None and row.depth else _percent(row.share),
        _percent(row.use),
        _level_fs(row),
        f"{row.gpus}/{_limit(row.gpu_limit)}",
        f"{row.gpu_minutes}/{_limit(row.gpu_minutes_limit)}",
        str(row.running),
        str(row.waiting),
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else percent(share)


def _level_fs(row: Row) -> str:
    if row.level_fs is None:
        return "unused" if row.share is not None else "-"
    return f"{row.level_fs:.2f}" if row.level_fs < _LARGEST_FS else f">{_LARGEST_FS:.0f}"


def _limit(most: int | None) -> str:
    return "-" if most is None else str(most)


def _rows(screen: Screen, rows: tuple[Row, ...]) -> None:
    lines = [[_INDENT * row.depth + row.name, *cells(row)] for row in rows]
    styled = [
        [Text(cell, _style(row, column)) for column, cell in enumerate(line)]
        for row, line in zip(rows, lines, strict=True)
    ]
    screen.numbers(_TITLES, styled, _NARROWEST)


def _style(row: Row, column: int) -> str:
    """Return how a cell looks: bold for the whole, yellow for what keeps jobs waiting."""
    at_limit = {
        3: row.level_fs is not None and row.level_fs < 1,
        4: row.gpu_limit is not None and row.gpus >= row.gpu_limit,
        5: row.gpu_minutes_limit is not None and row.gpu_minutes >= row.gpu_minutes_limit,
    }
    if at_limit.get(column):
        return "yellow"
    return "dim" if row.user else "" if row.depth else "bold"


def _waits(screen: Screen, rows: list[Row]) -> None:
    """Print what the jobs of each account wait for."""
    titles = ("Account", "Jobs", "Wait for")
    lines = [(row.account, str(wait.jobs), wait) for row in rows for wait in row.waits]
    if not screen.is_terminal:
        widths = [max(map(len, column)) for column in zip(titles[:2], *(line[:2] for line in lines), strict=True)]
        for name, jobs, last in (titles, *((*line[:2], text_of(line[2])) for line in lines)):
            screen.say(f"{name:<{widths[0]}}  {jobs:>{widths[1]}}  {last}")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(titles[0], overflow="fold", min_width=_NARROWEST)
    table.add_column(titles[1], justify="right", no_wrap=True)
    table.add_column(titles[2], overflow="fold")
    before = ""
    for name, jobs, wait in lines:
        text = Text.assemble(wait.reason, (text_of(wait).removeprefix(wait.reason), "dim"))
        table.add_row(Text("" if name == before else name), jobs, text)
        before = name
    screen.print(table)


def text_of(wait: Wait) -> str:
    """Return a reason with its meaning: `AssocGrpGRES (limit of science: 64 GPUs)`."""
    return f"{wait.reason} ({wait.meaning})" if wait.meaning else wait.reason


# --- CSV --------------------------------------------------------------------------------------------------------------


def table(quota: Quota) -> str:
    """Return CSV with a line for each account and user; numbers that are not known, and no limit, are empty."""
    file = io.StringIO()
    names = [field.name for field in fields(Row)]
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(names)
    for row in quota.rows:
        values = asdict(row) | {"waits": "; ".join(f"{wait.jobs} {text_of(wait)}" for wait in row.waits)}
        lines.writerow([_cell(value) for value in values.values()])
    return file.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, float):
        return round(value, 4)
    return inert(value) if isinstance(value, str) else value
