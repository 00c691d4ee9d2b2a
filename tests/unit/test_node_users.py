"""The tools by which a node's users and groups come to what is wanted."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_role_plugins import plugin

MODULE = plugin("modules/node_users")
PASSWD = "root:x:0:0:root:/root:/bin/bash\nada:x:10001:10001::/home/ada:/bin/bash\n"
GROUP = "root:x:0:\nada:x:10001:\ncluster:x:64900:ada,bob\nvision:x:20001:ada\nbroken line\n"
ADA = {
    "name": "ada",
    "uid": 10001,
    "comment": "",
    "groups": ["vision", "cluster"],
    "home": "/home/ada",
    "shell": "/bin/bash",
}


PROCESSES = {
    "1": ("0", "0::/init.scope"),
    "7": ("5001", "0::/user.slice/user-5001.slice/session-3.scope"),
    "8": ("5001", "0::/system.slice/gpu01_slurmstepd.scope/job_9/step_0/user/task_0"),
    "13": ("5001", "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0"),
    "14": ("5001", "0::/user.slice/user-5001.slice/user@5001.service/app.slice/sEKNKTV3WPV500"),
    "9": ("5001", "4:devices:/node1/slurm/uid_5001/job_9/step_batch\n1:name=systemd:/system.slice/slurmd.service"),
    "10": ("5001", "0::/user.slice/user-5001.slice/user@5001.service/app.slice/slurmstepd.scope/job_9"),
    "12": ("100007", "0::/user.slice/user-5001.slice/session-3.scope"),
    "11": ("5002", "0::/user.slice/user-5002.slice/session-4.scope"),
}


@pytest.mark.proves("secrets", "A leaver's processes end, but for jobs; no cgroup's name hides one.")
def test_outside_of_jobs__by_cgroup__are_the_processes_that_end(tmp_path: Path) -> None:
    for pid, (uid, group) in PROCESSES.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "status").write_text(f"Name:\tx\nState:\tS (sleeping)\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (tmp_path / pid / "cgroup").write_text(group + "\n")
    subuid = tmp_path / "subuid"
    subuid.write_text("bob:165536:65536\nada:100000:65536\n")
    numbers = MODULE.numbers_of("ada", 5001, str(subuid))
    assert sorted(MODULE.outside_of_jobs(numbers, str(tmp_path))) == [7, 10, 12, 14]
    (tmp_path / "7/status").write_text("State:\tZ (zombie)\nUid:\t5001\t5001\t5001\t5001\n")
    assert sorted(MODULE.outside_of_jobs(numbers, str(tmp_path))) == [10, 12, 14]


def test_left_behind__of_cron_at_and_systemd__is_found(tmp_path: Path) -> None:
    crontab, linger = (tmp_path / folder / "ada" for folder in ("var/spool/cron/crontabs", "var/lib/systemd/linger"))
    jobs = tmp_path / "var/spool/cron/atjobs"
    for path in (crontab, linger, jobs / "a0000101c8b5f0", crontab.with_name("bob"), jobs / ".SEQ"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    found = MODULE.left_behind("ada", os.getuid(), str(tmp_path))
    assert set(found) == {crontab, linger, jobs / "a0000101c8b5f0"}
    assert set(MODULE.left_behind("ada", os.getuid() + 1, str(tmp_path))) == {crontab, linger}


def users(*accounts: dict[str, Any], others: Sequence[str] = ()) -> list[str]:
    """The commands for these people, in one line each; members of the groups `others` stay."""
    passwd, group = MODULE.entries(PASSWD, 7), MODULE.entries(GROUP, 4)
    steps = MODULE.plan_users(passwd, group, [{"state": "present", **account} for account in accounts], [*others])
    return [" ".join(argv) for _, _, argv in steps]


def test_a_user_who_is_right_needs_no_command() -> None:
    assert users(ADA) == []


@pytest.mark.proves("roles", "A user of docker_users who is in users_accounts stays in Docker's group.")
def test_groups__whose_members_another_role_sets__are_left_to_it() -> None:
    """Else both roles would change the user in each run."""
    assert users(ADA | {"groups": ["cluster"]}, others=["vision"]) == []
    assert users(ADA | {"groups": ["adm"]}, others=["vision", "docker"]) == ["usermod --groups adm,vision -- ada"]


@pytest.mark.parametrize(
    ("other", "command"),
    [
        ({"uid": 10009}, "usermod --uid 10009 -- ada"),
        ({"shell": "/bin/zsh"}, "usermod --shell /bin/zsh -- ada"),
        ({"comment": "Ada L"}, "usermod --comment Ada L -- ada"),
        ({"home": "/srv/ada"}, "usermod --home /srv/ada -- ada"),
        ({"groups": []}, "usermod --groups  -- ada"),
        ({"groups": ["vision", "cluster", "adm"]}, "usermod --groups adm,cluster,vision -- ada"),
        ({"state": "absent"}, "userdel --force -- ada"),
    ],
)
def test_what_differs_is_put_right_and_nothing_else(other: dict[str, Any], command: str) -> None:
    assert users(ADA | other) == [command]


def test_a_new_user_has_every_number_no_password_and_a_home() -> None:
    (command,) = users(ADA | {"name": "eve", "uid": 10002, "home": "/home/eve"})
    assert command == (
        "useradd --create-home --no-user-group --password * --uid 10002 --gid eve --comment  --home-dir /home/eve "
        "--shell /bin/bash --groups cluster,vision -- eve"
    )
    (command,) = users(ADA | {"name": "probe", "uid": 64999, "home": "/nonexistent"})
    assert "--no-create-home" in command


def test_who_left_needs_no_command_once_gone() -> None:
    assert users(ADA | {"name": "eve", "state": "absent"}) == []


def test_a_missing_group_and_a_wrong_number_are_seen() -> None:
    wanted = [{"name": "cluster", "gid": 64900}, {"name": "vision", "gid": 1}, {"name": "new", "gid": 2}]
    steps = MODULE.plan_groups(MODULE.entries(GROUP, 4), wanted)
    assert [argv for _, _, argv in steps] == [
        ["groupmod", "--gid", "1", "--", "vision"],
        ["groupadd", "--gid", "2", "--", "new"],
    ]
    assert [what for _, what, _ in steps] == ["gid 1, was 20001", "created, gid 2"]


GETENT = """#!/bin/sh
case "$*" in
"-s sss passwd -- eve") echo eve:*:7001:7000::/:/bin/sh ;;
"passwd -- 7001") echo eve:*:7001:7000::/:/bin/sh ;;
"-s sss passwd -- thief") echo thief:*:7002:7000::/:/bin/sh ;;
"passwd -- 7002") echo victim:*:7002:7000::/:/bin/sh ;;
*) exit 2 ;;
esac
"""


@pytest.mark.proves("identity", "A leaver with the UID of another user ends nothing of theirs.")
def test_person_of_a_directory__with_the_uid_of_another__has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "getent").write_text(GETENT)
    (tmp_path / "getent").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert MODULE.from_directory("eve") == 7001
    assert MODULE.from_directory("thief") is None
    assert MODULE.from_directory("nobody-else") is None
