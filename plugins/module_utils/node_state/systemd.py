"""What node_state asks systemd besides the units of a call: whether it must reload, whether daemons stay up."""

from __future__ import annotations

import re
import time

from ansible.module_utils.node_state.items import Units
from ansible.module_utils.node_state.packages import reload_pending
from ansible.module_utils.node_state.tools import NodeError, run

UNIT_FOLDERS = ("/etc/systemd/", "/usr/lib/systemd/", "/lib/systemd/", "/usr/local/lib/systemd/", "/run/systemd/")


def reload_units(call):
    """Run daemon-reload where systemd needs it for unit files that changed, now or in a killed run.

    It reads the files of a new unit by itself, and then lists them. Whether files have changed it does not always know:
    NeedDaemonReload misses a new directory of drop-ins before release 257, and a file with an older time.
    """
    if call.check:
        return
    reload_pending(call.notes)
    files = {trigger for trigger in call.pending if trigger.startswith(UNIT_FOLDERS)}
    created = {one["name"] for one in call.changes if (one["kind"], one["action"]) == ("file", "created")}
    names = sorted({unit_of(path) for path in files} - {""})
    if files and not (files <= created and files <= {path for unit in units_files(names) for path in unit}):
        run("systemctl", "daemon-reload")


def units_files(names):
    """Return the files of each unit that systemd has read."""
    found = Units(patient=False).show(names).values()
    return [[unit["FragmentPath"], *unit["DropInPaths"].split()] for unit in found]


def unit_of(path):
    """Return the one unit that a file is about; "" where it may be about several: templates, prefixes, links."""
    name = re.sub(r"^.*?/system/", "", path).split("/")[0].removesuffix(".d")
    one = re.fullmatch(r"[A-Za-z0-9:_.\\@-]*[^@-]\.(service|socket|timer|mount|path|slice|target)", name)
    return name if one and "/system/" in path else ""


def stay_up(watch):
    """Wait until the time of a watch is over. Raises NodeError if a daemon has ended, also if it was started again."""
    if not watch.first:
        return
    time.sleep(max(0.0, watch.until - time.monotonic()))
    units = Units()
    for name, unit in units.insist_up(list(watch.first), "did not stay up").items():
        was = {key: watch.first[name].get(key) for key in ("NRestarts", "InvocationID")}
        if any(value not in (None, unit.get(key)) for key, value in was.items()):
            raise NodeError(f"unit {name} did not stay up: {units.last_words(name, unit)}")
    watch.first = {}
