"""What was last proven when: one line in tests/ledger.json for each unit, which a run runs or leaves as a whole.

A unit is a test file, a molecule scenario, all of tests/unit, or a single `long` test (by its node id). Its entry has
the commit and the date (UTC) of the last run in which all of it passed, and the minutes of one test process.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

PATH = Path(__file__).resolve().parent / "ledger.json"


@dataclass(frozen=True)
class Entry:
    """The last time that all tests of a unit passed."""

    commit: str
    date: str  # ISO, UTC
    minutes: float  # of one test process, set-up included
    skipped: bool = False  # whether nothing of it could run on that machine: it had its turn and proves nothing


def unit_of(nodeid: str, long: bool) -> str:
    """Return the unit that a test belongs to."""
    if long:
        return nodeid
    if nodeid.startswith("tests/unit/"):
        return "tests/unit"
    return nodeid if nodeid.startswith("tests/molecule/") else nodeid.partition("::")[0]


def load(path: Path = PATH) -> dict[str, Entry]:
    """Return the entries by unit."""
    if not path.exists():
        return {}
    return {unit: Entry(**entry) for unit, entry in json.loads(path.read_text()).items()}


def save(entries: Mapping[str, Entry], path: Path = PATH) -> None:
    """Write the entries, one to a line, in the order of their names."""
    path.write_text("{\n" + ",\n".join(rows(entries)) + "\n}\n")


def rows(entries: Mapping[str, Entry]) -> list[str]:
    """Return the lines of the file, without their commas."""
    return [f" {json.dumps(unit)}: {json.dumps(asdict(entry))}" for unit, entry in sorted(entries.items())]


def last_proven(nodeid: str, long: bool, entries: Mapping[str, Entry] | None = None) -> str | None:
    """Return the date on which a test last passed with all of its unit, or None."""
    entry = (load() if entries is None else entries).get(unit_of(nodeid, long))
    return entry.date if entry and not entry.skipped else None
