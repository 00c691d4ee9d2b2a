"""`logs`: list past runs, or print the final page of one again. Contacts no node and writes nothing."""

import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from clusterctl.ansible import events
from clusterctl.ansible.outcome import Ledger
from clusterctl.inventory.document import shown
from clusterctl.run import runs
from clusterctl.run.runs import Run
from clusterctl.ui import report
from clusterctl.ui.report import Page
from clusterctl.ui.screen import Screen
from clusterctl.util import files
from clusterctl.util.errors import ClusterctlError, HeadFailed, InputError, Interrupted, Problem, WorkersFailed
from clusterctl.util.redaction import throughout
from clusterctl.util.text import did_you_mean, duration, plural, printable, strip_controls
from clusterctl.workspace import home

_LAST = "last"
_NARROW = 80  # columns; on a narrower terminal the arguments and the result get their own line
_MAX_EVENTS = 1 << 30  # bytes; a run on 500 nodes that changes everything writes some hundred MB
_PARTIAL: dict[int, type[ClusterctlError]] = {4: WorkersFailed, 5: HeadFailed, 7: Interrupted}


def logs_command(given: Path, wanted: str | None, full: bool, as_json: bool) -> int:
    """Print the past runs of the cluster, or one run. Raises InputError."""
    inventory = home.inventory_file(given)
    directory = inventory.parent
    # The inventory is not validated: logs are needed most when an edit has just broken it.
    try:
        files.read(inventory)
    except files.UnfitError as error:
        raise InputError([Problem(None, str(inventory), str(error))]) from None
    if problems := list(home.not_its_own(directory)):
        raise InputError(problems)
    screen = Screen(sys.stdout)
    if wanted is None:
        if full:
            raise InputError([Problem(None, "--full", "needs a run", f"give its name, or {_LAST}")])
        past = list(runs.past(directory))
        if as_json:
            print(json.dumps({"runs": [run.as_dict() for run in past]}, indent=2))
        else:
            show_all(screen, past, datetime.now(UTC))
        return 0
    run = runs.load(directory, choose(wanted, runs.names(directory)))
    folder = runs.folder(directory) / run.name
    log = folder / "ansible.log"
    if as_json:
        document = {**(runs.summary(directory, run.name) or {}), **run.as_dict(), "log": str(log)}
        if full:
            document["text"] = [strip_controls(line) for line in _lines(log)]
        print(json.dumps(document, indent=2))
    elif full:
        for line in _lines(log):
            print(strip_controls(line))
    else:
        show(screen, run, folder, runs.summary(directory, run.name) or {})
    return 0


def choose(wanted: str, names: list[str]) -> str:
    """Return the run for a name, a unique prefix of a name, or `last`. Raises InputError if none or several match."""
    if wanted == _LAST and names:
        return names[0]
    matches = [name for name in names if name.startswith(wanted)] if wanted else []
    if wanted in names or len(matches) == 1:
        return wanted if wanted in names else matches[0]
    if matches:
        message = f'"{shown(wanted)}" is a prefix of {len(matches)} runs'
        raise InputError([Problem(None, "RUN", message, f"{matches[-1]}, ..., {matches[0]}")])
    near = (did_you_mean(wanted, [*names, _LAST]) or f"try {_LAST}") if names else "there are none yet"
    raise InputError([Problem(None, "RUN", f'no run "{shown(wanted)}"', near)])


def _lines(log: Path) -> list[str]:
    try:
        return files.read(log, 1 << 32, log.parent).decode(errors="replace").splitlines()
    except files.MissingError:
        return []
    except files.UnfitError as error:
        raise InputError([Problem(None, str(log), str(error))]) from None


def show_all(screen: Screen, past: list[Run], now: datetime) -> None:
    """Print a line for each run, newest first."""
    if not past:
        screen.say("No run yet.")
        return
    rows = [(run.name, run.age(now), _took(run), run.arguments or "-", run.verdict) for run in past]
    if not screen.is_terminal:
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for row in rows:
            cells = [f"{cell:<{width}}" for cell, width in zip(row[:4], widths, strict=True)]
            screen.say("  ".join([*cells, row[4]]))
        return
    if screen.width < _NARROW:
        for run, (name, age, took, arguments, verdict) in zip(past, rows, strict=True):
            screen.say((name, _style(run)), f"  {age}  {took}", cut=True)
            screen.hang(("    ", ""), verdict if arguments == "-" else f"{arguments}: {verdict}")
        return
    table = Table("Run", "Began", "Took", "Arguments", "Result", box=None, pad_edge=False, header_style="dim")
    table.padding = (0, 2, 0, 0)
    for column in table.columns[:3]:
        column.no_wrap = True
    for column in table.columns[3:]:
        column.overflow = "fold"
    for run, row in zip(past, rows, strict=True):
        table.add_row(*row[:4], Text(row[4], _style(run)))
    screen.print(table)


def _style(run: Run) -> str:
    return "" if run.succeeded else "cyan" if run.under_way else "red"


def _took(run: Run) -> str:
    return "-" if run.seconds is None else duration(run.seconds)


def show(screen: Screen, run: Run, folder: Path, summary: dict[str, Any]) -> None:
    """Print the final page of a run again, from the events in its directory."""
    page, ledger = Page(screen), replay(folder / "events.jsonl", run.seconds)
    arguments = f" {run.arguments}" if run.arguments else ""
    screen.say((f"{run.verb}{arguments}", "bold"), f"  began {run.began:%Y-%m-%d %H:%M:%S} UTC")
    if run.succeeded:
        changed = sum(host.changed for host in ledger.hosts.values())
        what = plural(changed, "change") + " to make" * run.check if changed else "nothing to change"
        screen.say()
        unchanged = summary.get("unchanged")
        left_out = len(unchanged.keys() - ledger.hosts.keys()) if isinstance(unchanged, dict) else 0
        screen.say(("Done", "bold green"), f" in {_took(run)}: {report.extent(len(ledger.hosts), what, left_out)}")
        page.content(ledger, run.check)
        screen.say()
    elif run.exit_code is None:
        screen.say()
        title = "Under way" if run.under_way else "Killed"
        screen.say((title, "bold yellow"), "." if run.under_way else ", or its machine went down.")
        page.content(ledger, run.check)
        screen.say()
    elif not ledger.hosts:
        screen.say()
        problems = summary.get("problems")
        for problem in problems if isinstance(problems, list) else [run.error]:
            screen.say(f"  {printable(str(problem), 400)}")
        screen.say(("Not ready", "bold red"), ": nothing was changed on any node.")
        screen.say()
    else:
        page.failed(_PARTIAL.get(run.exit_code, ClusterctlError)(run.error), ledger)
    for name in ("ansible.log", "summary.json"):
        if (folder / name).exists():
            page.field({"ansible.log": "Log", "summary.json": "Summary"}[name], str(folder / name))


def _lines_bare(text: str) -> str:
    """Return text without terminal control characters except line breaks."""
    return "\n".join(map(strip_controls, text.splitlines()))


def replay(path: Path, seconds: float | None) -> Ledger:
    """Return a ledger of the events in a file, for a run that took `seconds`."""
    ledger = Ledger(clock=lambda: 0.0)
    with suppress(files.UnfitError):
        text = files.read(path, _MAX_EVENTS, inside=path.parent).decode(errors="replace")
        for event in filter(None, map(events.parse, text.split("\n"))):
            ledger.add(throughout(event, _lines_bare))
    ledger.began = -(seconds or 0.0)
    return ledger
