#!/usr/bin/python
"""Ansible module: converge the groups and users of a node in one call."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils import slurm_steps
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_state.tools import NodeError, alone_on_node, change

DOCUMENTATION = r"""
module: node_users
author: the clusterctl authors
short_description: Converge the local groups and users of a node
description:
  - Creates and modifies the listed groups and users, with their UIDs and GIDs. Others are never changed.
  - Reads C(/etc/passwd) and C(/etc/group) once and runs C(groupadd), C(useradd) and similar tools only for
    differences, so a thousand unchanged users cost one call.
  - Sets no passwords. A password that an administrator of the node has set is kept.
options:
  groups:
    description: Groups, including those named after a user.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the group.
        type: str
        required: true
      gid:
        description: GID of the group.
        type: int
        required: true
  users:
    description: Users. Each user's own group has the user's name and must exist or be listed.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Login name.
        type: str
        required: true
      uid:
        description: UID of the user.
        type: int
        required: true
      comment:
        description: Full name.
        type: str
        default: ""
      groups:
        description:
          - All groups besides the user's own; the user is removed from all others, except O(groups_of_others).
        type: list
        elements: str
        default: []
      home:
        description: Home directory, made for a new user unless it is C(/nonexistent). An existing one is not moved.
        type: str
        required: true
      shell:
        description: Login shell.
        type: str
        required: true
      state:
        description:
          - C(absent) removes the user with their sessions, crontab and at jobs. Slurm jobs continue until they end, and
            the home directory is kept.
        type: str
        choices: [present, absent]
        default: present
  groups_of_others:
    description: Groups whose members another role sets.
    type: list
    elements: str
    default: []
  departed:
    description:
      - Names of people of a directory who left. Their sessions, crontab and at jobs end as with C(state=absent).
      - A local account of that name stays. Nothing ends if the directory gives them the UID of another user.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- name: Create a user and remove another
  node_users:
    groups:
      - {name: ada, gid: 10001}
      - {name: vision, gid: 20001}
    users:
      - {name: ada, uid: 10001, groups: [vision], home: /home/ada, shell: /bin/bash}
      - {name: grace, uid: 10002, home: /home/grace, shell: /bin/bash, state: absent}
"""

RETURN = r"""
changes:
  description: The changes, in the format of node_state.
  type: list
  elements: dict
  returned: always
notes:
  description: Processes of removed users that could not be killed.
  type: list
  elements: str
  returned: always
