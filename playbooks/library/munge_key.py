#!/usr/bin/python
"""Ansible module: replaces munge's key on all nodes at one moment, so that Slurm's daemons understand each other."""

from __future__ import annotations

import base64
import subprocess
import sys
import time
from pathlib import Path
from pwd import getpwnam

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_tools import NodeError, clean, run, write

DOCUMENTATION = r"""
module: munge_key
author: the clusterctl authors
short_description: Replace the key of munge on all nodes of a cluster at one moment
description:
  - Two daemons of Slurm with different keys refuse each other's messages. So each node gets the new key beside the old
    one, and later is told a moment at which it exchanges the two by itself, whoever is connected to it then.
  - A node that has no key yet is left alone.
options:
  step:
    description:
      - V(lay) writes the new key beside the old one, V(arm) starts what will exchange them, V(wait) waits until that is
        done.
    choices: [lay, arm, wait]
    type: str
    required: true
  key:
    description: The new key, as base64; for V(lay) and V(wait).
    type: str
  at:
    description: The moment, in seconds since 1970; for V(arm).
    type: int
  stopped:
    description: Units that are stopped some seconds before the moment and started after it; for V(arm).
    type: list
    elements: str
    default: []
attributes:
  check_mode: {support: none}
"""

EXAMPLES = r"""
- name: Exchange the key at noon
  munge_key:
    step: arm
    at: 1767265200
"""

RETURN = r"""
changed:
  description: Whether there was something to do.
  type: bool
  returned: always
"""

KEY = Path("/etc/munge/munge.key")
NEXT = KEY.with_name("munge.key.next")
UNIT = "clusterctl-munge-key"
LIMIT = 600.0  # seconds from when it was told to its end
EXCHANGE = """
import os, subprocess, sys, time

def systemctl(*words):
    subprocess.run(["systemctl", *words], check=True)

def sleep_until(moment):
    time.sleep(max(0.0, moment - time.time()))

new, key, at, stopped = *sys.argv[1:3], int(sys.argv[3]), sys.argv[4:]
try:
    if stopped:
        sleep_until(at - 3)
        systemctl("stop", *stopped)
    sleep_until(at)
    os.replace(new, key)
    systemctl("restart", "munge")
finally:
    if stopped:
        systemctl("start", *stopped)
"""


def state() -> str:
    """Return what systemd says of the exchange's unit, `inactive` where there is none any more."""
    return run("systemctl", "show", "--property=ActiveState", "--value", UNIT)[1].strip()


def lay(key: bytes) -> bool:
    """Write the new key beside the old one; return whether there is an old one that differs."""
    if state() in ("active", "activating"):
        raise NodeError("munge's key is being exchanged already; run again when that is done")
    if not KEY.exists() or KEY.read_bytes() == key:
        NEXT.unlink(missing_ok=True)
        return False
    owner = getpwnam("munge")
    write(NEXT, key, owner.pw_uid, owner.pw_gid, 0o400)
    return True


def arm(at: int, stopped: list[str]) -> bool:
    """Start what exchanges the keys at a moment; return whether there is a new key."""
    if not NEXT.exists():
        return False
    subprocess.run(["systemctl", "reset-failed", UNIT], capture_output=True, check=False)
    argv = ["systemd-run", "--quiet", f"--unit={UNIT}", sys.executable, "-c", EXCHANGE, str(NEXT), str(KEY), str(at)]
    run(*argv, *stopped)
    return True


def wait(key: bytes) -> bool:
    """Wait until the exchange has ended; NodeError with what it said if it has failed."""
    deadline = time.monotonic() + LIMIT
    while (now := state()) in ("active", "activating") and time.monotonic() < deadline:
        time.sleep(0.2)
    if now == "failed" or (KEY.exists() and KEY.read_bytes() != key):
        told = run("journalctl", "--quiet", "--no-pager", "-n", "15", "-o", "cat", "-u", UNIT, check=False)[1]
        raise NodeError(f"munge's key was not exchanged; the unit {UNIT} is {now}\n{clean(told)}")
    return False


def main() -> None:
    """Run as an Ansible module."""
    arguments = {
        "step": {"type": "str", "choices": ["lay", "arm", "wait"], "required": True},
        "key": {"type": "str", "no_log": True},
        "at": {"type": "int"},
        "stopped": {"type": "list", "elements": "str", "default": []},
    }
    needed = [("step", "lay", ["key"]), ("step", "arm", ["at"]), ("step", "wait", ["key"])]
    module = AnsibleModule(arguments, required_if=needed)
    given = module.params
    try:
        if given["step"] == "arm":
            changed = arm(given["at"], given["stopped"])
        else:
            changed = {"lay": lay, "wait": wait}[given["step"]](base64.b64decode(given["key"]))
    except (NodeError, OSError) as error:
        module.fail_json(str(error))
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
