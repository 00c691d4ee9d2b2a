#!/usr/bin/python
"""Ansible module: set the limits of users on the file system of their homes."""

from __future__ import annotations

import csv
import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_state.tools import change

DOCUMENTATION = r"""
module: nfs_quotas
author: the clusterctl authors
short_description: Set quotas of users on a file system
description:
  - Compares limits with C(repquota) and sets those that differ with C(setquota). Other users' limits and limits of the
    number of files are not changed.
  - Fails before it changes anything if the file system has no quotas of users, or does not enforce them.
options:
  path:
    description: A directory on the file system.
    type: path
    required: true
  users:
    description: Users and their limits in KiB; 0 means no limit.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name, for messages.
        type: str
        required: true
      uid:
        description: UID.
        type: int
        required: true
      soft:
        description: Size that the user can exceed for the grace period.
        type: int
        required: true
      hard:
        description: Size that the user cannot exceed.
        type: int
        required: true
  check:
    description: Only check that the file system has quotas; that needs no package.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Limit a user's home
  nfs_quotas:
    path: /home
    users: [{name: ada, uid: 10001, soft: 419430400, hard: 524288000}]
"""

RETURN = r"""
commands:
  description: The C(setquota) commands that were needed, as lists of words.
  type: list
  elements: list
  returned: always
changes:
  description: The same as data, as of node_state.
  type: list
  elements: dict
  returned: always
"""

KIND = "quota"
# Options of a mounted file system that enforces quotas of users: ext4(5), xfs(5). XFS shows uquota as usrquota.
ENFORCED = r"(usrquota|usrjquota=.+|uquota|quota)"


class QuotaError(Exception):
    """Quotas cannot be set; the text says why."""


class Mount(NamedTuple):
    """A mounted file system."""

    target: str
    kind: str
    source: str
    options: frozenset[str]


def mount_of(path: str, mountinfo: str) -> Mount:
    """Return the file system of a path, by the text of /proc/self/mountinfo (proc_pid_mountinfo(5))."""
    found = Mount("/", "", "", frozenset())
    for line in mountinfo.splitlines():
        own, _, rest = line.partition(" - ")
        target = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), own.split()[4])
        kind, source, options = [*rest.split(" ", 2), "", ""][:3]
        if f"{path}/".startswith(f"{target.rstrip('/')}/") and len(target) >= len(found.target):
            found = Mount(target, kind, source, frozenset([*own.split()[5].split(","), *options.split(",")]))
    return found


def require_quotas(path: str, mount: Mount) -> None:
    """Raise QuotaError if a file system does not enforce quotas of users."""
    if not any(re.fullmatch(ENFORCED, option) for option in mount.options):
        option = "uquota" if mount.kind == "xfs" else "usrquota"
        raise QuotaError(
            f"{path} is on {mount.source} ({mount.kind}, mounted at {mount.target}), which has no quotas of users: "
            f"put the homes on ext4 or XFS that is mounted with the option {option}, or remove the quotas"
        )


def run(*argv: str) -> str:
    """Run a command and return its output. Raises QuotaError if it fails."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    except OSError as error:
        raise QuotaError(f"cannot run {argv[0]}: {error.strerror}") from error
    if done.returncode:
        raise QuotaError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def limits(report: str) -> dict[int, dict[str, str]]:
    """Return the rows of `repquota --output=csv --no-names`, by UID. Raises QuotaError if it is not such a report."""
    found = {}
    for row in csv.DictReader(report.splitlines()):
        number = str(row.get("User", "")).lstrip("#")
        if not number.isdecimal() or None in row.values():
            raise QuotaError(f"repquota: cannot read {row}")
        found[int(number)] = row
    return found


def commands(users: list[dict[str, Any]], known: dict[int, dict[str, str]], target: str) -> dict[str, list[str]]:
    """Return the commands for the users whose limits differ, by name."""
    needed = {}
    for user in users:
        row = known.get(user["uid"], {})
        wanted = [str(user["soft"]), str(user["hard"])]
        if [row.get("BlockSoftLimit", "0"), row.get("BlockHardLimit", "0")] != wanted:
            files = [row.get("FileSoftLimit", "0"), row.get("FileHardLimit", "0")]
            needed[user["name"]] = ["setquota", "-u", str(user["uid"]), *wanted, *files, target]
    return needed


def main() -> None:
    """Run as an Ansible module."""
    user = {"name": {"type": "str", "required": True}}
    user |= {key: {"type": "int", "required": True} for key in ("uid", "soft", "hard")}
    module = AnsibleModule(
        {
            "path": {"type": "path", "required": True},
            "users": {"type": "list", "elements": "dict", "default": [], "options": user},
            "check": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    path, needed = module.params["path"], {}
    try:
        mount = mount_of(os.path.realpath(path), Path("/proc/self/mountinfo").read_text())
        require_quotas(path, mount)
        if not module.params["check"]:
            report = run("repquota", "--user", "--no-names", "--output=csv", mount.target)
            needed = commands(module.params["users"], limits(report), mount.target)
            for command in needed.values() if not module.check_mode else ():
                run(*command)
    except QuotaError as error:
        module.fail_json(msg=str(error))
    changes = [change(KIND, name, "changed", f"{command[3]} to {command[4]} KiB") for name, command in needed.items()]
    module.exit_json(changed=bool(needed), commands=list(needed.values()), changes=changes)


if __name__ == "__main__":
    main()
