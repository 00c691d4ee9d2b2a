"""What a call of node_state remembers: of every item what is there now, and what was before any scope touched it.

All of it lies below STORE, for root alone. `state/<scope>.json` is one scope's record; `original/` keeps the files that
were replaced. `pending` in a record names each change that has not taken effect yet (a restart, an on_change command):
it is written before the node is touched, so that the next run finishes what a killed one began.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import urllib.parse

from ansible.module_utils.node_state.tools import STORE, NodeError, store

SCHEMA = 1


def original(path):
    """Where the file that first lay at `path` is kept."""
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
            f"{path} is not readable as recorded state. Move it away and run again: the node is recorded anew then, "
            "but what was there before clusterctl came can no longer be restored."
        ) from None


class Call:
    """One call: its scope's record, what it changed, and what it must still bring into effect."""

    def __init__(self, scope, check=False, want_diff=False, record_key=None, verbose=False):
        self.scope, self.check, self.want_diff, self.record_key = scope, check, want_diff, record_key
        self.verbose = verbose
        self.changes, self.notes, self.diffs, self.versions = [], [], [], {}

    def open(self):
        """Read the scope's record."""
        self.record = load_record(self.scope)
        self.pending = self.record["pending"]  # "/path" or "package:name": changed, and not in effect yet
        self.stored = json.dumps(self.record, sort_keys=True)

    def result(self):
        told = {"changed": bool(self.changes), "changes": self.changes, "notes": self.notes, "versions": self.versions}
        return {**told, **({"diff": self.diffs} if self.want_diff else {}), "invocation": {}}

    @functools.cached_property
    def others(self):
        """The items of all other scopes: two roles may name the same package or folder."""
        records = [load_record(scope) for scope in recorded_scopes() if scope != self.scope]
        return {key: item for record in records for key, item in record["items"].items()}

    @functools.cached_property
    def pulled(self):
        """The packages that came along with those of any scope, all roles' included, and that no other scope names."""
        names = {name for scope in recorded_scopes() for name in load_record(scope)["pulled"]}
        return {name for name in names if "package:" + name not in self.others}

    def note(self, key, state, **extra):
        """Note what is there, and the first time also that it was there before any scope touched it."""
        items = self.record["items"]
        state = self.recordable(state, {**items.get(key, {}), **extra}.get("secret"))
        if key not in items:
            items[key] = {"before": self.others.get(key, {"before": state})["before"]}
        items[key].update(now=state, **extra)

    def save(self, packages=None):
        """Write the record, if it is not what was read or written last.

        With `packages` it forgets all others that another scope has, so that undoing that scope removes them.
        """
        if packages is not None:
            mine = [key for key in self.record["items"] if key.startswith("package:") and key in self.others]
            for key in mine:
                if key[8:] not in packages:
                    del self.record["items"][key]
        text = json.dumps(self.record, sort_keys=True)
        if text != self.stored:
            store(record_path(self.scope), json.dumps(self.record, indent=1, sort_keys=True).encode() + b"\n")
            self.stored = text

    def recordable(self, state, secret):
        """A state as it may be stored: the hash of a secret keyed, or none without a key."""
        if not secret or "hash" not in state:
            return state
        if not self.record_key:
            return {**state, "hash": None}
        key = self.record_key.encode()
        key_id = hashlib.sha256(b"key id " + key).hexdigest()[:8]
        return {**state, "hash": f"hmac-{key_id}:{hmac.new(key, state['hash'].encode(), 'sha256').hexdigest()}"}
