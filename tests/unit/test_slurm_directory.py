"""Which of Slurm's associations follow a directory: what slurm-directory adds and ends, and what it refuses to end."""

import json
import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clusterctl.util import paths
from tests.unit.test_role_plugins import plugin

ACCOUNTS = [("vision", "v"), ("robots", "r")]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(paths.content() / "roles/sssd/files"))
    return plugin("../roles/sssd/files/slurm_directory")


def record(**groups: str) -> dict[str, dict[str, Any]]:
    """Return recorded people by name, each with the group of their association."""
    return {
        name: {"group": group, "account": dict(ACCOUNTS).get(group, ""), "uid": 1} for name, group in groups.items()
    }


@pytest.mark.proves("identity", "The first group of the inventory that lists a person decides their account.")
def test_wanted__person_in_two_groups__gets_the_account_of_the_first(program: ModuleType) -> None:
    members = {"vision": ["ada", "bob"], "robots": ["ada", "eve", "mallory"]}
    admitted = {"ada": True, "bob": None, "eve": True, "mallory": False}
    wanted = {"ada": ("vision", "v"), "eve": ("robots", "r")}
    assert program.wanted_accounts(ACCOUNTS, members, admitted) == wanted
    assert program.wanted_accounts(ACCOUNTS[::-1], members, admitted)["ada"] == ("robots", "r")
    assert program.wanted_accounts(ACCOUNTS, {"vision": None, "robots": None}, {}) == {}


@pytest.mark.parametrize(
    ("members", "admitted", "departed", "ended"),
    [
        ({"vision": ["ada"], "robots": []}, {"ada": True}, [], ([], [])),
        ({"vision": ["ada"], "robots": []}, {"ada": True}, ["ada"], (["ada"], [])),
        ({"vision": [], "robots": []}, {"ada": True}, [], ([], ["ada"])),
        ({"vision": ["ada"], "robots": []}, {"ada": False}, [], ([], ["ada"])),
        ({"vision": [], "robots": ["ada"]}, {"ada": True}, [], ([], [])),
        ({"vision": None, "robots": []}, {"ada": False}, [], ([], [])),
        ({"vision": [], "robots": []}, {"ada": None}, [], ([], [])),
    ],
    ids=["stays", "refused here", "left the group", "locked", "other group", "group unknown", "person unknown"],
)
def test_departures__of_a_recorded_person__are_those_that_are_certain(
    program: ModuleType, members: Any, admitted: Any, departed: list[str], ended: Any
) -> None:
    assert program.departures(record(ada="vision"), ACCOUNTS, members, admitted, departed) == ended


def test_departures__of_a_group_that_the_inventory_no_longer_has__are_refused_here(program: ModuleType) -> None:
    known = record(ada="former", bob="former")
    members = {"vision": ["bob"], "robots": []}
    assert program.departures(known, ACCOUNTS, members, {"ada": True, "bob": True}, []) == (["ada"], [])


@pytest.mark.proves("identity", "If many people seem to have left the directory at once, nobody loses anything.")
@pytest.mark.parametrize(
    ("left", "known", "remain", "before", "unlikely"),
    [
        (0, 0, 0, 0, False),
        (1, 1, 0, 0, True),
        (1, 2, 1, 0, False),
        (2, 3, 1, 0, False),
        (3, 4, 1, 0, True),
        (5, 20, 15, 0, False),
        (6, 20, 14, 0, True),
        (3, 15, 12, 5, True),  # a fourth part of those who remained an hour ago
        (0, 15, 15, 5, False),
        (1, 17, 16, 3, False),
    ],
)
def test_unlikely__many_or_all__is_a_fault(
    program: ModuleType, left: int, known: int, remain: int, before: int, unlikely: bool
) -> None:
    names = [f"p{number}" for number in range(known)]
    wanted = dict.fromkeys(names[:remain], ("vision", "v"))
    assert program.is_unlikely(names[:left], record(**dict.fromkeys(names, "vision")), wanted, before) is unlikely


