"""Reservations of Slurm: one form for what is declared and what scontrol prints, and the commands in between."""

import calendar
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from clusterctl.nodes.probe import reservations as probe
from tests.labs import REPOSITORY
from tests.unit.test_role_plugins import plugin

RESERVATIONS = plugin("module_utils/slurm_reservations")
MODULE = plugin("modules/slurm_reservations")
FILTERS = plugin("filter/slurm")
SAMPLE = (REPOSITORY / "tests/samples/slurm/scontrol-reservations-24.11.5.txt").read_text()
ALL = RESERVATIONS.lines_of(SAMPLE.partition("# new")[2].partition("# after ")[0])
UPDATED = RESERVATIONS.lines_of(SAMPLE.partition("# after ")[2])
MAINT: dict[str, Any] = {
    "StartTime": "2026-12-01T08:00",
    "Duration": "2:00:00",
    "Nodes": ["gpu01", "gpu02"],
    "Users": "alice, root",
    "Flags": ["maint", "IGNORE_JOBS"],
}
WEEK: dict[str, Any] = {
    "StartTime": "2026-11-30T23:00:00",
    "EndTime": "2026-12-01T05:00",
    "Nodes": "gpu01",
    "Accounts": ["Cluster"],
    "Flags": "WEEKLY,FLEX",
    "MaxStartDelay": 10,
    "PartitionName": "main",
}
CNT: dict[str, Any] = {
    "StartTime": "2026-12-03T08:00",
    "Duration": 90,
    "NodeCnt": 1,
    "Users": ["alice"],
    "Flags": ["REPLACE_DOWN", "PURGE_COMP"],
}
OF_ALL: dict[str, Any] = {
    "StartTime": "2026-12-04T08:00",
    "Duration": 90,
    "Nodes": "all",
    "Users": ["alice"],
    "Flags": ["STATIC_ALLOC", "NO_HOLD_JOBS_AFTER_END", "MAGNETIC", "USER_DELETE", "OVERLAP"],
}
TRES: dict[str, Any] = {
    "StartTime": "2026-12-05T08:00",
    "Duration": 90,
    "Nodes": ["gpu01"],
    "TRES": "cpu=1",
    "Users": ["alice"],
}
GRES: dict[str, Any] = {
    "StartTime": "2026-12-06T08:00",
    "Duration": 90,
    "TRES": {"gres/gpu": 2},
    "Users": ["alice"],
}
DECLARED = {"maint": MAINT, "week": WEEK, "cnt": CNT, "all": OF_ALL, "tres": TRES, "gres": GRES}
FLAT = {name: RESERVATIONS.flatten(options) for name, options in DECLARED.items()}


def at(text: str) -> int:
    """Return a time in UTC as seconds since 1970."""
    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M"))


BEFORE, DURING, AFTER = at("2026-11-30T08:00"), at("2026-12-01T09:00"), at("2026-12-02T08:00")


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from zone(monkeypatch, "UTC")


