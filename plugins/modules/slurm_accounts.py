#!/usr/bin/python
"""Ansible module: converge Slurm's accounts, users and their associations."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_state.tools import change, store
from ansible.module_utils.slurm_limits import OF_ASSOCIATION, OF_QOS, OptionError, arguments, differs, flatten, printed

DOCUMENTATION = r"""
module: slurm_accounts
author: the clusterctl authors
short_description: Converge accounts, users and QOS in Slurm's accounting
description:
  - Adds and modifies the listed accounts, users and QOS. Others are never changed, nor are options that are not listed,
    except those that an earlier call has set from its list.
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
        description: Parent account. Empty means that an account keeps its parent, and that a new one is below C(root).
        type: str
        default: ""
      options: &options
        description: Options of the association for sacctmgr, such as C(Fairshare) and C(GrpTRES).
        type: dict
        default: {}
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
      options: *options
  qos:
    description: QOS, in any order.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the QOS; Slurm stores it in lower case.
        type: str
        required: true
      options:
        description: Options of the QOS for sacctmgr, such as C(Priority) and C(Preempt).
        type: dict
        default: {}
  deny_on_limit:
    description: >-
      Whether to give the listed QOS, and the QOS C(normal), which associations have by default, the flag DenyOnLimit,
      so that a job over a limit is refused at submission.
    type: bool
    default: false
  record:
    description: File with the options of the last call, so that options that are no longer listed can be removed.
    type: path
    default: /var/lib/clusterctl/slurm-accounts.json
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
      - {name: vision, description: Computer vision, options: {Fairshare: 40, GrpTRES: {gres/gpu: 16}}}
    users:
      - {name: ada, accounts: [vision], admin_level: Operator, options: {MaxJobs: 10}}
      - {name: grace, accounts: [vision]}
"""

RETURN = r"""
commands:
  description: The C(sacctmgr) commands that were needed, without the program's name.
  type: list
  elements: list
  returned: always
changes:
  description: The same as data, as of node_state.
  type: list
  elements: dict
  returned: always
notes:
  description: Deletions that Slurm refused.
  type: list
  elements: str
  returned: always
has_reservations:
  description: Whether module slurm_reservations has a record, so that a role calls it although none is listed.
  type: bool
  returned: always