"""

NOWHERE = "/nonexistent"
# Directories of users' crontabs and at jobs, on Debian and the RHEL family. at's files have the names of jobs.
CRONTABS = ("/var/spool/cron/crontabs", "/var/spool/cron")
AT_JOBS = ("/var/spool/cron/atjobs", "/var/spool/at")
LINGER = "/var/lib/systemd/linger"
GRACE = 5.0  # seconds for processes to end after SIGTERM, and again after SIGKILL
FIRST = 500  # lowest UID of a user's account; lower ones may be system accounts
SECONDS = 300


class ToolError(Exception):
    """A tool failed; the text is its output."""


def entries(text: str, fields: int) -> dict[str, list[str]]:
    """Return the lines of passwd (7 fields) or group (4) by name, each without the name."""
    lines = [line.split(":") for line in text.splitlines()]
    return {line[0]: line[1:] for line in lines if len(line) == fields}


def plan_groups(known: dict[str, list[str]], groups: list[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    """Return (group, what, command) for each group that is missing or has another GID."""
    steps = []
    for group in groups:
        name, number = group["name"], str(group["gid"])
        if name not in known:
            steps.append((name, f"created, gid {number}", ["groupadd", "--gid", number, "--", name]))
        elif known[name][1] != number:
            what = f"gid {number}, was {known[name][1]}"
            steps.append((name, what, ["groupmod", "--gid", number, "--", name]))
    return steps


def plan_users(
    passwd: dict[str, list[str]], known: dict[str, list[str]], users: list[dict[str, Any]], others: list[str]
) -> list[tuple[str, str, list[str]]]:
    """Return (user, what, command) for each user to create, modify or remove; members of the groups `others` stay."""
    steps = []
    for user in users:
        name = user["name"]
        there = passwd.get(name)
        if user["state"] == "absent":
            if there:
                steps.append((name, "removed", ["userdel", "--force", "--", name]))
            continue
        gid = known[name][1] if name in known else str(user["uid"])
        member_of = {group for group, entry in known.items() if name in entry[2].split(",")}
        groups = ",".join(sorted({*user["groups"], *(member_of & {*others})}))
        wanted = {
            "uid": (str(user["uid"]), ["--uid", str(user["uid"])]),
            "gid": (gid, ["--gid", name]),
            "comment": (user["comment"], ["--comment", user["comment"]]),
            "home": (user["home"], ["--home-dir" if not there else "--home", user["home"]]),
            "shell": (user["shell"], ["--shell", user["shell"]]),
            "groups": (groups, ["--groups", groups]),
        }
        if not there:
            home = ["--no-create-home" if user["home"] == NOWHERE else "--create-home"]
            # An impossible hash: sshd accepts keys of such an account, but not of a locked one.
            argv = ["useradd", *home, "--no-user-group", "--password", "*"]
            argv += [word for _, option in wanted.values() for word in option]
            steps.append((name, f"created, uid {user['uid']}", [*argv, "--", name]))
            continue
        now = dict(zip(("uid", "gid", "comment", "home", "shell"), there[1:]))  # noqa: B905
        now["groups"] = ",".join(sorted(member_of))
        told = [
            f"{key} {value or 'none'}, was {now[key] or 'none'}"
            for key, (value, _) in wanted.items()
            if now[key] != value
        ]
        argv = [word for key, (value, option) in wanted.items() if now[key] != value for word in option]
        if told:
            steps.append((name, "; ".join(told), ["usermod", *argv, "--", name]))
    return steps


def numbers_of(name: str, uid: int, subuid: str = "/etc/subuid") -> list[range]:
    """Return the UIDs of a user's processes: the user's own, and those of their user namespaces."""
    ranges = [range(uid, uid + 1)]
    with contextlib.suppress(OSError):
        for owner, start, count in (line.split(":") for line in Path(subuid).read_text().split()):
            if owner in (name, str(uid)):
                ranges.append(range(int(start), int(start) + int(count)))
    return ranges


def outside_of_jobs(numbers: Sequence[range], proc: str = "/proc") -> list[int]:
    """Return the running processes with these UIDs, except those of Slurm's jobs."""
    found = []
    for status in Path(proc).glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has ended
            told = dict(re.findall(r"(?m)^(State|Uid):\s+(\S+)", status.read_text("utf-8", "replace")))
            is_theirs = told.get("State") != "Z" and any(int(told.get("Uid", 0)) in these for these in numbers)
            if is_theirs and not slurm_steps.OF_A_JOB.search(status.with_name("cgroup").read_text("utf-8", "replace")):
                found.append(int(status.parent.name))
    return found


def left_behind(name: str, uid: int, root: str = "") -> list[Path]:
    """Return the files from which cron, at and systemd would still run commands of this user."""
    named = [Path(f"{root}{folder}/{name}") for folder in (*CRONTABS, LINGER)]
    owned = [file for folder in AT_JOBS for file in Path(f"{root}{folder}").glob("[A-Za-z=]?????????????")]
    files = [path for path in named if path.is_file()]
    return files + [path for path in owned if path.is_file() and path.lstat().st_uid == uid]


def from_directory(name: str) -> int | None:
    """Return the UID of a person of a directory, None if no directory has them or answers, or the UID is another's."""
    fields = resolved("-s", "sss", "passwd", "--", name)
    is_theirs = bool(fields) and fields[2].isdigit() and resolved("passwd", "--", fields[2])[:1] == [name]
    return int(fields[2]) if is_theirs else None


