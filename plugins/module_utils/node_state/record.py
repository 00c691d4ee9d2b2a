"""The records of node_state: each item's current state, and its state before any scope changed it.

They are below STORE, readable only for root. `state/<scope>.json` is a scope's record; `original/` has the replaced
files. `pending` in a record has the changes that are not applied yet (a restart, an on_change command). It is written
before the node is changed, so that the next run completes the changes of a killed one.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import urllib.parse
from pathlib import Path

from ansible.module_utils.node_state.tools import STORE, NodeError, store
from ansible.module_utils.node_state.watch import Watch

SCHEMA = 1


def original(path):
    """Return the path of the stored original of `path`."""
    name = urllib.parse.quote(path, safe="")
    return STORE / "original" / (name if len(name) <= 200 else hashlib.sha256(name.encode()).hexdigest())


def record_path(scope):
    return STORE / "state" / f"{scope}.json"


def recorded_scopes():
    return sorted(path.stem for path in STORE.glob("state/*.json"))


def load_record(scope):
    path = record_path(scope)
    try:
        record = json.loads(path.read_bytes())
        if record["schema"] > SCHEMA:
            raise NodeError(f"{path} was written by a newer clusterctl (schema {record['schema']}); use that one")
        return {"schema": SCHEMA, "items": dict(record["items"]), **{k: list(record[k]) for k in ("pending", "pulled")}}
    except FileNotFoundError:
        return {"schema": SCHEMA, "items": {}, "pending": [], "pulled": []}
    except (ValueError, KeyError, TypeError):
        raise NodeError(
            f"{path} is not a valid record. Move it away and run again: the node is then recorded again, "
            "but its state from before clusterctl cannot be restored any more."
        ) from None


class Call:
    """One call: its scope's record, its changes, and its pending changes."""

    def __init__(self, scope, check=False, want_diff=False, record_key=None, verbose=False):
        self.scope, self.check, self.want_diff, self.record_key = scope, check, want_diff, record_key
        self.verbose = verbose
        self.changes, self.notes, self.diffs, self.versions = [], [], [], {}
        self.named = set()  # the items of this call
        self.watch = Watch()
        self.edited = []  # paths that differ only because they were changed by hand: their record has the wanted state

    def open(self):
        """Read the scope's record."""
        self.record = load_record(self.scope)
        self.pending = self.record["pending"]  # "/path" or "package:name": changed, but not applied yet
        self.stored = json.dumps(self.record, sort_keys=True)

    def result(self):
        found = {"changed": bool(self.changes), "changes": self.changes, "notes": self.notes, "versions": self.versions}
        return {**found, "edited": self.edited, **({"diff": self.diffs} if self.want_diff else {})}

    @functools.cached_property
    def others(self):
        """Return the items of all other scopes: two roles may have the same package or directory."""
        records = [load_record(scope) for scope in recorded_scopes() if scope != self.scope]
        return {key: item for record in records for key, item in record["items"].items()}

    @functools.cached_property
    def pulled(self):
        """Return the dependencies that were installed with packages of any scope and that no other scope has."""
        names = {name for scope in recorded_scopes() for name in load_record(scope)["pulled"]}
        return {name for name in names if "package:" + name not in self.others}

    def note(self, key, state, **extra):
        """Record the current state, and the first time also the original state."""
        self.named.add(key)
        items = self.record["items"]
        state = self.recordable(state, {**items.get(key, {}), **extra}.get("secret"))
        if key not in items:
            items[key] = {"before": self.others.get(key, {"before": state})["before"]}
        items[key].update(now=state, **extra)
        items[key].pop("former", None)

    def mark_former(self):
        """Mark what this call has not named: the role does not describe it any more. It is kept to be undone.

        A call that makes a file also records the missing directories above it.
        """
        paths = [Path(name) for label, _, name in (key.partition(":") for key in self.named) if name.startswith("/")]
        above = {f"directory:{parent}" for path in paths for parent in path.parents}
        for key in self.record["items"].keys() - self.named - above:
            self.record["items"][key]["former"] = True

    def former_packages(self):
        """Return the recorded packages that were not there before the scope, and that this call does not have."""
        others = [(key, item) for key, item in self.record["items"].items() if key not in self.named]
        found = [(key, item) for key, item in others if key.startswith("package:")]
        return [key.split(":", 1)[1] for key, item in found if not item["before"]["version"]]

    def forget_removed(self, states):
        """Delete packages from the record that are not there any more, so that nothing is left to undo or to miss."""
        for name in [name for name, state in states.items() if not state["version"]]:
            del self.record["items"]["package:" + name]

    def save(self, union=False):
        """Write the record if it has changed since the last read or write.

        With `union`, delete items that this call has not named and another scope has, so that undoing that scope
        removes them.
        """
        if union:
            for key in [key for key in self.record["items"] if key not in self.named and key in self.others]:
                del self.record["items"][key]
        text = json.dumps(self.record, sort_keys=True)
        if text != self.stored:
            store(record_path(self.scope), json.dumps(self.record, indent=1, sort_keys=True).encode() + b"\n")
            self.stored = text

    def recordable(self, state, secret):
        """Return a state for storage: the hash of a secret is keyed, or left out without a key."""
        if not secret or "hash" not in state:
            return state
        if not self.record_key:
            return {**state, "hash": None}
        key = self.record_key.encode()
        key_id = hashlib.sha256(b"key id " + key).hexdigest()[:8]
        return {**state, "hash": f"hmac-{key_id}:{hmac.new(key, state['hash'].encode(), 'sha256').hexdigest()}"}