"""


QOS, DENY = "normal", "DenyOnLimit"
KINDS = {"cluster": "Slurm cluster", "qos": "QOS", "account": "Slurm account", "user": "Slurm user"}
RECORD = "/var/lib/clusterctl/slurm-accounts.json"
RESERVATIONS = "slurm-reservations.json"  # beside it


def of_qos(name: str) -> str:
    """Return the words that select a QOS."""
    return f"qos {name.lower()}"


def of_account(account: str, user: str = "") -> str:
    """Return the words that select an account's association, or a user's."""
    return f"user {user} account={account.lower()}" if user else f"account {account.lower()}"


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
        self.options: dict[str, dict[str, str]] = {}
        """The options that are set of an account, an association or a QOS, by the words that select it."""
        self.recorded: dict[str, dict[str, str]] = {}
        """The options that the last run has set."""
        self.listed: set[str] = set()
        self.declared: dict[str, dict[str, str]] = {}
        self.commands: list[list[str]] = []

    def read(self, record: Path) -> None:
        """Read the state with sacctmgr, and what the last run has set. Raises SacctmgrError."""
        if record.exists():
            self.recorded = json.loads(record.read_text())
        clusters = sacctmgr("show", "cluster", "format=cluster").split()
        self.known = self.cluster in clusters
        for line in sacctmgr("show", "account", "format=account,description").splitlines():
            name, _, description = line.partition("|")
            self.accounts[name] = description
        for line in sacctmgr("show", "user", "format=user,defaultaccount,adminlevel").splitlines():
            name, default, level = line.split("|")
            self.users[name] = (default, level)
        for line in sacctmgr("show", "qos", f"format=name,{','.join(OF_QOS)}").splitlines():
            name, *values = line.split("|")
            self.options[of_qos(name)] = printed(OF_QOS, values)
        # Without limits that are inherited from a parent.
        fields = f"format=account,user,partition,parentname,{','.join(OF_ASSOCIATION)}"
        chosen = ("show", "assoc", f"cluster={self.cluster}", "wopl", fields)
        for line in sacctmgr(*chosen).splitlines() if self.known else ():
            account, user, partition, parent, *values = line.split("|")
            if partition:
                continue  # besides the association for all partitions; the inventory has none
            if user:
                self.associations.add((user, account))
            else:
                self.parents[account] = parent
            self.options[of_account(account, user)] = printed(OF_ASSOCIATION, values)

    def united(self) -> dict[str, dict[str, str]]:
        """Return the options that the last run or this one declares."""
        selected = {*self.recorded, *self.declared}
        return {one: {**self.recorded.get(one, {}), **self.declared.get(one, {})} for one in selected}

    def keep(self, record: Path, options: dict[str, dict[str, str]]) -> None:
        """Store options as those that a run has set."""
        if options != self.recorded:
            store(record, json.dumps(options, indent=1, sort_keys=True).encode())
            self.recorded = options

    def add_cluster(self) -> None:
        """Plan to register the cluster."""
        if not self.known:
            self.commands.append(["add", "cluster", self.cluster])
            self.parents["root"] = ""

    def add_qos(self, name: str) -> None:
        """Plan to add a QOS. Slurm stores its name in lower case."""
        if of_qos(name) not in self.options:
            self.commands.append(["add", "qos", name.lower()])
            self.options[of_qos(name)] = {}

    def set_options(self, selected: str, declared: dict[str, Any]) -> None:
        """Plan to set the options of an object, and to remove those that only the last run declared."""
        self.listed.add(selected)
        kinds = OF_QOS if selected.startswith("qos ") else OF_ASSOCIATION
        wanted, recorded = flatten(kinds, declared), self.recorded.get(selected, {})
        if wanted:
            self.declared[selected] = wanted
        needed = arguments(kinds, wanted, self.options.get(selected, {}), recorded)
        if selected == of_account("root"):  # its associations have the QOS of no other
            needed = [f"QOS={QOS}" if argument == "QOS=" else argument for argument in needed]
        if needed:
            self.modify(selected, *needed)

    def modify(self, selected: str, *needed: str) -> None:
        """Plan to set options, of all of a user's associations with an account, also those with a partition."""
        kind, name, *account = selected.split(" ")
        where = [] if kind == "qos" else [f"cluster={self.cluster}"]
        self.commands.append(["modify", kind, "where", f"name={name}", *account, *where, "set", *needed])

    def release(self, selected: str, declared: dict[str, Any]) -> None:
        """Plan to remove a name of a QOS that will change, so that no command is refused because of its old value.

        Slurm refuses to take a QOS from an account while it is the default of one of its users, and a preemption that
        would be a loop with another one that is changed later.
        """
        kinds = OF_QOS if selected.startswith("qos ") else OF_ASSOCIATION
        wanted, recorded = flatten(kinds, declared), self.recorded.get(selected, {})
        current = self.options.get(selected, {})
        for name, unset in (("DefaultQOS", "-1"), ("Preempt", "")):
            was_declared = name in recorded and not differs(current.get(name), recorded[name])
            if name in current and (differs(current[name], wanted[name]) if name in wanted else was_declared):
                self.modify(selected, f"{name}={unset}")
                del current[name]

    def add_account(self, name: str, description: str, parent: str) -> None:
        """Plan to add or modify an account of this cluster. Slurm stores name and description in lower case."""
        name = name.lower()
        parent = (parent or self.parents.get(name) or "root").lower()
        description = (description or self.accounts.get(name) or name).lower()
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
        listed = listed_options(params)
        for selected in [*listed, *sorted(accounting.recorded.keys() - listed)]:
            accounting.release(selected, listed.get(selected, {}))
        plan_qos(accounting, params["qos"], params["deny_on_limit"])
        for account in params["accounts"]:
            accounting.add_account(account["name"], account["description"], account["parent"])
            accounting.set_options(of_account(account["name"]), account["options"])
        for user in params["users"]:
            accounting.add_user(user["name"], user["accounts"], user["admin_level"])
            accounting.set_options(of_account(user["accounts"][0], user["name"]), user["options"])
        # Only the options of what is no longer listed are removed, not their objects.
        for selected in sorted(accounting.recorded.keys() - accounting.listed):
            if selected in accounting.options:
                accounting.set_options(selected, {})
    else:
        for user in params["users"]:
            accounting.remove_user(user["name"], user["accounts"])
        for account in reversed(params["accounts"]):
            accounting.remove_account(account["name"])