def zone(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", name)
        time.tzset()
        yield
    time.tzset()


def steps(declared: dict[str, Any], lines: dict[str, str], now: float, recorded: Any = None) -> list[str]:
    """Return the commands for declared options, as text without the reservation's option."""
    wanted = {name: RESERVATIONS.flatten(options) for name, options in declared.items()}
    planned = MODULE.plan(wanted, lines, recorded or {}, now)
    return [" ".join(command) for step in planned for command in step.commands]


def left(declared: dict[str, Any], lines: dict[str, str]) -> Any:
    """Return the record of a run that left these reservations."""
    return MODULE.remembered({name: FLAT[name] for name in declared}, lines, {}, set(declared))


def moved(line: str, days: int) -> str:
    """Return a printed reservation that Slurm has moved by some days."""
    fields = RESERVATIONS.fields_of(line)
    for name in ("StartTime", "EndTime"):
        line = line.replace(f"{name}={fields[name]}", f"{name}={int(fields[name]) + days * 86400}")
    return line


@pytest.mark.proves("jobs", "Declared reservations are compared with what Slurm 24.11 prints.")
def test_plan__of_what_slurm_prints__needs_nothing() -> None:
    assert {*DECLARED} == {*ALL}
    assert {option for flat in FLAT.values() for option in flat} == {*RESERVATIONS.OPTIONS} - {"Features"}
    for moment in (BEFORE, DURING, AFTER):
        assert steps(DECLARED, {**ALL, "week": moved(ALL["week"], 7 * (moment == AFTER))}, moment) == []


def test_plan__of_what_was_changed_by_hand__repairs_declared_options() -> None:
    lines = {name: UPDATED[name] for name in ("maint", "week", "cnt")}
    assert steps({name: DECLARED[name] for name in lines}, lines, BEFORE) == [
        "update reservation=maint EndTime=2026-12-01T10:00:00 Nodes=gpu01,gpu02 StartTime=2026-12-01T08:00:00"
        " Users=alice,root",
        "update reservation=week MaxStartDelay=10:00 PartitionName=main",
        "update reservation=cnt NodeCnt=1",
    ]


def test_plan__of_what_left_the_inventory__deletes_what_a_run_declared() -> None:
    recorded = left({"maint": MAINT, "cnt": CNT}, ALL)
    assert steps({"cnt": CNT}, ALL, BEFORE, recorded) == ["delete reservation=maint"]
    assert steps({}, {"week": ALL["week"]}, BEFORE, recorded) == []


def test_plan__of_options_that_are_no_longer_declared__removes_them() -> None:
    recorded = left({"maint": MAINT, "week": WEEK}, ALL)
    week = {key: value for key, value in WEEK.items() if key not in ("MaxStartDelay", "PartitionName")}
    maint = MAINT | {"Accounts": "vision", "Flags": "IGNORE_JOBS"}
    del maint["Users"]
    assert steps({"maint": maint, "week": week | {"Flags": "WEEKLY"}}, ALL, BEFORE, recorded) == [
        "update reservation=maint Accounts=vision Users= Flags-=MAINT",
        "update reservation=week MaxStartDelay=0 PartitionName= Flags-=FLEX",
    ]
    assert steps({"week": week}, UPDATED, BEFORE, left({"week": WEEK}, ALL)) == []


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("maint", {"Features": "a100"}),
        ("tres", {"TRES": {"cpu": 2}}),
        ("tres", {"Nodes": "gpu02"}),
        ("week", {"Flags": "DAILY"}),
        ("all", {"Flags": "OVERLAP"}),
    ],
)
def test_plan__of_what_slurm_cannot_change__makes_it_new(name: str, changed: dict[str, Any]) -> None:
    options = DECLARED[name] | changed
    first, second = steps({name: options}, ALL, BEFORE, left({name: options}, ALL))
    assert (first, second.split()[:2]) == (f"delete reservation={name}", ["create", f"reservation={name}"])


@pytest.mark.proves("jobs", "A reservation is not created after its end, and created late if it has begun.")
def test_plan__of_a_missing_reservation__depends_on_the_time() -> None:
    once = {"maint": MAINT}
    (early,), (late,) = steps(once, {}, BEFORE), steps(once, {}, DURING)
    assert early == (
        "create reservation=maint EndTime=2026-12-01T10:00:00 Flags=IGNORE_JOBS,MAINT Nodes=gpu01,gpu02"
        " StartTime=2026-12-01T08:00:00 Users=alice,root"
    )
    assert late == early.replace("StartTime=2026-12-01T08", "StartTime=2026-12-01T09")
    assert steps(once, {}, AFTER) == []
    assert steps(once, {"maint": ALL["maint"].replace("1796112000", str(DURING))}, DURING + 60) == []
    (late,) = steps(once, {"maint": ALL["maint"].replace("1796112000", str(AFTER))}, DURING)
    assert "StartTime=2026-12-01T09:00:00" in late


