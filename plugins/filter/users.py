"""Filters that turn the inventory's accounts into data for nodes, sshd and Slurm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from clusterctl.inventory import slurm_limits

Account = Mapping[str, Any]


def complete(accounts: Sequence[Account], homes: str, shell: str, group: str) -> list[dict[str, Any]]:
    """Return the accounts with the defaults of missing keys, without those of a directory, which have no UID.

    Raises:
        AnsibleFilterError: two accounts share a name or a number.
    """
    accounts = [account for account in accounts if "uid" in account]
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
            "home": account.get("home", f"{homes}/{account['name']}"),
            "slurm_account": account.get("slurm_account"),
            "slurm_admin_level": account.get("slurm_admin_level", "None"),
            "slurm_options": account.get("slurm_options", {}),
            "state": account.get("state", "present"),
            "jobs": account.get("jobs", "finish"),
        }
        for account in accounts
    ]


def own_groups(accounts: Sequence[Account]) -> list[dict[str, Any]]:
    """Return name and GID of each user's own group.

    useradd would make it, but with another GID if the UID is above login.defs' GID_MAX.
    """
    return [{"name": account["name"], "gid": account["uid"]} for account in accounts]


def on_nodes(accounts: Sequence[Account]) -> list[dict[str, Any]]:
    """Return the accounts with the keys of node_users."""
    keys = ("name", "uid", "comment", "groups", "home", "shell", "state")
    return [{key: account[key] for key in keys} for account in accounts]


def key_files(accounts: Sequence[Account], directory: str) -> list[dict[str, Any]]:
    """Return one file of public keys per account for node_state, absent for accounts that may not log in."""
    files: list[dict[str, Any]] = []
    for account in accounts:
        keys = account["ssh_keys"] if account["state"] == "present" else []
        content: dict[str, Any] = {"content": "".join(f"{key.strip()}\n" for key in keys)}
        files.append({"dest": f"{directory}/{account['name']}"} | (content if keys else {"state": "absent"}))
    return files


def in_slurm(
    accounts: Sequence[Account], default: str, declared: Sequence[Mapping[str, Any]] = ()
) -> dict[str, list[dict[str, Any]]]:
    """Return Slurm's users for these accounts, and Slurm's accounts: the declared ones, parents first, and others.

    A removed user has no account: this deletes the user with all associations, including old ones.
    """
    users = [
        {
            "name": account["name"],
            "accounts": [] if account.get("state") == "absent" else [account.get("slurm_account") or default],
            "admin_level": account.get("slurm_admin_level", "None"),
            "options": account.get("slurm_options", {}),
        }
        for account in accounts
    ]
    known = {str(one["name"]).lower() for one in declared}
    others = sorted({name for user in users for name in user["accounts"] if name.lower() not in known})
    return {"accounts": [*slurm_limits.parents_first(declared), *({"name": name} for name in others)], "users": users}


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "users_complete": complete,
            "users_in_slurm": in_slurm,
            "users_key_files": key_files,
            "users_on_nodes": on_nodes,
            "users_own_groups": own_groups,
        }
