"""Which of the collected tests a run runs, and why: the core, a turn of what is not due, what is due, then all else."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.git import WRITTEN
from tests.layers import ALWAYS, LAYERS, invalidated, layer_of, touched
from tests.ledger import Entry, unit_of

LANDING_MINUTES = 60.0
"""What a landing costs of test processes by the ledger, the core included; about half as much by the clock."""
TURN_MINUTES = 8.0
"""What a landing keeps of that for what is not due, `long` tests included, or they would never run: when each landing
touches every layer, more is due than has room."""


@dataclass(frozen=True)
class Test:
    """A collected test: its node id, whether it is `long`, and the scope that one process runs in order."""

    __test__ = False

    nodeid: str
    long: bool
    scope: str

    @property
    def unit(self) -> str:
        return unit_of(self.nodeid, self.long)

    @property
    def file(self) -> str:
        return self.nodeid.partition("::")[0]

    @property
    def layer(self) -> str:
        return layer_of(self.file)


@dataclass
class Selection:
    """The units that run, each with the reason, and those that do not."""

    reasons: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    due: dict[str, str] = field(default_factory=dict)
    """Of those that do not run, the ones that a landing would have to: by unit, the reason."""

    def add(self, units: Iterable[str], reason: str) -> None:
        for unit in units:
            self.reasons.setdefault(unit, reason)


def everything(tests: Sequence[Test]) -> Selection:
    """Select all tests."""
    return Selection({test.unit: "everything" for test in tests})


def remaining(
    tests: Sequence[Test],
    ledger: Mapping[str, Entry],
    changed_since: Callable[[str], Collection[str] | None],
    commits_since: Callable[[str], float],
) -> Selection:
    """Select, of all tests, what the ledger does not show as passed since the files that they depend on changed.

    It resumes a run of everything that was ended, or that had failures: what passed is not run again.
    """
    since: dict[str, set[str]] = {}
    for commit in {entry.commit for entry in ledger.values()}:
        paths = changed_since(commit)
        since[commit] = set(LAYERS) if paths is None else invalidated(set(paths) - set(WRITTEN))
    wanted = {
        test.unit: "remains"
        for test in tests
        if test.unit not in ledger or {test.layer, test.file} & since[ledger[test.unit].commit]
    }
    chosen = Selection()
    _fill(chosen, tests, wanted, ledger, ages(ledger, commits_since), math.inf)
    return _rest(chosen, tests)


def layers(tests: Sequence[Test], names: Collection[str], long: bool) -> Selection:
    """Select the layers of these names; their `long` tests only where those are asked for."""
    chosen = Selection()
    chosen.add((test.unit for test in tests if test.layer in names and (long or not test.long)), "named")
    return _rest(chosen, tests)


def landing(
    tests: Sequence[Test],
    ledger: Mapping[str, Entry],
    changed_since: Callable[[str], Collection[str] | None],
    commits_since: Callable[[str], float],
    minutes: float = LANDING_MINUTES,
) -> Selection:
    """Select what a landing runs: all of the core, TURN_MINUTES of what is not due, what is due, then all else.

    Each as far as the minutes suffice, what was proven longest ago first.

    `changed_since` returns the paths that differ from a commit's, or None where that commit is not known. A unit that
    was never proven, or at an unknown commit, is due. `long` tests are never due; they have their turn. What is due and
    does not run stays due, and comes first in a later landing, as it was proven longest ago. `commits_since` returns
    how many commits there are since a commit.
    """
    chosen = Selection()
    chosen.add((test.unit for test in tests if test.layer in ALWAYS and not test.long), "every landing")
    due = _due(tests, ledger, changed_since)
    left = minutes - sum(minutes_of(unit, ledger) for unit in chosen.reasons)
    last = {unit: f"last on {ledger[unit].date}" if unit in ledger else "never yet" for unit in _units(tests)}
    others = {unit: f"in its turn ({when})" for unit, when in last.items() if unit not in due}
    order, turn = ages(ledger, commits_since), min(TURN_MINUTES, left)
    left -= turn - _fill(chosen, tests, others, ledger, order, turn)
    left = _fill(chosen, tests, due, ledger, order, left)
    _fill(chosen, tests, others, ledger, order, left)
    brought = {unit: reason for unit, reason in due.items() if "in its turn" in chosen.reasons.get(unit, "")}
    chosen.reasons |= brought
    chosen.due = {unit: reason for unit, reason in due.items() if unit not in chosen.reasons}
    return _rest(chosen, tests)


def _due(
    tests: Sequence[Test], ledger: Mapping[str, Entry], changed_since: Callable[[str], Collection[str] | None]
) -> dict[str, str]:
    """Return the units without `long` tests that the ledger does not show as proven since their layer changed."""
    due: dict[str, str] = {}
    layers_since: dict[str, set[str]] = {}
    for test in tests:
        if test.long:
            continue
        entry = ledger.get(test.unit)
        if entry is None:
            due[test.unit] = "has never passed"
            continue
        if entry.commit not in layers_since:
            paths = changed_since(entry.commit)
            layers_since[entry.commit] = set(LAYERS) if paths is None else touched(paths)
        if test.layer in layers_since[entry.commit]:
            due[test.unit] = f"its layer changed since {entry.date}"
    return due


Age = tuple[str, float, str]
"""Smaller for what was proven longer ago: the date, by how many commits (less than 0), and the unit's name."""