@pytest.mark.parametrize(
    ("flag", "now", "expected"),
    [
        ("HOURLY", "2026-12-02T23:30", "2026-12-03T00:00"),
        ("DAILY", "2026-12-31T23:30", "2027-01-01T23:00"),
        ("WEEKDAY", "2026-12-04T23:30", "2026-12-07T23:00"),  # from Friday
        ("WEEKEND", "2026-12-01T23:30", "2026-12-05T23:00"),
        ("WEEKLY", "2027-11-30T00:30", "2027-12-06T23:00"),
    ],
)
def test_next_times__of_what_recurs__is_the_next_occurrence(flag: str, now: str, expected: str) -> None:
    flat = RESERVATIONS.flatten(WEEK | {"Flags": flag})
    assert RESERVATIONS.next_times(flat, at(now)) == (at(expected), at(expected) + 6 * 3600)


def test_moments__of_what_recurs__are_compared_by_the_clock() -> None:
    week = {"week": moved(ALL["week"], 21)}
    now = AFTER + 21 * 86400
    assert steps({"week": WEEK}, week, now) == []
    assert steps({"week": WEEK | {"StartTime": "2026-11-29T23:00", "EndTime": "2026-11-30T05:00"}}, week, BEFORE)
    assert steps({"week": WEEK | {"EndTime": "2026-12-01T06:00"}}, week, now) == [
        "update reservation=week EndTime=2026-12-22T06:00:00"
    ]


def test_moments__over_the_end_of_summer_time__stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in zone(monkeypatch, "Europe/Berlin"):
        flat = RESERVATIONS.flatten(WEEK | {"StartTime": "2026-10-17T23:00", "EndTime": "2026-10-18T05:00"})
        begin, end = RESERVATIONS.next_times(flat, at("2026-10-23T12:00"))
        assert (begin, end - begin) == (at("2026-10-24T21:00"), 7 * 3600)
        once = RESERVATIONS.flatten(MAINT | {"StartTime": "2026-10-25T00:30", "Duration": "2:00:00"})
        start, end = RESERVATIONS.times(once)
        fields = RESERVATIONS.fields_of(ALL["maint"]) | {"StartTime": str(start), "EndTime": str(end)}
        assert RESERVATIONS.differences(once, fields, {}, start - 60) == ([], False)


@pytest.mark.proves("jobs", "A reservation that Slurm ended early by its flag PURGE_COMP is not created again.")
def test_plan__of_what_slurm_ended_early__does_not_repeat_it() -> None:
    recorded, now = left({"cnt": CNT}, ALL), at("2026-12-03T09:00")
    assert steps({"cnt": CNT}, {}, now, recorded) == []
    assert len(steps({"cnt": CNT}, {}, BEFORE, recorded)) == 1
    assert len(steps({"cnt": CNT | {"NodeCnt": 2}}, {}, now, recorded)) == 1
    assert MODULE.remembered({"cnt": FLAT["cnt"]}, {}, recorded, set()) == recorded


def test_expand__of_slurms_notation__returns_names() -> None:
    assert RESERVATIONS.expand("gpu[01-03,07],login,r1-n[9-10]") == {
        *("gpu01", "gpu02", "gpu03", "gpu07", "login", "r1-n9", "r1-n10"),
    }
    assert RESERVATIONS.lines_of("No reservations in the system\n") == {}


def test_filter__of_groups__returns_nodes_with_a_record() -> None:
    declared = [{"name": "a", "options": {"nodes": "rack1, gpu09"}}, {"name": "b", "options": {"Nodes": ["gpu09"]}}]
    declared += [{"name": "c", "options": {"Nodes": "ALL"}}, {"name": "d", "options": {"NodeCnt": 2}}]
    found = FILTERS.reservations(declared, {"rack1": ["gpu01", "gpu02", "gpu03"]}, {"gpu01": {}, "gpu02": {}})
    assert [(one["name"], one["options"]) for one in found] == [
        ("a", {"nodes": ["gpu01", "gpu02"]}),
        ("c", {"Nodes": "ALL"}),
        ("d", {"NodeCnt": 2}),
    ]


def changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recorded: Any, *lines: str) -> Any:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(recorded))
    monkeypatch.setattr(probe, "_RECORD", str(path))
    return probe.changed_reservations("\n".join(lines) or "No reservations in the system\n")["reservations"]


