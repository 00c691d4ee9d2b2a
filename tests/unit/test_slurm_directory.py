"""Which of Slurm's associations follow a directory: what slurm-directory adds and ends, and what it refuses to end."""

from types import ModuleType
from typing import Any

import pytest

from tests.unit.test_role_plugins import plugin

ACCOUNTS = [("vision", "v"), ("robots", "r")]


@pytest.fixture
def program() -> ModuleType:
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
    ("left", "known", "remain", "unlikely"),
    [
        (0, 0, 0, False),
        (1, 1, 0, True),
        (1, 2, 1, False),
        (2, 3, 1, False),
        (3, 4, 1, True),
        (5, 20, 15, False),
        (6, 20, 14, True),
    ],
)
def test_unlikely__many_or_all__is_a_fault(
    program: ModuleType, left: int, known: int, remain: int, unlikely: bool
) -> None:
    names = [f"p{number}" for number in range(known)]
    wanted = dict.fromkeys(names[:remain], ("vision", "v"))
    assert program.is_unlikely(names[:left], record(**dict.fromkeys(names, "vision")), wanted) is unlikely


def test_collisions__same_name_or_uid__are_named(program: ModuleType) -> None:
    local = {"ada": 5001, "bob": 5002}
    entries = [("ada", 7001), ("eve", 5002), ("carol", 7003), ("ada", 7001)]
    assert program.collisions(local, entries) == [
        "UID 5002 is that of bob in the inventory and of eve in the directory",
        "ada is an account of the inventory and a person of the directory (UID 7001)",
    ]


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
        self.follower.write = self.write
        program.output = slurm  # type: ignore[attr-defined]

    def write(self) -> None:
        self.writes += 1

    def change(self, wanted: dict[str, tuple[str, str]]) -> None:
        self.follower.change(wanted, dict.fromkeys(wanted, 1), [])


@pytest.mark.proves("identity", "Slurm gets many new people at once, and nothing is written without a change.")
def test_change__of_many_people__is_few_commands_and_writes(program: ModuleType) -> None:
    wanted = {f"p{number:04}": ("vision", "v") for number in range(450)}
    slurm = Slurm()
    run = Run(program, slurm, {})
    run.change(wanted)
    assert [change.split()[0] for change in slurm.changes] == ["add", "modify"] * 3
    assert run.writes <= 6
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
        "add user name=ada,bob account=v cluster=c",
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
    assert not program.is_unlikely(gone, known, wanted)
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
    monkeypatch.setattr(program, "people", lambda names: [(name, 1) for name in names])
    monkeypatch.setattr(program, "is_online", lambda: True)
    monkeypatch.setattr(program.Pam, "__init__", lambda _: None)
    monkeypatch.setattr(program.Pam, "admits", lambda *_: True)
    leaving: list[str] = []
    follower.change = lambda _wanted, _found, names: leaving.extend(names)
    follower.follow()
    assert leaving == ended
    assert [problem for problem in follower.problems if "4 people seem to have left the group robots" in problem] == (
        [] if accept else follower.problems
    )
