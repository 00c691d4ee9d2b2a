#!/usr/bin/python
"""Ansible module: converge Slurm's accounts, users and their associations."""

from __future__ import annotations

import subprocess
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: slurm_accounts
author: the clusterctl authors
short_description: Converge accounts and users in Slurm's accounting
description:
  - Adds and modifies the listed accounts and users. Others are never changed.
  - Reads with C(sacctmgr) once and writes only differences. Must run on the head, as root.
options:
  cluster:
    description: Name of the cluster; added to accounting if it is missing.
    type: str
    required: true
  accounts:
    description: Accounts, each after its parent.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the account; Slurm stores it in lower case.
        type: str
        required: true
      description:
        description: Description of the account; empty means its name.
        type: str
        default: ""
      parent:
        description: Parent account.
        type: str
        default: root
  users:
    description: Users and the accounts that they may charge.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the user.
        type: str
        required: true
      accounts:
        description: Accounts to associate the user with; the first one becomes the default.
        type: list
        elements: str
        required: true
      admin_level:
        description: Right to change accounting.
        type: str
        choices: [None, Operator, Administrator]
        default: None
  deny_on_limit:
    description: >-
      Whether to give the QOS C(normal), which associations have by default, the flag DenyOnLimit, so that a job over
      a limit is refused at submission. Otherwise the QOS is left as it is.
    type: bool
    default: false
  state:
    description:
      - C(absent) deletes the listed associations, or the whole user if C(accounts) is empty, then the listed accounts.
      - Slurm refuses that while their jobs run. They are then kept until a later run, with a note.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Add an account with two users
  slurm_accounts:
    cluster: aurora
    accounts:
      - {name: vision, description: Computer vision}
    users:
      - {name: ada, accounts: [vision], admin_level: Operator}
      - {name: grace, accounts: [vision]}
"""

RETURN = r"""
commands:
  description: The C(sacctmgr) commands that were needed, without the program's name.
  type: list
  elements: list
  returned: always
notes:
  description: Deletions that Slurm refused.
  type: list
  elements: str
  returned: always
"""


QOS, DENY = "normal", "DenyOnLimit"


class SacctmgrError(Exception):
    """sacctmgr failed; the text is its output."""


def sacctmgr(*arguments: str) -> str:
    """Run sacctmgr without confirmation prompts and return its output."""
    argv = ["sacctmgr", "--immediate", "--noheader", "--parsable2", *arguments]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise SacctmgrError(f"cannot run sacctmgr: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise SacctmgrError(f"sacctmgr {' '.join(arguments)}: {'; '.join(line.strip() for line in said[-5:])}")
    return done.stdout


class Accounting:
    """The state of accounting, and the commands that change it to the wanted state."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.known = False
        self.accounts: dict[str, str] = {}
        self.users: dict[str, tuple[str, str]] = {}
        self.parents: dict[str, str] = {}
        self.associations: set[tuple[str, str]] = set()
        self.qos_flags: set[str] | None = None  # None: the QOS does not exist
        self.commands: list[list[str]] = []

    def read(self) -> None:
        """Read the state with sacctmgr. Raises SacctmgrError."""
        clusters = sacctmgr("show", "cluster", "format=cluster").split()
        self.known = self.cluster in clusters
        for line in sacctmgr("show", "account", "format=account,description").splitlines():
            name, _, description = line.partition("|")
            self.accounts[name] = description
        for line in sacctmgr("show", "user", "format=user,defaultaccount,adminlevel").splitlines():
            name, default, level = line.split("|")
            self.users[name] = (default, level)
        rows = sacctmgr("show", "qos", QOS, "format=name,flags").splitlines()
        self.qos_flags = {flag.lower() for flag in rows[0].partition("|")[2].split(",")} if rows else None
        chosen = ("show", "assoc", f"cluster={self.cluster}", "format=account,user,parentname")
        for line in sacctmgr(*chosen).splitlines() if self.known else ():
            account, user, parent = line.split("|")
            if user:
                self.associations.add((user, account))
            else:
                self.parents[account] = parent

    def add_cluster(self) -> None:
        """Plan to register the cluster."""
        if not self.known:
            self.commands.append(["add", "cluster", self.cluster])
            self.parents["root"] = ""

    def refuse_over_limit(self) -> None:
        """Plan to refuse jobs that exceed a limit. Source: DenyOnLimit in sacctmgr(1)."""
        if self.qos_flags is not None and DENY.lower() not in self.qos_flags:
            self.commands.append(["modify", "qos", QOS, "set", f"flags+={DENY}"])

    def add_account(self, name: str, description: str, parent: str) -> None:
        """Plan to add or modify an account of this cluster. Slurm stores name and description in lower case."""
        name, parent, description = name.lower(), parent.lower(), (description or name).lower()
        where = f"cluster={self.cluster}"
        if name not in self.parents:
            self.commands.append(["add", "account", name, where, f"parent={parent}", f"description={description}"])
        elif name != "root" and self.parents[name] != parent:
            self.commands.append(["modify", "account", name, "where", where, "set", f"parent={parent}"])
        if self.accounts.get(name, description) != description:
            self.commands.append(["modify", "account", name, "set", f"description={description}"])
        self.parents[name] = parent
        self.accounts[name] = description

    def add_user(self, name: str, accounts: list[str], level: str) -> None:
        """Plan to add or modify a user with these associations; the first account is the default."""
        accounts = [account.lower() for account in accounts]
        missing = [account for account in accounts if (name, account) not in self.associations]
        default, now = self.users.get(name, (accounts[0], level))
        if missing:
            command = ["add", "user", name, f"cluster={self.cluster}", f"account={','.join(missing)}"]
            new = [f"defaultaccount={accounts[0]}", f"adminlevel={level}"]
            self.commands.append(command if name in self.users else command + new)
        changes = [] if default == accounts[0] else [f"defaultaccount={accounts[0]}"]
        changes += [] if now == level else [f"adminlevel={level}"]
        if changes:
            self.commands.append(["modify", "user", name, "set", *changes])
        self.associations |= {(name, account) for account in missing}
        self.users[name] = (accounts[0], level)

    def remove_user(self, name: str, accounts: list[str]) -> None:
        """Plan to delete associations, or the user."""
        if not accounts and name in self.users:
            self.commands.append(["delete", "user", f"name={name}"])
        there = [account.lower() for account in accounts if (name, account.lower()) in self.associations]
        if there:
            where = [f"name={name}", f"cluster={self.cluster}", f"account={','.join(there)}"]
            self.commands.append(["delete", "user", "where", *where])

    def remove_account(self, name: str) -> None:
        """Plan to delete an account of this cluster."""
        if name.lower() in self.parents:
            where = [f"name={name.lower()}", f"cluster={self.cluster}"]
            self.commands.append(["delete", "account", "where", *where])