@pytest.mark.proves("jobs", "The digest of a head shows edited reservations, not those that ended or recurred.")
def test_probe__of_what_a_run_left__shows_what_was_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorded = left(DECLARED, ALL)
    lines = {**ALL, "week": moved(ALL["week"], 14), "cnt": ALL["cnt"].replace("Nodes=gpu01", "Nodes=gpu02")}
    active = [line.replace("INACTIVE", "ACTIVE") for line in lines.values()]
    monkeypatch.setattr(time, "time", lambda: BEFORE)
    assert changed(monkeypatch, tmp_path, recorded, *active, "ReservationName=hand Flags=SPEC_NODES") == []
    found = changed(monkeypatch, tmp_path, recorded, *(UPDATED | {"all": ALL["all"], "tres": ALL["tres"]}).values())
    assert [name for name, _ in found] == ["cnt", "gres", "maint", "week"]
    monkeypatch.setattr(time, "time", lambda: AFTER + 30 * 86400)
    assert [name for name, _ in changed(monkeypatch, tmp_path, recorded)] == ["week"]


class Slurm:
    """scontrol with some reservations, which refuses some commands."""

    def __init__(self, lines: dict[str, str], refused: str = "") -> None:
        self.lines, self.refused, self.commands = lines, refused, list[str]()

    def __call__(self, *arguments: str) -> str:
        if "show" in arguments:
            return "\n".join(self.lines.values())
        if arguments[0] == self.refused.partition(":")[0]:
            raise MODULE.ScontrolError(self.refused)
        self.commands.append(" ".join(arguments))
        if arguments[0] == "delete":
            del self.lines[arguments[1].partition("=")[2]]
        return ""


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], record: Path, slurm: Slurm, **declared: Any
) -> Any:
    monkeypatch.setattr(MODULE, "scontrol", slurm)
    monkeypatch.setattr(MODULE, "store", lambda path, data: path.write_bytes(data))
    monkeypatch.setattr(time, "time", lambda: BEFORE)
    listed = [{"name": name, "options": options} for name, options in declared.items()]
    with patch_module_args({"reservations": listed, "record": str(record)}), pytest.raises(SystemExit):
        MODULE.main()
    return json.loads(capsys.readouterr().out)


def test_main__after_the_last_reservation_left__has_no_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record, slurm = tmp_path / "record.json", Slurm({"maint": UPDATED["maint"]})
    answer = call(monkeypatch, capsys, record, slurm, maint=MAINT)
    assert [(one["name"], one["action"]) for one in answer["changes"]] == [("maint", "changed")]
    assert json.loads(record.read_text())["maint"]["options"] == FLAT["maint"]
    answer = call(monkeypatch, capsys, record, slurm)
    assert [(one["name"], one["action"]) for one in answer["changes"]] == [("maint", "removed")]
    assert not record.exists()


@pytest.mark.proves("jobs", "What Slurm refuses because nodes are in use is a note, and tried again later.")
def test_main__while_nodes_are_busy__leaves_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record = tmp_path / "record.json"
    refused = "create: Error creating the reservation: Requested nodes are busy"
    answer = call(monkeypatch, capsys, record, Slurm({}, refused), maint=MAINT)
    assert (answer["changed"], answer["notes"]) == (
        False,
        ["Slurm did not create reservation maint: Requested nodes are busy; bootstrap again later"],
    )
    assert not record.exists()
    record.write_text(json.dumps(left({"maint": MAINT}, ALL)))
    busy = "delete: Requested reservation is in use"
    assert call(monkeypatch, capsys, record, Slurm({"maint": ALL["maint"]}, busy))["changed"] is False
    assert [*json.loads(record.read_text())] == ["maint"]
    answer = call(monkeypatch, capsys, record, Slurm({}, "create: Invalid user id"), maint=MAINT)
    assert answer["failed"] is True


def test_main__of_an_end_that_is_past__reports_what_slurm_still_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    over = MAINT | {"StartTime": "2026-11-29T08:00"}
    slurm = Slurm({"maint": ALL["maint"]})
    answer = call(monkeypatch, capsys, tmp_path / "record.json", slurm, maint=over)
    assert answer["notes"] == [
        "reservation maint has ended in the inventory, but not in Slurm; to end it: scontrol delete reservation=maint"
    ]
    assert slurm.commands == []