def resolved(*argv: str) -> list[str]:
    """Return the entry of a user that getent prints, nothing without an answer."""
    try:
        done = subprocess.run(
            ["getent", *argv], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    fields = done.stdout.strip().split(":")
    return fields if done.returncode == 0 and len(fields) == 7 else []


def end(name: str, uid: int) -> str:
    """End the processes of a user who can no longer log in; return a note on processes that did not end.

    Scheduled commands are deleted. Processes are killed repeatedly, because they may fork meanwhile. A process that
    waits for a file system that does not respond ends when the file system responds.
    """
    for path in left_behind(name, uid):
        path.unlink(missing_ok=True)
    numbers, started = numbers_of(name, uid), time.monotonic()
    signalled = signal.SIGTERM
    while running := outside_of_jobs(numbers):
        waited = time.monotonic() - started
        if waited > 2 * GRACE:
            return f"{name}: processes are still running after SIGKILL: {', '.join(map(str, running[:8]))}"
        if signalled == signal.SIGTERM and waited > GRACE:
            signalled = signal.SIGKILL
        if signalled == signal.SIGKILL:  # all of a session at once
            subprocess.run(
                ["systemctl", "kill", "--signal=KILL", f"user-{uid}.slice"], capture_output=True, check=False
            )
        for pid in running if signalled == signal.SIGKILL or waited < 0.1 else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signalled)
        time.sleep(0.1)
    return ""


def perform(argv: list[str]) -> None:
    """Run one tool. Raises ToolError with its output."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=SECONDS
        )
    except OSError as error:
        raise ToolError(f"cannot run {argv[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ToolError(f"{argv[0]} {argv[-1]} timed out after {SECONDS} s") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-600:]
        raise ToolError(f"{argv[0]} {argv[-1]}: {said or 'exit ' + str(done.returncode)}")


def main() -> None:
    """Ansible's entry point."""
    group = {"name": {"type": "str", "required": True}, "gid": {"type": "int", "required": True}}
    user = {
        "name": {"type": "str", "required": True},
        "uid": {"type": "int", "required": True},
        "comment": {"type": "str", "default": ""},
        "groups": {"type": "list", "elements": "str", "default": []},
        "home": {"type": "str", "required": True},
        "shell": {"type": "str", "required": True},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    }
    module = AnsibleModule(
        argument_spec={
            "groups": {"type": "list", "elements": "dict", "default": [], "options": group},
            "users": {"type": "list", "elements": "dict", "default": [], "options": user},
            "groups_of_others": {"type": "list", "elements": "str", "default": []},
            "departed": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    changes: list[dict[str, str]] = []
    passwd: dict[str, list[str]] = {}
    notes: list[str] = []

    def converge(kind: str, steps: list[tuple[str, str, list[str]]]) -> None:
        for name, what, argv in steps:
            if not module.check_mode:
                if argv[0] == "userdel":
                    if name == os.environ.get("SUDO_USER"):
                        raise ToolError(
                            f"{name} runs this and would be removed by it: let another of users_operators run it"
                        )
                    uid = int(passwd[name][1])
                    if uid >= FIRST and [entry[1] for entry in passwd.values()].count(str(uid)) == 1:
                        perform(["usermod", "--expiredate", "1", "--", name])
                        notes.extend(filter(None, [end(name, uid)]))
                perform(argv)
            action = {"useradd": "created", "groupadd": "created", "userdel": "removed", "groupdel": "removed"}
            changes.append(change(kind, name, action.get(argv[0], "changed"), what))

    def depart(name: str) -> None:
        uid = None if name in passwd else from_directory(name)
        if uid is None or uid < FIRST or str(uid) in [entry[1] for entry in passwd.values()]:
            return
        if outside_of_jobs(numbers_of(name, uid)) or left_behind(name, uid):
            if not module.check_mode:
                notes.extend(filter(None, [end(name, uid)]))
            changes.append(change("user", name, "changed", "sessions and scheduled commands ended"))

    def told() -> dict[str, Any]:
        text = "".join(f"{change['kind']} {change['name']}: {change['what']}\n" for change in changes)
        return {"changed": bool(changes), "changes": changes, "notes": notes, "diff": {"before": "", "after": text}}

    try:
        with contextlib.nullcontext() if module.check_mode else alone_on_node(notes):
            known = entries(Path("/etc/group").read_text("utf-8"), 4)
            converge("group", plan_groups(known, module.params["groups"]))
            # Read again: a group's new GID is now in its members' entries.
            known = entries(Path("/etc/group").read_text("utf-8"), 4)
            passwd |= entries(Path("/etc/passwd").read_text("utf-8"), 7)
            converge("user", plan_users(passwd, known, module.params["users"], module.params["groups_of_others"]))
            for name in module.params["departed"]:
                depart(name)
    except (ToolError, NodeError, OSError, UnicodeDecodeError) as error:
        module.fail_json(msg=str(error), **told())
    module.exit_json(**told())


if __name__ == "__main__":
    main()
