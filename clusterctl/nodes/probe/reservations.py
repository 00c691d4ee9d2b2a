"""What differs of the reservations in Slurm from what the last run has left: see state.py."""

import json
import os
import re
import time
from typing import Dict, Optional

from clusterctl.nodes.probe.common import Facts, Questions, read

_RECORD = "/var/lib/clusterctl/slurm-reservations.json"  # of module slurm_reservations
_COMMAND = "LC_ALL=C SLURM_TIME_FORMAT=%s scontrol --oneliner show reservations"


def reservation_questions() -> Questions:
    """Return what to ask Slurm about reservations that a run has made."""
    return [("slurmctld does not answer", _COMMAND, changed_reservations)] if os.path.exists(_RECORD) else []


def changed_reservations(printed: str) -> Facts:
    """Return the recorded reservations that differ from what the last run has left, except those that have ended."""
    found = {}  # type: Dict[str, Dict[str, str]]
    for fields in map(lasting, printed.splitlines()):
        found[fields.get("ReservationName", "")] = fields
    recorded = json.loads(read(_RECORD, "{}"))
    has_changed = [name for name in sorted(recorded) if _has_changed(recorded[name], found.get(name))]
    return {"reservations": [[name, found.get(name)] for name in has_changed]}


def _has_changed(recorded: Facts, fields: Optional[Dict[str, str]]) -> bool:
    if fields is None and recorded["end"] is not None and recorded["end"] <= time.time():
        return False
    return fields != (lasting(recorded["left"]) if recorded["left"] else None)


def lasting(line: str) -> Dict[str, str]:
    """Return the fields of a printed reservation without those that Slurm changes by itself."""
    fields = dict(re.findall(r"(\w+)=(\S*)", line))
    if "ReservationName" not in fields:
        return {}  # there are none
    flags = fields["Flags"].split(",")
    moving = {"State", "NodeName", "CoreIDs"}
    if {"REPLACE", "REPLACE_DOWN"}.intersection(flags) or "SPEC_NODES" not in flags:
        moving.add("Nodes")  # Slurm replaces nodes that are down
    if {"DAILY", "HOURLY", "WEEKDAY", "WEEKEND", "WEEKLY"}.intersection(flags):
        part = "%M:%S" if "HOURLY" in flags else "%H:%M:%S"
        for name in ("StartTime", "EndTime"):
            fields[name] = time.strftime(part, time.localtime(int(fields[name])))
        moving.add("Duration")  # differs over a change of the clock
    return {name: value for name, value in fields.items() if name not in moving}
