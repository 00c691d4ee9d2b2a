"""The state of a path before any scope changed it."""

from __future__ import annotations

import base64
from pathlib import Path

from ansible.module_utils.node_state.insert import earlier
from ansible.module_utils.node_state.items import Entry
from ansible.module_utils.node_state.record import original


def before_path(call, name, item):
    before = item["before"]
    path = Entry(name, before["type"], target=before.get("target", ""), secret=item["secret"])
    if before["type"] in ("file", "directory"):
        path.owner, path.group, path.mode = str(before["uid"]), str(before["gid"]), before["mode"]
    if before["type"] == "file":
        kept = original(name) if original(name).exists() else Path(name)  # never replaced: its own original
        path.data = base64.b64encode(earlier(call.scope, Path(name), kept)).decode()
    return path


def restored(call, files):
    """Return the files, and the names of those to restore, which then are no longer in the record.

    A file without a record, or in that of another scope too, is left as it is.
    """
    kept, names = [], []
    for item in files:
        known = call.record["items"].get("file:" + item["name"]) if item.get("type") == "restored" else None
        if known and "file:" + item["name"] not in call.others:
            was = before_path(call, item["name"], known)
            keys = ("name", "type", "data", "target", "owner", "group", "mode", "secret")
            kept.append({**{key: getattr(was, key) for key in keys}, "before_packages": item["before_packages"]})
            names.append(item["name"])
        elif item.get("type") != "restored":
            kept.append(item)
    return kept, names
