"""Compare a node with its records, without changing anything.

Used by node_state with `state: probe`, and by `clusterctl status`, which sends these files with its probe.
"""

from __future__ import annotations

import re

from ansible.module_utils.node_state.items import Packages, Paths, Units, difference
from ansible.module_utils.node_state.kernel import Settings
from ansible.module_utils.node_state.record import load_record, recorded_scopes


def kind_of_hash(state):
    return str(state.get("hash")).split(":")[0]


def compare(call, manager):
    """Compare every recorded scope with the node: ([{scope, kind, name, what, old, new}], {package: its version}).

    `what` is for people; `old` and `new` are a package's versions, or empty.

    Each kind is read once for all scopes: one call of systemd or the package manager costs more than its output.
    """
    records = {scope: load_record(scope) for scope in recorded_scopes()}
    described = {
        scope: {key: item for key, item in record["items"].items() if not item.get("former")}
        for scope, record in records.items()
    }
    keys = sorted({key for items in described.values() for key in items})
    kinds = [*map(Paths, ("file", "repository", "directory")), Settings(), Units(patient=False)]
    kinds += [Packages(manager())] if any(key.startswith("package:") for key in keys) else []
    states = {}
    for kind in kinds:
        names = [key.split(":", 1)[1] for key in keys if key.startswith(kind.label + ":")]
        found = kind.read([kind.item(name) for name in names]) if names else {}
        states.update({f"{kind.label}:{name}": state for name, state in found.items()})
    drift = []
    for scope, record in records.items():
        parts = [("pending", name, "a run ended before this change was applied", "", "") for name in record["pending"]]
        for label in [kind.label for kind in kinds]:
            for key in sorted(key for key in described[scope] if key.startswith(label + ":")):
                what = words(label, described[scope][key], states[key], call)
                moved = versions(described[scope][key], states[key]) if label == "package" else ("", "")
                parts += [(label, key.split(":", 1)[1], what, *moved)] if what else []
        drift += [
            {"scope": scope, "kind": kind, "name": name, "what": what, "old": old, "new": new}
            for kind, name, what, old, new in parts
        ]
    packages = {key.split(":", 1)[1]: state["version"] for key, state in states.items() if key.startswith("package:")}
    return drift, {name: version for name, version in packages.items() if version}


def words(label, recorded, state, call):
    """Return the differences of an item's state from the record as text; empty if there are none."""
    was, now = recorded["now"], call.recordable(state, recorded.get("secret"))
    if kind_of_hash(now) != kind_of_hash(was):  # recorded with another key: the hashes cannot be compared
        now = {**now, "hash": was.get("hash")}
    if label == "package":
        return package_words(was, now)
    if label == "unit":
        return unit_words(was, now)
    if label == "sysctl":
        return "" if was == now else f"{now['value'] or 'absent'}, was {was['value'] or 'absent'}"
    return re.sub(r"\bcontent$", "edited", difference(was, now))


def versions(recorded, state):
    """Return the recorded and the current version of a package; empty if it is not installed."""
    return recorded["now"]["version"] or "", state["version"] or ""


def package_words(was, now):
    parts = []
    if was["version"] != now["version"]:
        moved = f"version {now['version']}, was {was['version']}"
        parts.append("removed" if not now["version"] else moved if was["version"] else f"installed ({now['version']})")
    if was["held"] != now["held"] and now["version"]:
        parts.append("held" if now["held"] else "no longer held")
    return ", ".join(parts)


def unit_words(was, now):
    parts = []
    if was["enablement"] != now["enablement"]:
        parts.append(f"{now['enablement'] or 'unknown to systemd'}, was {was['enablement'] or 'unknown'}")
    if was["state"] != now["state"]:
        parts.append("running" if now["state"] == "up" else "not running")
    return "; ".join(parts)
