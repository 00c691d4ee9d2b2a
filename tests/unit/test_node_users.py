"""The tools by which a node's users and groups come to what is wanted."""

from typing import Any

import pytest

from tests.unit.test_role_plugins import plugin

MODULE = plugin("library/node_users")
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


def users(*accounts: dict[str, Any]) -> list[str]:
    """The commands for these people, in one line each."""
    passwd, group = MODULE.entries(PASSWD, 7), MODULE.entries(GROUP, 4)
    steps = MODULE.plan_users(passwd, group, [{"state": "present", **account} for account in accounts])
    return [" ".join(argv) for _, _, argv in steps]


def test_a_user_who_is_right_needs_no_command() -> None:
    assert users(ADA) == []


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