@pytest.mark.proves("identity", "People of a directory with an ID of others are refused.")
def test_collisions__name_uid_or_gid_of_others__are_refused(program: ModuleType) -> None:
    local, groups = {"ada": 5001, "bob": 5002}, {20001: "vision"}
    known = {"victim": {"uid": 7005}}
    entries = [
        ("ada", 7001, 7000),
        ("eve", 5002, 7000),
        ("carol", 7003, 20001),
        ("dora", 7004, 7000),
        ("victim", 7005, 7000),
        ("thief", 7005, 7000),
        ("ada", 7001, 7000),
    ]
    assert program.collisions(local, groups, entries, known) == {
        "ada": (None, "ada is a local account and a person of the directory (UID 7001)"),
        "eve": (False, "UID 5002 is that of the local account bob and of eve"),
        "carol": (False, "GID 20001 is that of the local group vision and of carol"),
        "victim": (None, "UID 7005 is that of victim and of thief in the directory"),
        "thief": (False, "UID 7005 is that of thief and of victim in the directory"),
    }


class Node:
    """A simulated head: what its commands print, and those that the program has run."""

    def __init__(self) -> None:
        self.people: dict[str, tuple[int, int]] = {}
        self.groups: dict[str, str] = {}
        self.jobs = ""
        self.refused: set[str] = set()
        self.run: list[tuple[str, ...]] = []

    def output(self, *argv: str) -> tuple[int, str]:
        if argv[:4] == ("getent", "-s", "sss", "group"):
            return 0, self.groups[argv[5]]
        if argv[0] == "getent":
            rows = [(name, *ids) for name, ids in self.people.items() if {name, str(ids[0])} & {*argv[5:]}]
            return 0, "".join(f"{name}:*:{uid}:{gid}::/:/bin/sh\n" for name, uid, gid in rows)
        if argv[0] == "sssctl":
            return 0, "Online status: Online\n"
        if argv[0] == "squeue":
            return 0, self.jobs
        if argv[0] == "sacctmgr" and "show" in argv:
            return 0, "|v\n|r\n" + "".join(f"{name}|v\n" for name in ("eve", "victim"))
        self.run.append(tuple(word for word in argv if not word.startswith("--")))
        self.jobs = "" if argv[0] == "scancel" else self.jobs
        return 0, ""

    def admissions(self, names: list[str]) -> dict[str, bool]:
        return {name: name not in self.refused for name in names}