def ages(ledger: Mapping[str, Entry], commits_since: Callable[[str], float]) -> Callable[[str], Age]:
    """Return what orders units, those that were proven longest ago first, and before them those that never were.

    A day has many runs: of two units of one day, that of the older commit is the older one.
    """
    since = {commit: commits_since(commit) for commit in {entry.commit for entry in ledger.values()}}
    never = ("", 0.0)
    known = {unit: (entry.date, -since[entry.commit]) for unit, entry in ledger.items()}
    return lambda unit: (*known.get(unit, never), unit)


def _fill(
    chosen: Selection,
    tests: Sequence[Test],
    wanted: Mapping[str, str],
    ledger: Mapping[str, Entry],
    age: Callable[[str], Age],
    minutes: float,
) -> float:
    """Add wanted units, each with its reason, until the minutes are used up; return what is left of them.

    Those that were proven longest ago come first; more of one scope before another scope. A `long` test brings along
    the ordinary tests of its scope, which may prepare for it.
    """
    waiting = {test.unit: test for test in tests if test.unit in wanted and test.unit not in chosen.reasons}
    ordinary: dict[str, list[str]] = {}
    for test in tests:
        if not test.long:
            ordinary.setdefault(test.scope, []).append(test.unit)
    while waiting and minutes > 0:
        scope = waiting[min(waiting, key=age)].scope
        for unit in sorted((unit for unit, test in waiting.items() if test.scope == scope), key=age):
            if minutes <= 0:
                break
            needed = [*ordinary.get(scope, []), unit] if waiting[unit].long else [unit]
            brought = [one for one in dict.fromkeys(needed) if one not in chosen.reasons]
            minutes -= sum(minutes_of(one, ledger) for one in brought)
            for one in brought:
                chosen.add([one], wanted.get(one, wanted[unit]))
        waiting = {unit: test for unit, test in waiting.items() if unit not in chosen.reasons}
    return minutes


def minutes_of(unit: str, ledger: Mapping[str, Entry]) -> float:
    """Return what a unit costs: as measured, or a guess for one that never ran."""
    if unit in ledger:
        return ledger[unit].minutes
    if "::" in unit:
        return 4.0
    return 0.5 if unit.startswith(LAYERS["unit"]) else 6.0  # without a lab, and with one


def _units(tests: Iterable[Test]) -> set[str]:
    return {test.unit for test in tests}


def _rest(chosen: Selection, tests: Sequence[Test]) -> Selection:
    chosen.left = sorted(_units(tests) - chosen.reasons.keys())
    return chosen
