"""The commands by which accounting comes to what is wanted."""

import json
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from tests.unit.test_role_plugins import plugin

MODULE = plugin("modules/slurm_accounts")
LISTED = {"cluster": "aurora", "state": "present", "accounts": [], "users": [], "deny_on_limit": False}
VISION = {"name": "vision", "description": "Computer vision", "parent": "root"}
ADA = {"name": "ada", "accounts": ["vision", "robots"], "admin_level": "None"}


def accounting(empty: bool = False) -> Any:
    """Accounting as sacctmgr tells it when VISION and ADA are there."""
    known = MODULE.Accounting("aurora")
    known.qos_flags = set()
    if not empty:
        known.known = True
        known.accounts = {"root": "default root account", "vision": "computer vision", "robots": "robots"}
        known.parents = {"root": "", "vision": "root", "robots": "root"}
        known.users = {"root": ("root", "Administrator"), "ada": ("vision", "None")}
        known.associations = {("root", "root"), ("ada", "vision"), ("ada", "robots")}
    return known


def commands(known: Any, **other: Any) -> list[str]:
    MODULE.plan(known, LISTED | other)
    return [" ".join(command) for command in known.commands]


def test_what_is_right_needs_no_command() -> None:
    assert commands(accounting(), accounts=[VISION], users=[ADA]) == []


def test_what_is_not_listed_stays() -> None:
    assert commands(accounting()) == []
    assert commands(accounting(), users=[ADA | {"accounts": ["vision"]}]) == []


def test_everything_is_added_to_an_empty_accounting() -> None:
    one = ADA | {"accounts": ["vision"], "admin_level": "Operator"}
    assert commands(accounting(empty=True), accounts=[VISION], users=[one]) == [
        "add cluster aurora",
        "add account vision cluster=aurora parent=root description=computer vision",
        "add user ada cluster=aurora account=vision defaultaccount=vision adminlevel=Operator",
    ]


@pytest.mark.parametrize(
    ("other", "command"),
    [
        ({"accounts": [VISION | {"parent": "robots"}]},
         "modify account vision where cluster=aurora set parent=robots"),
        ({"accounts": [VISION | {"description": "Seeing"}]}, "modify account vision set description=seeing"),
        ({"users": [ADA | {"admin_level": "Operator"}]}, "modify user ada set adminlevel=Operator"),
        ({"users": [ADA | {"accounts": ["robots"]}]}, "modify user ada set defaultaccount=robots"),
        ({"users": [{"name": "bob", "accounts": ["Vision"], "admin_level": "None"}]},
         "add user bob cluster=aurora account=vision defaultaccount=vision adminlevel=None"),
    ],
)  # fmt: skip
def test_a_difference_needs_one_command(other: dict[str, Any], command: str) -> None:
    assert commands(accounting(), **other) == [command]


def test_a_new_default_account_is_added_before_it_becomes_the_default() -> None:
    known = accounting()
    known.parents["art"] = "root"
    assert commands(known, users=[ADA | {"accounts": ["art", "vision"]}]) == [
        "add user ada cluster=aurora account=art",
        "modify user ada set defaultaccount=art",
    ]


@pytest.mark.proves("jobs", "The default QOS refuses a job over a limit at submission; a variable disables that.")
def test_deny_on_limit__by_the_flags_of_the_qos__is_set_once() -> None:
    known = accounting()
    assert commands(known, deny_on_limit=True) == ["modify qos normal set flags+=DenyOnLimit"]
    assert commands(accounting()) == []
    known = accounting()
    known.qos_flags = {"denyonlimit", "nodecay"}
    assert commands(known, deny_on_limit=True) == []
    assert commands(known, state="absent", deny_on_limit=True) == []
    known.qos_flags = None
    assert commands(known, deny_on_limit=True) == [], "the site has deleted the QOS"


def test_read__what_sacctmgr_prints__is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "cluster": "aurora\n",
        "account": "root|top\n",
        "user": "ada|root|None\n",
        "qos": "normal|DenyOnLimit,NoDecay\n",
    }
    said["assoc"] = "root||\nroot|ada|\n"
    monkeypatch.setattr(MODULE, "sacctmgr", lambda _, what, *rest: said[what])
    known = MODULE.Accounting("aurora")
    known.read()
    assert known.qos_flags == {"denyonlimit", "nodecay"}
    assert known.associations == {("ada", "root")}


@pytest.mark.proves("jobs", "For an absent user with running jobs the note says when to bootstrap again.")
def test_absent__jobs_run__each_note_says_what_to_do_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = {"users": [{"name": "ada", "accounts": []}, ADA | {"accounts": ["robots"]}], "accounts": [VISION]}
    said = {"cluster": "aurora\n", "account": "vision|x\n", "user": "ada|vision|None\n", "qos": "normal|\n"}
    said["assoc"] = "root||\nvision||root\nrobots|ada|\n"

    def sacctmgr(verb: str, what: str, *rest: str) -> str:
        if verb == "delete":
            raise MODULE.SacctmgrError(
                "sacctmgr delete: Error with request: Job(s) active, cancel job(s) before remove"
            )
        return said[what]

    monkeypatch.setattr(MODULE, "sacctmgr", sacctmgr)
    given = {"cluster": "aurora", "state": "absent", **listed}
    with patch_module_args(given), pytest.raises(SystemExit):
        MODULE.main()
    answer = json.loads(capsys.readouterr().out)
    assert (answer["changed"], answer["commands"]) == (False, [])
    assert answer["notes"] == [
        "ada stays in Slurm until the running jobs have ended, and waiting ones do not start; then bootstrap again",
        "ada stays in Slurm's account robots until the jobs there have ended; then bootstrap again",
        "account vision stays in Slurm until its jobs have ended; then bootstrap again",
    ]


def test_absent_takes_away_what_is_listed_and_there() -> None:
    assert commands(accounting(), state="absent", users=[ADA | {"accounts": ["robots", "art"]}]) == [
        "delete user where name=ada cluster=aurora account=robots"
    ]
    assert commands(accounting(), state="absent", users=[ADA | {"accounts": []}], accounts=[VISION]) == [
        "delete user name=ada",
        "delete account where name=vision cluster=aurora",
    ]
    assert commands(accounting(empty=True), state="absent", users=[ADA], accounts=[VISION]) == []
