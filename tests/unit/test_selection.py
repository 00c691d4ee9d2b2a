"""Which tests a landing runs: the core, what changed, then the rest, the oldest first."""

import itertools
from pathlib import Path

import pytest

from tests import git, ledger, scheduling, selection
from tests.labs import REPOSITORY
from tests.layers import ALWAYS, LAYERS
from tests.ledger import Entry
from tests.selection import Test

BOOTSTRAP, BACKUP, DRIFT = (f"tests/cluster/test_{name}.py" for name in ("bootstrap", "backup", "drift"))
HEALTH, METRICS = "tests/cluster/test_health.py", "tests/cluster/test_gpu_metrics.py"
FAULTS = "tests/faults/test_more_faults.py"
MUNGE = "tests/molecule/test_molecule.py::test_role[munge]"


def a_test(nodeid: str, long: bool = False) -> Test:
    return Test(nodeid, long, scheduling.scope_of(nodeid))


TESTS = [
    a_test("tests/unit/test_cli.py::test_a"),
    a_test("tests/unit/test_fuzz.py::test_b"),
    a_test(f"{BOOTSTRAP}::test_a"),
    a_test(f"{BOOTSTRAP}::test_b", long=True),
    a_test(f"{BACKUP}::test_a"),
    a_test(f"{DRIFT}::test_a"),
    a_test(f"{METRICS}::test_a"),
    a_test(f"{HEALTH}::test_a"),
    a_test(f"{HEALTH}::test_b", long=True),
    a_test(MUNGE),
    *(a_test(f"{FAULTS}::test_{name}", long=True) for name in "abc"),
]
UNITS = {test.unit for test in TESTS}


def proven() -> dict[str, Entry]:
    """A ledger in which all was proven at commit c1 on one date."""
    return {unit: Entry("c1", "2026-01-02", 5.0) for unit in UNITS}


A, B, C = (f"{FAULTS}::test_{name}" for name in "abc")
OLD = dict.fromkeys((A, B), Entry("c1", "2026-01-01", 5.0))
"""Two units that are not due and have their turn in the next landing."""
CORE_MINUTES = 10.0  # two units of five minutes
TURN = 10.0  # two units of five minutes: the second begins within TURN_MINUTES
PLENTY = 1000.0
HISTORY = {"c0": 9.0, "c1": 5.0, "c2": 3.0}
"""How many commits there are since each."""


def landing(known: dict[str, Entry], *paths: str, minutes: float = 0.0) -> selection.Selection:
    """Return a landing that has these minutes beyond the core."""
    found = selection.landing(TESTS, known, lambda commit: paths, HISTORY.__getitem__, CORE_MINUTES + minutes)
    assert found.reasons.keys() | set(found.left) == UNITS
    assert not found.reasons.keys() & set(found.left)
    assert found.due.keys() <= set(found.left)
    return found


def chosen(known: dict[str, Entry], *paths: str, minutes: float = 0.0) -> set[str]:
    return set(landing(known, *paths, minutes=minutes).reasons)


def due(known: dict[str, Entry], *paths: str) -> set[str]:
    """Return what is due, whether or not there are minutes for it."""
    without = landing(known, *paths)
    assert set(without.reasons) == CORE
    found = {unit for unit, why in landing(known, *paths, minutes=PLENTY).reasons.items() if "in its turn" not in why}
    assert found == CORE | without.due.keys()
    return found


CORE = {"tests/unit", BOOTSTRAP}
ORDINARY = {test.unit for test in TESTS if not test.long}


def test_landing__nothing_changed__runs_the_core_alone() -> None:
    assert due(proven()) == CORE


def test_landing__a_path_of_a_layer__runs_that_layer_without_long_tests() -> None:
    assert due(proven(), "roles/gpu_health/tasks/main.yml") == CORE | {HEALTH, METRICS, MUNGE}


def test_landing__an_unknown_path__runs_all_but_long_tests() -> None:
    assert due(proven(), "no-such-path") == ORDINARY


def test_landing__an_unknown_commit__runs_all_but_long_tests() -> None:
    found = selection.landing(TESTS, proven(), lambda commit: None, HISTORY.__getitem__, 0.0)
    assert found.reasons.keys() | found.due.keys() == ORDINARY


def test_landing__a_unit_without_an_entry__runs() -> None:
    known = {**proven(), **OLD}
    del known[BACKUP]
    assert landing(known, minutes=TURN + 1.0).reasons == {
        "tests/unit": "every landing", BOOTSTRAP: "every landing", BACKUP: "has never passed",
        **dict.fromkeys(OLD, "in its turn (last on 2026-01-01)"),
    }  # fmt: skip


