"""Kernel settings, a kind of item of node_state."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.node_state.items import Kind
from ansible.module_utils.node_state.tools import about


@dataclass
class Setting:
    name: str
    value: str = ""

    @property
    def path(self):
        return Path("/proc/sys", self.name if "/" in self.name else self.name.replace(".", "/"))


class Settings(Kind):
    """A state is the kernel's current value with single spaces, or None if it has no such setting."""

    label = "sysctl"
    item = Setting

    def read(self, items):
        found = {item.name: {"value": None} for item in items}
        for item in items:
            with contextlib.suppress(OSError):
                found[item.name]["value"] = " ".join(item.path.read_text().split())
        return found

    def beside(self, item):
        return {"wanted": item.value}

    def difference(self, call, item, state):
        if state["value"] == item.value:
            return ()
        if os.access(item.path, os.W_OK):
            return "changed", f"{item.value}, was {state['value']}", state["value"], item.value
        known = call.record["items"].get(f"{self.label}:{item.name}", {})
        if (known.get("now"), known.get("wanted")) == (state, item.value) and not call.verbose:
            return ()  # reported when the state was first seen
        begin, parts = (
            "kernel settings that could not be changed: ",
            f"{item.name} is {state['value'] or 'absent'}, not {item.value}",
        )
        if call.notes and call.notes[-1].startswith(begin):
            call.notes[-1] += "; " + parts
        else:
            call.notes.append(begin + parts)
        return ()

    def apply(self, call, plan, states):
        for name, item in plan.items():
            with about("sysctl", name):
                item.path.write_text(item.value)
