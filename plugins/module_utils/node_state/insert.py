"""Insert a role's lines into a file that is not managed by clusterctl, for example a distribution's PAM rules."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from ansible.module_utils.node_state.items import Entry
from ansible.module_utils.node_state.tools import NodeError, about


def entries(scope, items):
    """Return the wanted files; for insertions, the current content with the lines."""
    files = []
    for item in items:
        insert = item.pop("insert", None)
        if insert and insert["optional"] and not Path(item["name"]).exists():
            continue
        if insert:
            with about("file", item["name"]):
                item["data"] = base64.b64encode(inserted(scope, Path(item["name"]).read_bytes(), **insert)).decode()
        files.append(Entry(**item))
    return files


def inserted(scope, content, lines, before, **_):
    """Return the content with the scope's lines before the first matching line, and only there."""
    begin, end = (f"# {word} clusterctl {scope}\n" for word in ("BEGIN", "END"))
    # As bytes, because the file may have any encoding.
    content = re.sub(re.escape(begin.encode()) + b"(?s:.*?)" + re.escape(end.encode()), b"", content)
    if not lines:
        return content
    found = re.search(before.encode(), content, re.MULTILINE)
    if not found:
        raise NodeError(f"no line matches {before}, so nothing was inserted")
    return content[: found.start()] + (begin + lines + end).encode() + content[found.start() :]


def earlier(scope, path, kept):
    """Return a file's former content: the current one without the scope's lines, or else the stored original."""
    now = path.read_bytes() if path.is_file() else b""
    without = inserted(scope, now, "", "")
    return without if without != now else kept.read_bytes()