def test_landing__a_unit_proven_at_a_later_commit__is_compared_with_that() -> None:
    known = {**proven(), HEALTH: Entry("c2", "2026-01-03", 5.0)}
    changes = {"c1": ["roles/gpu_health/tasks/main.yml"], "c2": []}
    found = selection.landing(TESTS, known, changes.__getitem__, HISTORY.__getitem__, 0.0)
    assert HEALTH not in found.due
    assert METRICS in found.due


def test_landing__more_due_than_minutes__leaves_the_newest_and_says_so() -> None:
    known = {**proven(), **OLD, BACKUP: Entry("c1", "2026-01-01", 5.0)}
    found = landing(known, "no-such-path", minutes=TURN + 1.0)
    assert set(found.reasons) == CORE | {A, B, BACKUP}
    assert found.due == dict.fromkeys(ORDINARY - CORE - {BACKUP}, "its layer changed since 2026-01-02")


def test_landing__all_is_due__keeps_minutes_for_the_oldest_that_is_not() -> None:
    known = {**proven(), **OLD}
    found = landing(known, "no-such-path", minutes=selection.TURN_MINUTES + 5.0)
    assert found.reasons[A] == found.reasons[B] == "in its turn (last on 2026-01-01)"
    assert set(found.reasons) - CORE - {A, B} == {BACKUP}
    assert set(landing(known, "no-such-path", minutes=PLENTY).reasons) == UNITS


def test_landing__what_is_due__comes_before_more_of_what_is_not() -> None:
    """Beyond the minutes that are kept for what is not."""
    known = {**proven(), **dict.fromkeys((A, B, C), Entry("c1", "2026-01-01", 5.0))}
    assert chosen(known, "roles/backup/tasks/main.yml", minutes=TURN + 1.0) == CORE | {A, B, BACKUP}


def test_landing__a_long_test_brings_what_is_due__which_keeps_its_reason() -> None:
    long = f"{HEALTH}::test_b"
    known = {**proven(), long: Entry("c1", "2026-01-01", 5.0)}
    found = landing(known, "roles/gpu_health/tasks/main.yml", minutes=1.0)
    assert found.reasons[HEALTH] == found.reasons[METRICS] == "its layer changed since 2026-01-02"
    assert found.reasons[long] == "in its turn (last on 2026-01-01)"


def test_landings__one_after_another__run_all_that_is_due() -> None:
    known, ran = proven(), set[str]()
    for day in range(2, 20):
        new = landing(known, "no-such-path", minutes=TURN + 1.0).reasons.keys() - CORE
        ran |= new
        known |= {unit: Entry("c1", f"2026-02-{day:02}", 5.0) for unit in new}
        if ran == UNITS - CORE:
            return
    pytest.fail(f"never ran: {UNITS - CORE - ran}")


def test_landings__each_touches_every_layer__still_run_all_that_is_long() -> None:
    """Though what is due never ends: each is due again in the next one."""
    known, ran = proven(), set[str]()
    for day in range(2, 20):
        found = landing(known, "no-such-path", minutes=TURN + 1.0)
        assert found.due, "there is more due than room"
        ran |= found.reasons.keys()
        known |= {unit: Entry("c1", f"2026-02-{day:02}", 5.0) for unit in found.reasons.keys() - CORE}
        if ran >= UNITS - ORDINARY:
            return
    pytest.fail(f"never ran: {UNITS - ORDINARY - ran}")


@pytest.mark.parametrize("commit", ["c0", "c1"])
def test_turn__units_of_one_day__the_older_commit_first(commit: str) -> None:
    """Not the first by name."""
    known = {unit: Entry("c2", entry.date, entry.minutes) for unit, entry in proven().items()}
    known[MUNGE] = Entry(commit, "2026-01-02", 5.0)
    assert min(UNITS - CORE) != MUNGE
    assert chosen(known, minutes=1.0) == CORE | {MUNGE}


def test_turn__an_older_day__comes_before_an_older_commit() -> None:
    known = {**proven(), MUNGE: Entry("c2", "2026-01-01", 5.0), BACKUP: Entry("c0", "2026-01-02", 5.0)}
    assert chosen(known, minutes=1.0) == CORE | {MUNGE}


def test_turn__the_oldest_unit__runs_first() -> None:
    known = {**proven(), MUNGE: Entry("c1", "2026-01-01", 5.0)}
    assert chosen(known, minutes=1.0) == CORE | {MUNGE}


