"""What a run of tests was, from the files that it wrote meanwhile: they are there however it ended."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.programs import LINES, tail

SHOWN = 3
"""Failed tests whose output is shown; the others are named."""


@dataclass
class Outcome:
    """One test."""

    nodeid: str
    seconds: float = 0.0
    began: float = 0.0
    ended: bool = False
    failed: str = ""  # the failure's text
    output: str = ""
    skipped: str = ""  # the reason
    measured: list[str] = field(default_factory=list)  # by pytest's record_property


@dataclass
class Results:
    """All tests of a run, and what was selected."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    due: dict[str, str] = field(default_factory=dict)
    units: dict[str, list[str]] = field(default_factory=dict)

    @property
    def failed(self) -> list[Outcome]:
        """The failed ones, the first that failed first."""
        return [outcome for outcome in self.outcomes.values() if outcome.failed]

    @property
    def running(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes.values() if outcome.began and not outcome.ended]

    @property
    def passed(self) -> list[Outcome]:
        return [one for one in self.outcomes.values() if one.ended and not one.failed and not one.skipped]

    def unit(self, unit: str) -> list[Outcome | None]:
        """Return the outcomes of a unit's tests; None for one that did not run."""
        return [self.outcomes.get(nodeid) for nodeid in self.units.get(unit, [])]


def read(directory: Path) -> Results:
    """Read what a run wrote into a directory; a last line that was cut off does not count."""
    results = Results()
    selected = directory / "selection.json"
    if selected.exists():
        document = json.loads(selected.read_text())
        results.reasons, results.left = document["reasons"], document["left"]
        results.due, results.units = document["due"], document["units"]
    path = directory / "results.jsonl"
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        _take(results.outcomes.setdefault(row["test"], Outcome(row["test"])), row)
    return results


def _take(outcome: Outcome, row: dict[str, Any]) -> None:
    event = row["event"]
    if event == "start":
        outcome.began = row["time"]
    elif event == "end":
        outcome.ended = True
    else:
        outcome.seconds += row["seconds"]
        outcome.measured += row.get("measured", [])
        if row["outcome"] == "failed" and not outcome.failed:
            outcome.failed, outcome.output = row["text"] or "failed without a text", row.get("output", "")
        elif row["outcome"] == "skipped":
            outcome.skipped = row["text"]
        outcome.ended = outcome.ended or event == "collect"


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"


def longest(results: Results, count: int = 20) -> Iterable[str]:
    """Yield a line for each of the tests that took longest, set-up and take-down included."""
    rows = sorted(results.outcomes.values(), key=lambda outcome: -outcome.seconds)[:count]
    for outcome in rows:
        yield f"{minutes(outcome.seconds):>9}  {outcome.nodeid}"


def measured(results: Results) -> Iterable[str]:
    """Yield what tests measured, each after its test."""
    for outcome in results.outcomes.values():
        yield from (f"{outcome.nodeid}: {one}" for one in outcome.measured)


def by_unit(results: Results) -> Iterable[str]:
    """Yield a line for each unit that ran: minutes, tests, and why it ran."""
    rows = []
    for unit, nodeids in results.units.items():
        ran = [outcome for outcome in results.unit(unit) if outcome]
        if ran:
            seconds = sum(outcome.seconds for outcome in ran)
            rows.append((seconds, unit, len(ran), len(nodeids)))
    for seconds, unit, ran_count, count in sorted(rows, reverse=True):
        tests = f"{ran_count} of {count}" if ran_count < count else f"{count}"
        yield f"{minutes(seconds):>9}  {unit} ({tests} tests; {results.reasons.get(unit, '')})"


def not_run(results: Results) -> Iterable[str]:
    """Yield what was neither selected nor due, the `long` tests counted by their files."""
    counts: dict[str, int] = {}
    for unit in sorted({*results.left} - {*results.due}):
        file = unit.partition("::")[0]
        name = file if "::" in unit and not unit.startswith("tests/molecule/") else unit
        counts[name] = counts.get(name, 0) + 1
    for name, count in sorted(counts.items()):
        yield f"{name} ({count} long tests)" if count > 1 else name


def left_due(results: Results) -> Iterable[str]:
    """Yield what a landing had no minutes for although its layer changed."""
    yield from (f"{unit} ({reason})" for unit, reason in sorted(results.due.items()))


def unfinished(results: Results, now: float | None = None) -> Iterable[str]:
    """Yield what was running and what had not begun, for a run that was ended from outside."""
    now = time.time() if now is None else now
    for outcome in results.running:
        yield f"running for {minutes(now - outcome.began)}: {outcome.nodeid}"
    for unit, nodeids in results.units.items():
        waiting = [nodeid for nodeid in nodeids if nodeid not in results.outcomes]
        if waiting:
            yield f"not begun: {unit} ({len(waiting)} of {len(nodeids)} tests)"


def failures(results: Results) -> Iterable[str]:
    """Yield the failed tests: all names, then the texts of a few; that of the first which failed is the last."""
    failed = results.failed
    for outcome in failed:
        yield f"FAILED {outcome.nodeid}"
    for outcome in [*reversed(failed[1:SHOWN]), *failed[:1]]:
        yield ""
        yield f"--- {outcome.nodeid}"
        if outcome.output:
            yield tail(outcome.output, LINES // 2)
        yield tail(outcome.failed)