def plan(accounting: Accounting, params: dict[str, Any]) -> None:
    """Turn the module's parameters into commands."""
    if params["state"] == "present":
        accounting.add_cluster()
        if params["deny_on_limit"]:
            accounting.refuse_over_limit()
        for account in params["accounts"]:
            accounting.add_account(account["name"], account["description"], account["parent"])
        for user in params["users"]:
            accounting.add_user(user["name"], user["accounts"], user["admin_level"])
    else:
        for user in params["users"]:
            accounting.remove_user(user["name"], user["accounts"])
        for account in reversed(params["accounts"]):
            accounting.remove_account(account["name"])


def kept(command: list[str]) -> str:
    """Return the note on a deletion that Slurm refuses while jobs run."""
    words = dict(word.split("=", 1) for word in command if "=" in word)
    name, then = words["name"], "then bootstrap again"
    if command[1] == "account":
        return f"account {name} stays in Slurm until its jobs have ended; {then}"
    if "account" in words:
        return f"{name} stays in Slurm's account {words['account']} until the jobs there have ended; {then}"
    return f"{name} stays in Slurm until the running jobs have ended, and waiting ones do not start; {then}"


def main() -> None:
    """Ansible's entry point."""
    account = {
        "name": {"type": "str", "required": True},
        "description": {"type": "str", "default": ""},
        "parent": {"type": "str", "default": "root"},
    }
    levels = ["None", "Operator", "Administrator"]
    user = {
        "name": {"type": "str", "required": True},
        "accounts": {"type": "list", "elements": "str", "required": True},
        "admin_level": {"type": "str", "choices": levels, "default": "None"},
    }
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "required": True},
            "accounts": {"type": "list", "elements": "dict", "default": [], "options": account},
            "users": {"type": "list", "elements": "dict", "default": [], "options": user},
            "deny_on_limit": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    accounting = Accounting(module.params["cluster"])
    for entry in module.params["users"]:
        if module.params["state"] == "present" and not entry["accounts"]:
            module.fail_json(msg=f"user {entry['name']} has no account: Slurm would refuse all of this user's jobs")
    try:
        accounting.read()
    except SacctmgrError as error:
        if not module.check_mode:
            module.fail_json(msg=str(error))
        # In a dry run on a new head there is no accounting yet, so everything listed would be added.
    plan(accounting, module.params)
    commands, notes = [], []
    for command in accounting.commands:
        try:
            if not module.check_mode:
                sacctmgr(*command)
            commands.append(command)
        except SacctmgrError as error:
            if module.params["state"] == "present" or "active" not in str(error):
                module.fail_json(msg=str(error))
            notes.append(kept(command))
    text = "".join(f"sacctmgr {' '.join(command)}\n" for command in commands)
    module.exit_json(changed=bool(commands), commands=commands, notes=notes, diff={"before": "", "after": text})


if __name__ == "__main__":
    main()