def test_turn__a_unit_that_never_ran__comes_before_the_oldest() -> None:
    known = {**proven(), MUNGE: Entry("c1", "2026-01-01", 5.0)}
    del known[f"{FAULTS}::test_b"]
    assert chosen(known, minutes=1.0) == CORE | {f"{FAULTS}::test_b"}


def test_turn__minutes_left__are_filled_from_the_same_scope() -> None:
    known = {**proven(), f"{FAULTS}::test_c": Entry("c1", "2026-01-01", 5.0)}
    assert chosen(known, minutes=6.0) == CORE | {f"{FAULTS}::test_c", f"{FAULTS}::test_a"}


def test_turn__a_long_test__brings_the_ordinary_ones_of_its_lab() -> None:
    known = {**proven(), f"{HEALTH}::test_b": Entry("c1", "2026-01-01", 5.0)}
    assert chosen(known, minutes=1.0) == CORE | {f"{HEALTH}::test_b", HEALTH, METRICS}


def test_turn__the_files_of_one_lab__come_together() -> None:
    known = {**proven(), DRIFT: Entry("c1", "2026-01-01", 5.0)}
    assert chosen(known, minutes=6.0) == CORE | {BACKUP, DRIFT}


def test_turns__one_after_another__run_all_before_any_again() -> None:
    known, seen = proven(), list[str]()
    for day in itertools.count(3):
        ran = chosen(known, minutes=1.0) - CORE
        seen += ran
        known |= {unit: Entry("c1", f"2026-02-{day:02}", 5.0) for unit in ran}
        if set(seen) == UNITS - CORE:
            break
        assert day < 20, f"never ran: {UNITS - CORE - set(seen)}"
    twice = {unit for unit in seen if seen.count(unit) > 1}
    assert twice <= {HEALTH, METRICS}  # ordinary tests, which prepare for a long one of their lab


def test_layers__named__run_without_long_tests_unless_asked() -> None:
    assert set(selection.layers(TESTS, ["gpu"], long=False).reasons) == {HEALTH, METRICS}
    assert set(selection.layers(TESTS, ["gpu"], long=True).reasons) == {HEALTH, METRICS, f"{HEALTH}::test_b"}


def test_everything__runs_all() -> None:
    assert set(selection.everything(TESTS).reasons) == UNITS


def remaining(known: dict[str, Entry], **paths: tuple[str, ...]) -> set[str]:
    """Return what remains where these paths differ from each commit's."""
    found = selection.remaining(TESTS, known, lambda commit: paths.get(commit), HISTORY.__getitem__)
    assert found.reasons.keys() | set(found.left) == UNITS
    return set(found.reasons)


def test_remaining__what_passed_with_these_files__is_not_run_again() -> None:
    assert remaining(proven(), c1=()) == set()
    assert remaining(proven(), c1=("tests/ledger.json", "docs/proof.md")) == set()
    assert remaining({unit: entry for unit, entry in proven().items() if unit != MUNGE}, c1=()) == {MUNGE}


def test_remaining__a_file_that_any_test_may_depend_on__or_an_unknown_commit__is_everything() -> None:
    assert remaining(proven(), c1=("pyproject.toml",)) == UNITS
    assert remaining(proven()) == UNITS


def test_remaining__a_test_file__is_itself_and_those_that_import_it() -> None:
    known = proven() | {(half := "tests/cluster/test_half_way.py::test_a"): Entry("c1", "2026-01-02", 5.0)}
    tests = [*TESTS, Test(half, True, "halfway"), Test("tests/cluster/test_upgrade.py::test_a", False, "whole")]
    known["tests/cluster/test_upgrade.py"] = Entry("c1", "2026-01-02", 5.0)

    def after(path: str) -> set[str]:
        return set(selection.remaining(tests, known, lambda _commit: {path}, HISTORY.__getitem__).reasons)

    assert after("tests/cluster/test_drift.py") == {DRIFT}
    assert after("tests/cluster/test_health.py") == {METRICS, HEALTH, f"{HEALTH}::test_b"}
    assert after("tests/cluster/test_upgrade.py") == {"tests/cluster/test_upgrade.py", half}
    assert after("tests/cluster/test_plan.py") == after("tests/cluster/test_upgrade.py"), "through another"
    assert after("tests/unit/test_cli.py") == after("tests/selection.py") == {"tests/unit"}


