"""The commands by which accounting comes to what is wanted."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from tests.unit.test_role_plugins import plugin
from tests.unit.test_slurm_limits import printed

MODULE = plugin("modules/slurm_accounts")
LISTED = {"cluster": "aurora", "state": "present", "accounts": [], "users": [], "qos": [], "deny_on_limit": False}
VISION: dict[str, Any] = {"name": "vision", "description": "Computer vision", "parent": "root", "options": {}}
ADA: dict[str, Any] = {"name": "ada", "accounts": ["vision", "robots"], "admin_level": "None", "options": {}}


def accounting(empty: bool = False) -> Any:
    """Accounting as sacctmgr tells it when VISION and ADA are there."""
    known = MODULE.Accounting("aurora")
    known.options = {"qos normal": {}}
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
        ({"users": [ADA | {"name": "bob", "accounts": ["Vision"]}]},
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
    assert commands(known, deny_on_limit=True) == ["modify qos where name=normal set Flags=DenyOnLimit"]
    assert commands(accounting()) == []
    known = accounting()
    known.options = {"qos normal": {"Flags:denyonlimit": "DenyOnLimit", "Flags:nodecay": "NoDecay"}}
    assert commands(known, deny_on_limit=True) == []
    assert commands(known, state="absent", deny_on_limit=True) == []
    known.options = {}
    assert commands(known, deny_on_limit=True) == [], "the site has deleted the QOS"


SCAVENGER: dict[str, Any] = {"name": "Scavenger", "options": {"UsageFactor": 0}}
URGENT: dict[str, Any] = {"name": "urgent", "options": {"Preempt": ["scavenger"], "flags": "NoDecay"}}


def test_qos__that_name_each_other__are_added_before_their_options() -> None:
    assert commands(accounting(), qos=[URGENT, SCAVENGER], deny_on_limit=True) == [
        "add qos urgent",
        "add qos scavenger",
        "modify qos where name=urgent set Preempt=scavenger Flags=DenyOnLimit,NoDecay",
        "modify qos where name=scavenger set UsageFactor=0.000000 Flags=DenyOnLimit",
        "modify qos where name=normal set Flags=DenyOnLimit",
    ]


def test_options__of_an_account_and_a_user__are_of_this_cluster() -> None:
    account, user = VISION | {"options": {"Fairshare": 40}}, ADA | {"options": {"MaxJobs": 2}}
    assert commands(accounting(), accounts=[account], users=[user]) == [
        "modify account where name=vision cluster=aurora set Fairshare=40",
        "modify user where name=ada account=vision cluster=aurora set MaxJobs=2",
    ]


def test_options__that_the_last_run_declared__are_removed_from_what_is_there() -> None:
    known = accounting()
    known.recorded = {
        "account vision": {"MaxJobs": "3"},
        "qos gone": {"Priority": "5"},
        "account robots": {"MaxJobs": "4"},
    }
    known.options |= {"account vision": {"MaxJobs": "3"}, "account robots": {"MaxJobs": "5"}}
    assert commands(known, accounts=[VISION]) == ["modify account where name=vision cluster=aurora set MaxJobs=-1"]


def test_account__without_a_parent_in_the_list__keeps_its_own() -> None:
    known = accounting()
    known.parents |= {"science": "root", "vision": "science"}
    assert commands(known, accounts=[VISION | {"parent": ""}]) == []
    new = VISION | {"name": "new", "description": "", "parent": ""}
    assert commands(known, accounts=[new]) == ["add account new cluster=aurora parent=root description=new"]


def test_qos__removed_from_root__leaves_the_one_that_all_have() -> None:
    known = accounting()
    known.recorded = {"account root": {"QOS": "normal,urgent"}}
    known.options |= known.recorded
    assert commands(known) == ["modify account where name=root cluster=aurora set QOS=normal"]


def test_default_qos__that_an_account_loses__is_removed_from_users_before() -> None:
    known = accounting()
    mine, of_account = "user ada account=vision", "account vision"
    known.recorded = {of_account: {"QOS": "normal,urgent"}, mine: {"DefaultQOS": "urgent", "MaxJobs": "3"}}
    known.options |= {key: {**options} for key, options in known.recorded.items()}
    assert commands(known, accounts=[VISION], users=[ADA]) == [
        "modify user where name=ada account=vision cluster=aurora set DefaultQOS=-1",
        "modify account where name=vision cluster=aurora set QOS=",
        "modify user where name=ada account=vision cluster=aurora set MaxJobs=-1",
    ]


def test_preemption__that_is_reversed__has_no_loop_in_between() -> None:
    known = accounting()
    known.options |= {"qos a": {"Preempt": "b"}, "qos b": {}}
    listed = [{"name": "b", "options": {"Preempt": "a"}}, {"name": "a", "options": {}}]
    known.recorded = {"qos a": {"Preempt": "b"}}
    assert commands(known, qos=listed) == [
        "modify qos where name=a set Preempt=",
        "modify qos where name=b set Preempt=a",
    ]


def read(monkeypatch: pytest.MonkeyPatch, record: Path, **said: str) -> Any:
    monkeypatch.setattr(MODULE, "sacctmgr", lambda _, what, *rest: said[what])
    known = MODULE.Accounting("aurora")
    known.read(record)
    return known


def test_read__what_sacctmgr_prints__is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    of_account, of_user = ("|".join(printed("set, associations", name)) for name in ("all|", "all|alice"))
    known = read(
        monkeypatch,
        tmp_path / "record",
        cluster="aurora\n",
        account="all|everybody\n",
        user="alice|all|None\n",
        qos="|".join(printed("set", "every")),
        assoc=f"{of_account}\n{of_user}\n{of_user.replace('alice||', 'ada|short|')}\n",
    )
    assert (known.parents, known.associations) == ({"all": "root"}, {("alice", "all")})
    assert known.options["qos every"]["Flags:noreserve"] == "NoReserve"
    assert known.options["account all"]["GrpTRES:mem"] == str(1536 * 1024)
    assert known.options["user alice account=all"] == {"Fairshare": "parent", "MaxJobs": "1"}


@pytest.mark.proves("jobs", "A run that was killed while it set limits leaves a record of them.")
def test_main__that_fails_in_between__has_recorded_what_it_may_have_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record, stored = tmp_path / "record.json", []
    monkeypatch.setattr(MODULE, "store", lambda path, data: stored.append(json.loads(data)))
    record.write_text(json.dumps({"account robots": {"MaxJobs": "4"}, "account vision": {"MaxWall": "9"}}))
    said = {"cluster": "aurora\n", "account": "", "user": "", "qos": "", "assoc": ""}

    def sacctmgr(verb: str, what: str, *rest: str) -> str:
        if verb == "modify":
            raise MODULE.SacctmgrError("slurmdbd is gone")
        return said[what] if verb == "show" else ""

    monkeypatch.setattr(MODULE, "sacctmgr", sacctmgr)
    given = {"cluster": "aurora", "accounts": [VISION | {"options": {"MaxJobs": 3}}], "record": str(record)}
    with patch_module_args(given), pytest.raises(SystemExit):
        MODULE.main()
    assert stored == [{"account robots": {"MaxJobs": "4"}, "account vision": {"MaxJobs": "3", "MaxWall": "9"}}]


def test_changes__of_a_new_object_with_options__are_one() -> None:
    commands = [
        ["add", "account", "vision", "cluster=aurora", "parent=root"],
        ["modify", "account", "where", "name=vision", "cluster=aurora", "set", "Fairshare=40", "MaxJobs=3"],
        ["modify", "user", "where", "name=ada", "account=vision", "cluster=aurora", "set", "MaxJobs=2"],
    ]
    found = [(one["kind"], one["name"], one["action"], one["what"]) for one in MODULE.changes_of(commands)]
    assert found == [
        ("Slurm account", "vision", "created", "Fairshare=40, MaxJobs=3"),
        ("Slurm user", "ada in vision", "changed", "MaxJobs=2"),
    ]


@pytest.mark.proves("jobs", "For an absent user with running jobs the note says when to bootstrap again.")
def test_absent__jobs_run__each_note_says_what_to_do_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = {"users": [{"name": "ada", "accounts": []}, ADA | {"accounts": ["robots"]}], "accounts": [VISION]}
    said = {"cluster": "aurora\n", "account": "vision|x\n", "user": "ada|vision|None\n", "qos": "normal|\n"}
    said["assoc"] = "root|||\nvision|||root\nrobots|ada||\n"

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
