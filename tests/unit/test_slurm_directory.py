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
