"""Which users and groups of a node differ from the inventory's: a hundred right ones then cost no task at all.

The node's own are read as the text of /etc/passwd and /etc/group, one after the other; a line of the first has seven
fields, one of the second four.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

Account = Mapping[str, Any]


def _entries(text: str, fields: int) -> dict[str, list[str]]:
    """Return the lines of one of the two files by their name, each without it."""
    lines = [line.split(":") for line in text.splitlines()]
    return {line[0]: line[1:] for line in lines if len(line) == fields}


def complete(accounts: Sequence[Account], homes: str, shell: str, group: str) -> list[dict[str, Any]]:
    """Return the accounts with every key that they left out.

    Raises:
        AnsibleFilterError: two accounts share a name or a number.
    """
    for key in ("name", "uid"):
        doubled = [str(value) for value, count in Counter(account[key] for account in accounts).items() if count > 1]
        if doubled:
            raise AnsibleFilterError(f"users_accounts: two accounts have the {key} {', '.join(doubled)}")
    return [
        {
            "name": account["name"],
            "uid": account["uid"],
            "comment": account.get("comment", ""),
            "groups": sorted({group, *account.get("groups", ())}),
            "ssh_keys": list(account.get("ssh_keys", ())),
            "admin": account.get("admin", False),
            "shell": account.get("shell", shell),
            "home": f"{homes}/{account['name']}",
            "slurm_account": account.get("slurm_account"),
            "state": account.get("state", "present"),
        }
        for account in accounts
    ]


def groups_to_change(node: str, groups: Sequence[Account], accounts: Sequence[Account]) -> list[dict[str, Any]]:
    """Return name and gid of the shared groups and the users' own that the node has not, or with another number.

    (useradd would make a user's own group, but gives it another number where uid is above login.defs' GID_MAX.)
    """
    known = _entries(node, 4)
    wanted = {group["name"]: group["gid"] for group in groups}
    wanted |= {account["name"]: account["uid"] for account in accounts}
    return [
        {"name": name, "gid": gid} for name, gid in wanted.items() if name not in known or known[name][1] != str(gid)
    ]


def users_to_change(node: str, accounts: Sequence[Account], check: bool = False) -> list[dict[str, Any]]:
    """Return the accounts that the node has not, or otherwise than wanted, and those that should have left.

    In check mode the groups that a real run would have created before are left out: Ansible's module refuses to plan
    with them.
    """
    users, known = _entries(node, 7), _entries(node, 4)

    def right(account: Account) -> bool:
        name, number = account["name"], str(account["uid"])
        if account["state"] == "absent":
            return name not in users
        member_of = {group for group, entry in known.items() if name in entry[2].split(",")}
        wanted = [number, number, account["comment"], account["home"], account["shell"]]
        return users.get(name, [])[1:] == wanted and member_of == set(account["groups"])

    return [
        dict(account, groups=[group for group in account["groups"] if group in known or not check])
        for account in accounts
        if not right(account)
    ]


def key_files(accounts: Sequence[Account], directory: str) -> list[dict[str, Any]]:
    """Return one file of public keys per account as node_state takes it, absent for those who may not log in."""
    files: list[dict[str, Any]] = []
    for account in accounts:
        keys = account["ssh_keys"] if account["state"] == "present" else []
        content: dict[str, Any] = {"content": "".join(f"{key.strip()}\n" for key in keys)}
        files.append({"dest": f"{directory}/{account['name']}"} | (content if keys else {"state": "absent"}))
    return files


def in_slurm(accounts: Sequence[Account], default: str) -> dict[str, list[dict[str, Any]]]:
    """Return Slurm's accounts and users for these people; an administrator of the nodes is one of Slurm too."""
    users = [
        {
            "name": account["name"],
            "accounts": [account.get("slurm_account") or default],
            "admin_level": "Administrator" if account.get("admin") else "None",
        }
        for account in accounts
    ]
    names = sorted({name for user in users for name in user["accounts"]})
    return {"accounts": [{"name": name} for name in names], "users": users}


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "users_complete": complete,
            "users_in_slurm": in_slurm,
            "users_groups_to_change": groups_to_change,
            "users_key_files": key_files,
            "users_to_change": users_to_change,
        }
