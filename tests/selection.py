"""Which of the collected tests a run runs, and why: the core, what a change touches, one shard of everything else."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.layers import ALWAYS, LAYERS, layer_of, touched
from tests.ledger import Entry, unit_of

SHARD_MINUTES = 16.0
"""What one shard costs of one test process; about half as much by the clock."""


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
    def layer(self) -> str:
        return layer_of(self.nodeid.partition("::")[0])


@dataclass
class Selection:
    """The units that run, each with the reason, and those that do not."""

    reasons: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def add(self, units: Iterable[str], reason: str) -> None:
        for unit in units:
            self.reasons.setdefault(unit, reason)


def everything(tests: Sequence[Test]) -> Selection:
    """Select all tests."""
    return Selection({test.unit: "everything" for test in tests})


def layers(tests: Sequence[Test], names: Collection[str], long: bool) -> Selection:
    """Select the layers of these names; their `long` tests only where those are asked for."""
    chosen = Selection()
    chosen.add((test.unit for test in tests if test.layer in names and (long or not test.long)), "named")
    return _rest(chosen, tests)


def landing(
    tests: Sequence[Test],
    ledger: Mapping[str, Entry],
    changed_since: Callable[[str], Collection[str] | None],
    minutes: float = SHARD_MINUTES,
) -> Selection:
    """Select what a landing runs.

    `changed_since` returns the paths that differ from a commit's, or None where that commit is not known. A unit that
    was never proven, or at an unknown commit, counts as touched. `long` tests run only in their turn, oldest first.
    """
    chosen = Selection()
    chosen.add((test.unit for test in tests if test.layer in ALWAYS and not test.long), "every landing")
    layers_since: dict[str, set[str]] = {}
    for test in tests:
        if test.long or test.unit in chosen.reasons:
            continue
        entry = ledger.get(test.unit)
        if entry is None:
            chosen.add([test.unit], "has never passed")
            continue
        if entry.commit not in layers_since:
            paths = changed_since(entry.commit)
            layers_since[entry.commit] = set(LAYERS) if paths is None else touched(paths)
        if test.layer in layers_since[entry.commit]:
            chosen.add([test.unit], f"its layer changed since {entry.date}")
    _add_shard(chosen, tests, ledger, minutes)
    return _rest(chosen, tests)


def _add_shard(chosen: Selection, tests: Sequence[Test], ledger: Mapping[str, Entry], minutes: float) -> None:
    """Add the units that were proven longest ago, until they fill the shard; more of one scope before another scope.

    A test brings along the ordinary tests of its scope, which may prepare for it.
    """
    waiting = {test.unit: test for test in tests if test.unit not in chosen.reasons}
    ordinary: dict[str, list[str]] = {}
    for test in tests:
        if not test.long:
            ordinary.setdefault(test.scope, []).append(test.unit)

    def age(unit: str) -> tuple[str, str]:
        return (ledger[unit].date if unit in ledger else "", unit)

    left = minutes
    while waiting and left > 0:
        first = min(waiting, key=age)
        scope = waiting[first].scope
        for unit in sorted((unit for unit, test in waiting.items() if test.scope == scope), key=age):
            brought = [one for one in dict.fromkeys([*ordinary.get(scope, []), unit]) if one not in chosen.reasons]
            if left <= 0:
                break
            left -= sum(minutes_of(one, ledger) for one in brought)
            for one in brought:
                last = f"last on {ledger[one].date}" if one in ledger else "never yet"
                chosen.add([one], f"in its turn ({last})")
                waiting.pop(one, None)


def minutes_of(unit: str, ledger: Mapping[str, Entry]) -> float:
    """Return what a unit costs: as measured, or a guess for one that never ran."""
    if unit in ledger:
        return ledger[unit].minutes
    return 4.0 if "::" in unit else 6.0


def _rest(chosen: Selection, tests: Sequence[Test]) -> Selection:
    chosen.left = sorted({test.unit for test in tests} - chosen.reasons.keys())
    return chosen
