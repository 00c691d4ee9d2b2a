#!/usr/bin/python
"""Ansible module: converge Slurm's reservations."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_state.tools import change, store
from ansible.module_utils.slurm_reservations import (
    ENDING,
    OptionError,
    conflict,
    creation,
    differences,
    fields_of,
    flatten,
    lines_of,
    recurrence,
    times,
)

DOCUMENTATION = r"""
module: slurm_reservations
author: the clusterctl authors
short_description: Converge reservations in Slurm
description:
  - Creates and updates the listed reservations, and deletes those that an earlier call listed. Others are never
    changed, nor are options that are not listed, except those that an earlier call listed.
  - A reservation whose end is past is not created. The times of one that recurs are compared by the clock.
  - Reads with C(scontrol) once and writes only differences. Must run on the head, as root.
options:
  reservations:
    description: Reservations, created in this order.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the reservation.
        type: str
        required: true
      options:
        description: Options for scontrol, such as C(StartTime) and C(Nodes). Nodes are names of workers, or C(ALL).
        type: dict
        required: true
  record:
    description: File with the reservations of the last call, so that those that are no longer listed can be deleted.
    type: path
    default: /var/lib/clusterctl/slurm-reservations.json
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Reserve two nodes for a course
  slurm_reservations:
    reservations:
      - name: course
        options: {StartTime: "2027-03-01T08:00", Duration: 600, Nodes: [gpu01, gpu02], Accounts: [students]}
"""

RETURN = r"""
commands:
  description: The C(scontrol) commands that were needed, without the program's name.
  type: list
  elements: list
  returned: always
changes:
  description: The same as data, as of node_state.
  type: list
  elements: dict
  returned: always
notes:
  description: What Slurm refused because nodes or reservations are in use, and reservations that last too long.
  type: list
  elements: str
  returned: always
"""

KIND = "Slurm reservation"
RECORD = "/var/lib/clusterctl/slurm-reservations.json"
# Source: src/common/slurm_errno.c and update_resv in src/slurmctld/reservation.c of github.com/SchedMD/slurm.
IN_USE = (
    "Requested nodes are busy",
    "Requested node configuration is not available",
    "Requested reservation is in use",
    "Requested reservation overlaps with another reservation",
    "Reservation update rejected because of JobId",
)


class ScontrolError(Exception):
    """scontrol failed; the text is its output."""


class Step(NamedTuple):
    """What a reservation needs: the change, for people, and the commands, of which each needs the one before."""

    name: str
    action: str
    commands: list[list[str]]


def scontrol(*arguments: str) -> str:
    """Run scontrol and return its output, with times as seconds since 1970."""
    environment = {**os.environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
    argv = ["scontrol", *arguments]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=environment
        )
    except OSError as error:
        raise ScontrolError(f"cannot run scontrol: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise ScontrolError(f"scontrol {' '.join(arguments)}: {'; '.join(line.strip() for line in said[-5:])}")
    return done.stdout


def show() -> dict[str, str]:
    """Return the printed line of each reservation by its name."""
    lines: dict[str, str] = lines_of(scontrol("--oneliner", "show", "reservations"))
    return lines


def plan(wanted: dict[str, dict[str, str]], lines: dict[str, str], recorded: dict[str, Any], now: float) -> list[Step]:
    """Return what is to be done. Those that are no longer listed are first, as their nodes may be reserved again."""
    gone = sorted(name for name in recorded if name not in wanted and name in lines)
    steps = [Step(name, "removed", [["delete", of(name)]]) for name in gone]
    for name, flat in wanted.items():
        new, before = creation(flat, now), recorded.get(name, {})
        if new is None or (name not in lines and has_ended_early(flat, before, now)):
            continue
        create = ["create", of(name), *new]
        if name not in lines:
            steps.append(Step(name, "created", [create]))
            continue
        needed, must_be_new = differences(flat, fields_of(lines[name]), before.get("options", {}), now)
        if must_be_new:
            steps.append(Step(name, "changed", [["delete", of(name)], create]))
        elif needed:
            steps.append(Step(name, "changed", [["update", of(name), *needed]]))
    return steps


def of(name: str) -> str:
    """Return the word that selects a reservation."""
    return f"reservation={name}"


def has_ended_early(flat: dict[str, str], before: dict[str, Any], now: float) -> bool:
    """Return whether Slurm or a user may have ended a reservation that the last run left, as its flags permit."""
    was_left = bool(before.get("left")) and before["options"] == flat
    return was_left and bool(ENDING.intersection(flat.get("Flags", "").split(","))) and times(flat)[0] <= now


def too_long(wanted: dict[str, dict[str, str]], lines: dict[str, str], now: float) -> list[str]:
    """Return notes on reservations that have ended in the inventory, but not in Slurm."""
    ended = [name for name, flat in wanted.items() if name in lines and creation(flat, now) is None]
    return [
        f"reservation {name} has ended in the inventory, but not in Slurm; to end it: scontrol delete {of(name)}"
        for name in ended
        if int(fields_of(lines[name])["EndTime"]) > now
    ]


def run(steps: list[Step], notes: list[str]) -> list[tuple[Step, list[list[str]]]]:
    """Run the commands and return those that Slurm accepted. What it refuses while nodes are in use becomes a note."""
    done = []
    for step in steps:
        accepted = []
        for command in step.commands:
            try:
                scontrol(*command)
            except ScontrolError as error:
                reason = next((text for text in IN_USE if text in str(error)), None)
                if reason is None:
                    raise
                notes.append(f"Slurm did not {command[0]} reservation {step.name}: {reason}; bootstrap again later")
                break
            accepted.append(command)
        if accepted:
            done.append((step, accepted))
    return done


def change_of(step: Step, commands: list[list[str]]) -> Any:
    """Return a step as a change for Ansible's result: of a new one instead of an old one maybe only its deletion."""
    action = step.action if len(commands) == len(step.commands) else "removed"
    return change(KIND, step.name, action, ", ".join(commands[-1][2:]))