@pytest.fixture
def node(program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Node:
    node = Node()
    node.groups = {"vision": "vision:*:7101:eve,victim\n", "robots": "robots:*:7102:\n"}
    node.people = {"eve": (7001, 7000), "victim": (7002, 7000)}
    monkeypatch.setattr(program, "output", node.output)
    monkeypatch.setattr(program, "admissions", node.admissions)
    monkeypatch.setattr(program, "RECORD", str(tmp_path / "record"))
    monkeypatch.setattr(program, "OWN", str(tmp_path / "record"))
    return node


def followed(program: ModuleType, people: dict[str, dict[str, Any]], departed: list[str] = []) -> Any:  # noqa: B006
    """Follow the simulated directory once, with these recorded people."""
    Path(program.RECORD).write_text(json.dumps({"people": people}))
    accounts = [{"key": group, "value": account} for group, account in ACCOUNTS]
    settings = {"cluster": "c", "accounts": accounts, "departed": departed, "local": {"ada": 5001}}
    follower = program.Follower(settings, False)
    follower.follow()
    return follower


EVE = {"group": "vision", "account": "v", "uid": 7001}
VICTIM = {"group": "vision", "account": "v", "uid": 7002}


@pytest.mark.proves("identity", "Of a leaver, only jobs with their name and UID are cancelled.")
def test_leaver__with_the_uid_of_another__ends_no_job_of_theirs(program: ModuleType, node: Node) -> None:
    node.jobs = "11 7001 eve\n12 7002 victim\n13 7002 eve\n"
    follower = followed(program, {"eve": dict(EVE), "victim": dict(VICTIM)}, ["eve"])
    closed, cancelled = node.run[:2]
    assert " ".join(closed) == "sacctmgr modify user where name=eve account=v cluster=c set maxsubmitjobs=0"
    assert cancelled == ("scancel", "11")
    assert follower.known == {"victim": VICTIM}
    node.people["eve"] = (7002, 7000)
    node.jobs = "12 7002 victim\n"
    node.run.clear()
    followed(program, {"eve": dict(EVE), "victim": dict(VICTIM)}, ["eve"])
    assert "scancel" not in {argv[0] for argv in node.run}


@pytest.mark.proves("identity", "Without slurmdbd the jobs of a leaver are cancelled; the association ends later.")
def test_leaver__without_accounting__loses_the_jobs(
    program: ModuleType, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = node.output
    monkeypatch.setattr(program, "output", lambda *argv: (1, "down") if argv[0] == "sacctmgr" else answer(*argv))
    node.jobs = "11 7001 eve\n12 7002 victim\n"
    with pytest.raises(program.FollowError, match="down"):
        followed(program, {"eve": EVE, "victim": VICTIM}, ["eve"])
    assert node.run == [("scancel", "11")]
    assert recorded(program.RECORD)["people"] == {"eve": EVE, "victim": VICTIM}


def test_leaver__who_returns_before_the_end__can_submit_again(program: ModuleType, node: Node) -> None:
    follower = followed(program, {"eve": {**EVE, "closed": True}, "victim": VICTIM})
    assert [argv[-1] for argv in node.run] == ["maxsubmitjobs=-1"]
    assert follower.known["eve"] == EVE


@pytest.mark.proves("identity", "A person with another UID than at first is reported; the record keeps the first.")
def test_person__with_another_uid_than_at_first__is_reported(program: ModuleType, node: Node) -> None:
    node.people["eve"] = (7009, 7000)
    follower = followed(program, {"eve": EVE, "victim": VICTIM})
    (said,) = follower.problems
    assert said.startswith("eve: UID 7009 in the directory, but 7001 when the association was made")
    assert follower.known["eve"] == EVE


@pytest.mark.proves("identity", "In a group that cannot be read, those whom the directory refuses still leave.")
def test_group__that_is_not_readable__ends_those_who_are_refused(program: ModuleType, node: Node) -> None:
    node.groups["vision"] = ""
    node.refused = {"eve"}
    follower = followed(program, {"eve": dict(EVE), "victim": VICTIM})
    assert follower.known == {"victim": VICTIM}
    assert follower.problems == ["the directory's group vision is not readable, perhaps because of a member's name"]
    assert len(follower.ended) == 1


def test_departed__before_the_directory_answers__have_left(
    program: ModuleType, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "admissions", lambda _: pytest.fail("eve had to leave before", pytrace=False))
    with pytest.raises(pytest.fail.Exception):
        followed(program, {"eve": dict(EVE), "victim": VICTIM}, ["eve"])
    assert json.loads(Path(program.RECORD).read_text())["people"] == {"victim": VICTIM}


def test_admissions__that_do_not_answer_in_time__are_unknown(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    child = tmp_path / "child"
    child.write_text("#!/bin/sh\necho ada yes; echo bob no\nexec sleep 600\n")
    child.chmod(0o755)
    monkeypatch.setattr(program, "ADMISSIONS", str(child))
    monkeypatch.setattr(program, "SECONDS", 1)
    assert program.admissions(["ada", "bob", "eve"]) == {"ada": True, "bob": False, "eve": None}


def test_change__after_the_limit__leaves_the_rest_to_the_next_run(
    program: ModuleType, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "LIMIT", -1)
    follower = followed(program, {"eve": EVE, "victim": VICTIM}, ["eve"])
    assert follower.problems == ["more than -1 s have passed: the next run continues"]
    assert node.run == []


def test_names__that_sacctmgr_could_take_for_options__are_left_out(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = program.Follower.__new__(program.Follower)
    follower.problems = []
    monkeypatch.setattr(program, "members_of", lambda _: ["ada", "-x", "a=b", "Eve", "x" * 33, "a b", "é\n"])
    assert follower.members("vision") == ["ada"]
    (said,) = follower.problems
    assert said.startswith("vision: cannot be users of Slurm: '-x', 'a=b', 'Eve'")
    assert "\n" not in said


@pytest.fixture
def pair(program: ModuleType, node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bool]:
    """Make the simulated head one of two, and return whether it is in control."""
    control = {"head1": True}
    output, shared = node.output, tmp_path / "shared"
    shared.mkdir()
    settings = tmp_path / "settings"
    accounts = [{"key": group, "value": account} for group, account in ACCOUNTS]
    settings.write_text(
        json.dumps({"cluster": "c", "head": "head1", "accounts": accounts, "departed": [], "local": {"ada": 5001}})
    )

    def answer(*argv: str) -> tuple[int, str]:
        return (0 if control[argv[1]] else 1, "") if argv[0] == program.IN_CONTROL else output(*argv)

    monkeypatch.setattr(program, "output", answer)
    for name, path in (
        ("SETTINGS", settings),
        ("SHARED", shared),
        ("LOCK", shared / "lock"),
        ("OWN", tmp_path / "own"),
    ):
        monkeypatch.setattr(program, name, str(path))
    monkeypatch.setattr(program, "RECORD", str(shared / "record"))
    return control


def recorded(path: str) -> Any:
    return json.loads(Path(path).read_text())


@pytest.mark.proves("identity", "Of two heads, only the one in control changes associations, with one record.")
def test_head__that_is_not_in_control__changes_nothing(program: ModuleType, node: Node, pair: dict[str, bool]) -> None:
    node.refused = {"eve"}
    program.save(program.RECORD, {"people": {"eve": EVE, "victim": VICTIM}})
    pair["head1"] = False
    assert (program.main([]), program.main(["--accept-departures"])) == (0, 1)
    assert node.run == []
    assert recorded(program.OWN)["people"] == {"eve": EVE, "victim": VICTIM}
    pair["head1"] = True
    assert program.main([]) == 0
    assert "scancel" not in {argv[0] for argv in node.run}
    assert {argv[1] for argv in node.run} == {"modify", "delete"}
    assert recorded(program.RECORD)["people"] == recorded(program.OWN)["people"] == {"victim": VICTIM}


@pytest.mark.proves("identity", "From one head to two and back, the record of associations is kept.")
@pytest.mark.parametrize("in_control", [True, False])
def test_record__of_a_head_that_becomes_one_of_two__is_kept(
    program: ModuleType, node: Node, pair: dict[str, bool], monkeypatch: pytest.MonkeyPatch, in_control: bool
) -> None:
    pair["head1"] = in_control
    people = {"eve": EVE, "victim": VICTIM}
    program.save(program.OWN, {"people": {"eve": EVE}, "ended": []})
    program.save(program.RECORD, {"people": {"victim": VICTIM}, "ended": []})
    program.main([])
    assert recorded(program.RECORD)["people"] == people
    program.save(program.RECORD, {"people": {"victim": VICTIM}, "ended": []})  # the other head: eve has left
    program.main([])
    assert recorded(program.OWN)["people"] == {"victim": VICTIM}
    monkeypatch.setattr(program, "RECORD", program.RECORD + ".elsewhere")
    assert program.load()[0]["people"] == {"victim": VICTIM}
    monkeypatch.setattr(program, "RECORD", program.OWN)
    assert program.load()[0]["people"] == {"victim": VICTIM}
    assert "shared" not in program.load()[0]


@pytest.mark.proves("identity", "A lost or older shared record does not undo what a head has recorded.")
@pytest.mark.parametrize("copy", [{"shared": True}, {}])
def test_record__that_is_lost_or_older__is_that_of_the_head(
    program: ModuleType, node: Node, pair: dict[str, bool], copy: dict[str, bool]
) -> None:
    """The older one was left when the cluster had one head for a while; without `shared`, the head was alone."""
    pair["head1"] = False
    if not copy:
        program.save(program.RECORD, {"people": {"eve": EVE}, "ended": []})
        os.utime(program.RECORD, (1, 1))
    program.save(program.OWN, {"people": {"victim": VICTIM}, "ended": [], **dict.fromkeys(copy, program.RECORD)})
    program.main([])
    assert recorded(program.RECORD)["people"] == recorded(program.OWN)["people"] == {"victim": VICTIM}


def test_record__of_the_head_in_control__is_not_written_by_the_other(
    program: ModuleType, node: Node, pair: dict[str, bool]
) -> None:
    """It would undo a change that the other one makes at the same time."""
    pair["head1"] = False
    program.save(program.RECORD, {"people": {"victim": VICTIM}, "ended": []})
    program.main([])
    before = os.stat(program.RECORD).st_ino
    program.main([])
    assert os.stat(program.RECORD).st_ino == before
    assert recorded(program.OWN)["people"] == {"victim": VICTIM}


def test_head__without_the_shared_directory__does_nothing(
    program: ModuleType, node: Node, pair: dict[str, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    Path(program.SHARED).rmdir()
    assert program.main([]) == 0
    assert "mount the directory that the heads share" in capsys.readouterr().err
    assert node.run == []


class Slurm:
    """A simulated sacctmgr: associations by user and account, the changes that were asked for, and whom it refuses."""

    def __init__(self, *present: tuple[str, str]) -> None:
        self.present = {("", "v"), ("", "r"), *present}
        self.changes: list[str] = []
        self.refused: set[str] = set()

    def __call__(self, *argv: str) -> tuple[int, str]:
        words = argv[4:]
        given = dict(word.split("=", 1) for word in words if "=" in word)
        if words[:2] == ("show", "assoc"):
            rows = sorted(self.present) if "user" not in given else []
            return 0, "\n".join(map("|".join, rows)) if rows else "c"
        if words[0] == "show":
            return 0, "v"
        self.changes.append(" ".join(words))
        if words[0] == "add":
            names = given["name"].split(",")
            if self.refused & set(names):
                return 1, "refused"
            self.present |= {(name, given["account"]) for name in names}
        return 0, ""


class Run:
    """A follower of a simulated Slurm, with the number of times that it wrote its record."""

    def __init__(self, program: ModuleType, slurm: Slurm, known: Any) -> None:
        self.follower = program.Follower.__new__(program.Follower)
        self.follower.settings = {"cluster": "c"}
        self.follower.known, self.follower.problems, self.writes = known, [], 0
        self.follower.accept, self.follower.ended, self.follower.deadline = False, [], time.monotonic() + 300
        self.follower.write = self.write
        program.output = slurm  # type: ignore[attr-defined]

    def write(self) -> None:
        self.writes += 1

    def change(self, wanted: dict[str, tuple[str, str]]) -> None:
        self.follower.change(wanted, dict.fromkeys(wanted, 1), [])


@pytest.mark.proves("identity", "If nobody joins or leaves, nothing is written and Slurm is not changed.")
def test_change__of_nothing__writes_nothing(program: ModuleType) -> None:
    wanted = {f"p{number:04}": ("vision", "v") for number in range(450)}
    slurm = Slurm()
    run = Run(program, slurm, {})
    run.change(wanted)
    assert run.follower.known == record(**dict.fromkeys(wanted, "vision"))
    slurm.changes.clear()
    run.writes = 0
    run.change(wanted)
    assert (slurm.changes, run.writes) == ([], 0)


def test_change__with_one_whom_slurm_refuses__adds_the_others(program: ModuleType) -> None:
    slurm = Slurm()
    slurm.refused = {"p3"}
    run = Run(program, slurm, {})
    run.change({f"p{number}": ("vision", "v") for number in range(7)})
    assert sorted(run.follower.known) == ["p0", "p1", "p2", "p4", "p5", "p6"]
    (said,) = run.follower.problems
    assert "name=p3 " in said


@pytest.mark.proves("identity", "A default account that was set by hand stays.")
def test_change__of_a_person_with_another_association__keeps_the_default(program: ModuleType) -> None:
    slurm = Slurm(("ada", "r"))
    run = Run(program, slurm, {})
    run.change({"ada": ("vision", "v"), "bob": ("vision", "v")})
    assert slurm.changes == [
        "add user name=ada account=v cluster=c",
        "add user name=bob account=v cluster=c",
        "modify user where name=bob cluster=c set defaultaccount=v",
    ]


def test_change__of_an_association_by_hand__is_not_recorded(program: ModuleType) -> None:
    run = Run(program, Slurm(("ada", "v")), {})
    run.change({"ada": ("vision", "v")})
    assert (run.follower.known, run.writes) == ({}, 0)


def test_change__of_a_person_in_another_group__moves_the_default(program: ModuleType) -> None:
    slurm = Slurm(("ada", "v"), ("ada", "by-hand"))
    run = Run(program, slurm, record(ada="vision"))
    run.change({"ada": ("robots", "r")})
    assert slurm.changes == [
        "add user name=ada account=r cluster=c",
        "modify user where name=ada cluster=c set defaultaccount=r",
        "delete user where name=ada account=v cluster=c",
    ]
    assert run.follower.known == record(ada="robots")


def test_change__of_the_group_alone__changes_the_record(program: ModuleType) -> None:
    slurm = Slurm(("ada", "v"))
    run = Run(program, slurm, record(ada="vision"))
    run.change({"ada": ("artists", "v")})
    assert (slurm.changes, run.follower.known["ada"]["group"]) == ([], "artists")


@pytest.mark.proves("identity", "A group whose members the directory hides loses no association.")
@pytest.mark.parametrize(
    ("recorded", "left", "moved", "unlikely"),
    [(1, 1, 0, False), (2, 2, 0, False), (3, 3, 0, True), (3, 2, 1, True), (20, 5, 0, False), (20, 6, 0, True)],
)
def test_unlikely__of_one_group__keeps_its_people_alone(
    program: ModuleType, recorded: int, left: int, moved: int, unlikely: bool
) -> None:
    names = [f"p{number}" for number in range(recorded)]
    others = [f"q{number}" for number in range(90)]
    known = record(**dict.fromkeys(names, "robots"), **dict.fromkeys(others, "vision"))
    wanted = dict.fromkeys([*others[1:], *names[left : left + moved]], ("vision", "v"))
    wanted |= dict.fromkeys(names[left + moved :], ("robots", "r"))
    gone = [*names[:left], others[0]]
    assert not program.is_unlikely(gone, known, wanted, 0)
    assert program.unlikely_groups(gone, known, wanted) == ({"robots": names[:left]} if unlikely else {})


@pytest.mark.parametrize(("accept", "ended"), [(False, ["ada"]), (True, ["ada", "p0", "p1", "p2", "p3"])])
def test_follow__without_the_members_of_a_group__ends_what_is_likely(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, accept: bool, ended: list[str]
) -> None:
    robots, vision = [f"p{number}" for number in range(4)], ["ada", *(f"q{number}" for number in range(90))]
    follower = Run(
        program, Slurm(), record(**dict.fromkeys(robots, "robots"), **dict.fromkeys(vision, "vision"))
    ).follower
    follower.accounts, follower.accept = ACCOUNTS, accept
    follower.settings |= {"local": {}, "departed": []}
    monkeypatch.setattr(program, "members_of", lambda group: {"vision": vision[1:], "robots": []}[group])
    monkeypatch.setattr(program, "people", lambda names: [(name, 1, 1) for name in names])
    monkeypatch.setattr(program, "admissions", lambda names: dict.fromkeys(names, True))
    monkeypatch.setattr(program, "output", lambda *_: (0, "Online status: Online"))
    monkeypatch.setattr(follower, "compare", lambda *_: None)
    leaving: list[str] = []
    follower.change = lambda _wanted, _found, names, _counted=(): leaving.extend(names)
    follower.follow()
    assert leaving == ended
    assert [problem for problem in follower.problems if "4 people seem to have left the group robots" in problem] == (
        [] if accept else follower.problems
    )