def test_remaining__a_role__is_its_layers_and_those_of_each_landing() -> None:
    expected = {test.unit for test in TESTS if test.layer in {"unit", "core", "gpu", "roles"}}
    assert remaining(proven(), c1=("roles/containers/tasks/main.yml",)) == expected


def test_remaining__a_long_test__brings_the_ordinary_ones_of_its_lab() -> None:
    long = f"{HEALTH}::test_b"
    known = proven() | {long: Entry("c0", "2026-01-01", 5.0)}
    assert remaining(known, c1=(), c0=("tests/cluster/test_health.py",)) == {METRICS, HEALTH, long}


def test_order__the_longest_scope_first__units_last__files_of_a_lab_in_turn() -> None:
    known = {**proven(), BOOTSTRAP: Entry("c1", "2026-01-02", 30.0), "tests/unit": Entry("c1", "2026-01-02", 90.0)}
    key = scheduling.order(TESTS, known)
    scopes = list(dict.fromkeys(test.scope for test in sorted(TESTS, key=lambda test: key[test.nodeid])))
    assert scopes[:2] == [BOOTSTRAP, "gpus"]
    assert scopes[-2:] == ["tests/unit/test_cli.py", "tests/unit/test_fuzz.py"]
    gpus = [test.nodeid.partition("::")[0] for test in TESTS if test.scope == "gpus"]
    assert sorted(gpus, key=lambda file: key[f"{file}::test_a"]) == [METRICS, HEALTH, HEALTH]


def test_scope_of__molecule_scenario__is_itself() -> None:
    assert scheduling.scope_of(MUNGE) == MUNGE
    assert scheduling.scope_of(f"{BACKUP}::test_a[x]") == scheduling.scope_of(f"{DRIFT}::test_a") == "whole"


def test_process_of__kubernetes__is_one_for_all_files_and_each_is_a_scope_of_its_own() -> None:
    files = [str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "tests/cluster").glob("test_kubernetes*.py")]
    assert len(files) == 11
    assert {scheduling.process_of(f"{file}::test_a") for file in files} == {"kubernetes"}
    assert [scheduling.scope_of(f"{file}::test_a") for file in files] == files
    assert scheduling.process_of("tests/molecule/test_molecule.py::test_role[kubernetes_node]") == "kubernetes"
    assert scheduling.process_of("tests/bench/test_parts.py::test_bench[kubernetes]") == "kubernetes"
    assert scheduling.process_of("tests/bench/test_parts.py::test_bench[demo]") == "tests/bench/test_parts.py"
    assert scheduling.process_of(f"{BACKUP}::test_a") == scheduling.scope_of(f"{BACKUP}::test_a")


def test_ledger__saved_and_loaded__is_the_same_one_line_each(tmp_path: Path) -> None:
    known = proven()
    ledger.save(known, tmp_path / "ledger.json")
    assert ledger.load(tmp_path / "ledger.json") == known
    assert len((tmp_path / "ledger.json").read_text().splitlines()) == len(known) + 2
    assert ledger.load(tmp_path / "none.json") == {}


@pytest.mark.parametrize(("skipped", "expected"), [(False, "2026-01-02"), (True, None)])
def test_last_proven__a_unit_that_was_skipped__is_not_proven(skipped: bool, expected: str | None) -> None:
    known = {BACKUP: Entry("c1", "2026-01-02", 5.0, skipped)}
    assert ledger.last_proven(f"{BACKUP}::test_a", False, known) == expected
    assert ledger.last_proven(f"{DRIFT}::test_a", False, known) is None


@pytest.mark.skipif(not git.is_whole(), reason="a shallow clone, or none, does not have the ledger's commits")
def test_ledger__its_commits__are_ancestors_of_what_is_checked_out() -> None:
    """A unit of an unknown commit is always due, and its date on docs/proof.md cannot be checked."""
    commits = sorted({entry.commit for entry in ledger.load().values()})
    assert commits
    assert [commit for commit in commits if not git.is_ancestor(commit)] == []


def test_landing__by_the_ledger__the_core_leaves_minutes_for_the_turn_and_what_is_due() -> None:
    core = [file for layer in ALWAYS for file in LAYERS[layer] if file.endswith(".py")]
    systems = [f"tests/systems/{path.name}" for path in (REPOSITORY / "tests/systems").glob("test_*.py")]
    minutes = sum(selection.minutes_of(unit, ledger.load()) for unit in (*core, *systems, "tests/unit"))
    assert minutes + 2 * selection.TURN_MINUTES < selection.LANDING_MINUTES