def listed_options(params: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options of all that is listed, by the words that select it."""
    found = {of_qos(one["name"]): one["options"] for one in params["qos"]}
    found |= {of_account(one["name"]): one["options"] for one in params["accounts"]}
    return found | {of_account(one["accounts"][0], one["name"]): one["options"] for one in params["users"]}


def plan_qos(accounting: Accounting, listed: list[dict[str, Any]], deny_on_limit: bool) -> None:
    """Plan the QOS. They may name each other, so all are added first."""
    for one in listed:
        accounting.add_qos(one["name"])
    names = {one["name"].lower() for one in listed}
    if deny_on_limit and QOS not in names and of_qos(QOS) in accounting.options:
        listed = [*listed, {"name": QOS, "options": {}}]
    for one in listed:
        options = with_flag(one["options"], DENY) if deny_on_limit else one["options"]  # source: sacctmgr(1)
        accounting.set_options(of_qos(one["name"]), options)


def with_flag(options: dict[str, Any], flag: str) -> dict[str, Any]:
    """Return the options of a QOS with one more flag."""
    name = next((name for name in options if name.lower() == "flags"), "Flags")
    given = options.get(name) or []
    return {**options, name: [*(given if isinstance(given, list) else str(given).split(",")), flag]}


def change_of(command: list[str]) -> Any:
    """Return a command as a change for Ansible's result."""
    end = command.index("set") if "set" in command else len(command)
    words = dict(word.split("=", 1) for word in command[:end] if "=" in word)
    name = words.get("name", command[2])
    if command[1] == "user" and "account" in words:
        name += f" in {words['account']}"
    action = {"add": "created", "modify": "changed", "delete": "removed"}[command[0]]
    return change(KINDS[command[1]], name, action, ", ".join(command[end + 1 :]))


def changes_of(commands: list[list[str]]) -> list[dict[str, str]]:
    """Return the changes, one for each object: one that is new has options that are set by another command."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for one in map(change_of, commands):
        first = found.setdefault((one["kind"], one["name"]), one)
        if first is not one:
            first["what"] = ", ".join(filter(None, (first["what"], one["what"])))
    return list(found.values())


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
        "parent": {"type": "str", "default": ""},
        "options": {"type": "dict", "default": {}},
    }
    levels = ["None", "Operator", "Administrator"]
    user = {
        "name": {"type": "str", "required": True},
        "accounts": {"type": "list", "elements": "str", "required": True},
        "admin_level": {"type": "str", "choices": levels, "default": "None"},
        "options": {"type": "dict", "default": {}},
    }
    qos = {"name": {"type": "str", "required": True}, "options": {"type": "dict", "default": {}}}
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "required": True},
            "accounts": {"type": "list", "elements": "dict", "default": [], "options": account},
            "users": {"type": "list", "elements": "dict", "default": [], "options": user},
            "qos": {"type": "list", "elements": "dict", "default": [], "options": qos},
            "deny_on_limit": {"type": "bool", "default": False},
            "record": {"type": "path", "default": RECORD},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    accounting, record = Accounting(module.params["cluster"]), Path(module.params["record"])
    for entry in module.params["users"]:
        if module.params["state"] == "present" and not entry["accounts"]:
            module.fail_json(msg=f"user {entry['name']} has no account: Slurm would refuse all of this user's jobs")
    try:
        accounting.read(record)
    except SacctmgrError as error:
        if not module.check_mode:
            module.fail_json(msg=str(error))
        # In a dry run on a new head there is no accounting yet, so everything listed would be added.
    try:
        plan(accounting, module.params)
    except OptionError as error:
        module.fail_json(msg=str(error))
    is_real = not module.check_mode and module.params["state"] == "present"
    if is_real:
        # If the run ends here, the next one knows what this one may have set.
        accounting.keep(record, accounting.united())
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
    if is_real:
        accounting.keep(record, accounting.declared)
    text = "".join(f"sacctmgr {' '.join(command)}\n" for command in commands)
    changes = changes_of(commands)
    diff = {"before": "", "after": text}
    result = {"changed": bool(commands), "commands": commands, "changes": changes, "notes": notes, "diff": diff}
    module.exit_json(has_reservations=record.with_name(RESERVATIONS).exists(), **result)


if __name__ == "__main__":
    main()
