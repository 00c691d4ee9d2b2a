#!/usr/bin/python
"""Ansible module: replace munge's key on all nodes at the same time; Slurm's daemons must have the same key."""

from __future__ import annotations

import base64
import subprocess
import sys
import time
from pathlib import Path
from pwd import getpwnam

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_state.tools import NodeError, clean, run, write

DOCUMENTATION = r"""
module: munge_key
author: the clusterctl authors
short_description: Replace the key of munge on all nodes of a cluster at the same time
description:
  - Daemons of Slurm with different keys refuse each other's messages. So each node first gets the new key in a second
    file. Then a process on each node exchanges the two files at a given time, whether Ansible is connected or not.
  - A node without a key is not changed.
options:
  step:
    description:
      - V(stage) writes the new key into the second file, V(schedule) starts the process that exchanges the files, and
        V(wait) waits for its end.
    choices: [stage, schedule, wait]
    type: str
    required: true
  key:
    description: The new key, as base64.
    type: str
    required: true
  at:
    description: When to exchange the files, in seconds since 1970; for V(schedule).
    type: int
  stopped:
    description: Units to stop some seconds before that, if they are active, and to start after it; for V(schedule).
    type: list
    elements: str
    default: []
attributes:
  check_mode: {support: none}
"""

EXAMPLES = r"""
- name: Exchange the key at noon
  munge_key:
    step: schedule
    key: "{{ lookup('cluster_secret', 'munge_key') }}"
    at: 1767265200
"""

RETURN = r"""
changed:
  description: Whether the step changed anything.
  type: bool
  returned: always
"""

KEY = Path("/etc/munge/munge.key")
STAGED = KEY.with_name("munge.key.next")
UNIT = "clusterctl-munge-key"
LIMIT = 600.0  # seconds; with 1000 nodes the exchange is scheduled less than a minute ahead
EXCHANGE = """
import os, subprocess, sys, time

def systemctl(*words):
    subprocess.run(["systemctl", *words], check=True)

def is_active(unit):
    return subprocess.run(["systemctl", "--quiet", "is-active", unit]).returncode == 0

def sleep_until(moment):
    time.sleep(max(0.0, moment - time.time()))

staged, key, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
sleep_until(at - 6)  # slurmctld needs a second to stop starting jobs, and some seconds to save its state
stopped = [unit for unit in sys.argv[4:] if is_active(unit)]
try:
    if stopped:
        systemctl("stop", *stopped)
    sleep_until(at)
    os.replace(staged, key)
    systemctl("restart", "munge")
finally:
    if stopped:
        systemctl("start", *stopped)
"""


def wait_for_exchange() -> str:
    """Wait until no exchange is running; return systemd's state of its unit, `inactive` if there is none."""
    deadline = time.monotonic() + LIMIT
    while True:
        state = run("systemctl", "show", "--property=ActiveState", "--value", UNIT)[1].strip()
        if state not in ("active", "activating") or time.monotonic() > deadline:
            return state
        time.sleep(0.2)


def stage(key: bytes) -> bool:
    """Write the new key into the second file; return whether the node has another key."""
    wait_for_exchange()
    if not KEY.exists() or KEY.read_bytes() == key:
        STAGED.unlink(missing_ok=True)
        return False
    owner = getpwnam("munge")
    write(STAGED, key, owner.pw_uid, owner.pw_gid, 0o400)
    return True


def schedule(key: bytes, at: int, stopped: list[str]) -> bool:
    """Start the process that exchanges the files; return whether this key is staged."""
    if not STAGED.exists() or STAGED.read_bytes() != key:
        return False
    subprocess.run(["systemctl", "reset-failed", UNIT], capture_output=True, check=False)
    argv = ["systemd-run", "--quiet", f"--unit={UNIT}", sys.executable, "-c", EXCHANGE, str(STAGED), str(KEY), str(at)]
    run(*argv, *stopped)
    return True


def wait(key: bytes) -> bool:
    """Wait until the files are exchanged. Raises NodeError with the output of the process."""
    state = wait_for_exchange()
    if state == "failed" or (KEY.exists() and KEY.read_bytes() != key):
        log = run("journalctl", "--quiet", "--no-pager", "-n", "15", "-o", "cat", "-u", UNIT, check=False)[1]
        raise NodeError(f"the munge key was not exchanged; unit {UNIT} is {state}\n{clean(log)}")
    return False


def main() -> None:
    """Run as an Ansible module."""
    arguments = {
        "step": {"type": "str", "choices": ["stage", "schedule", "wait"], "required": True},
        "key": {"type": "str", "no_log": True, "required": True},
        "at": {"type": "int"},
        "stopped": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(arguments, required_if=[("step", "schedule", ["at"])])
    given, key = module.params, base64.b64decode(module.params["key"])
    try:
        if given["step"] == "schedule":
            changed = schedule(key, given["at"], given["stopped"])
        else:
            changed = {"stage": stage, "wait": wait}[given["step"]](key)
    except (NodeError, OSError) as error:
        module.fail_json(str(error))
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