def remembered(
    wanted: dict[str, dict[str, str]], lines: dict[str, str], recorded: dict[str, Any], changed: set[str]
) -> dict[str, Any]:
    """Return the new record: by name the options, the end, and the line as the last change has left it."""
    found = {name: one for name, one in recorded.items() if name not in wanted and name in lines}
    for name, flat in wanted.items():
        before = recorded.get(name, {})
        if name in lines or before:
            left = lines.get(name) if name in changed or not before.get("left") else before["left"]
            end = None if recurrence(flat.get("Flags", "").split(",")) else times(flat)[1]
            found[name] = {"options": flat, "end": end, "left": left}
    return found


def keep(record: Path, content: dict[str, Any]) -> None:
    """Store the record; without reservations there is none."""
    if content:
        store(record, json.dumps(content, indent=1, sort_keys=True).encode())
    elif record.exists():
        record.unlink()


def read_wanted(module: AnsibleModule) -> dict[str, dict[str, str]]:
    """Return the listed options as text by name."""
    wanted = {}
    for one in module.params["reservations"]:
        try:
            wanted[one["name"]] = flatten(one["options"])
        except OptionError as error:
            module.fail_json(msg=f"reservation {one['name']}: {error}")
        if problem := conflict(wanted[one["name"]]):
            module.fail_json(msg=f"reservation {one['name']}: {problem}")
    return wanted


def main() -> None:
    """Ansible's entry point."""
    os.environ.pop("TZ", None)  # times are the head's local time, not that of who logs in
    time.tzset()
    one = {"name": {"type": "str", "required": True}, "options": {"type": "dict", "required": True}}
    module = AnsibleModule(
        argument_spec={
            "reservations": {"type": "list", "elements": "dict", "default": [], "options": one},
            "record": {"type": "path", "default": RECORD},
        },
        supports_check_mode=True,
    )
    wanted, record, now = read_wanted(module), Path(module.params["record"]), time.time()
    recorded = json.loads(record.read_text()) if record.exists() else {}
    lines, notes = {}, []
    try:
        lines = show() if wanted or recorded else {}
    except ScontrolError as error:
        if not module.check_mode:
            module.fail_json(msg=str(error))
        # In a dry run on a new head there is no Slurm yet, so everything listed would be created.
    notes += too_long(wanted, lines, now)
    steps = plan(wanted, lines, recorded, now)
    done = [(step, step.commands) for step in steps]
    if not module.check_mode:
        # If the run ends here, the next one knows what this one may have created.
        new = {
            step.name: {"options": wanted[step.name], "end": None, "left": None}
            for step in steps
            if step.name in wanted
        }
        if new.keys() - recorded.keys():
            keep(record, {**new, **recorded})
        try:
            done = run(steps, notes)
            after = show() if done else lines
        except ScontrolError as error:
            module.fail_json(msg=str(error))
        known = remembered(wanted, after, recorded, {step.name for step, _ in done})
        if known != recorded or steps:
            keep(record, known)
    commands = [command for _, accepted in done for command in accepted]
    text = "".join(f"scontrol {' '.join(command)}\n" for command in commands)
    changes = [change_of(step, accepted) for step, accepted in done]
    diff = {"before": "", "after": text}
    module.exit_json(changed=bool(commands), commands=commands, changes=changes, notes=notes, diff=diff)


if __name__ == "__main__":
    main()
