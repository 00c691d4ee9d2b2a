"""Lines that a role inserts into a file which is somebody else's, such as a distribution's rules of PAM."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from ansible.module_utils.node_state.items import Entry
from ansible.module_utils.node_state.tools import NodeError, about


def entries(scope, items):
    """The files as they are to be; into those of somebody else lines are inserted as they are now."""
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
    """The content with the scope's lines before the first line that matches, and nowhere else."""
    begin, end = (f"# {word} clusterctl {scope}\n" for word in ("BEGIN", "END"))
    # As bytes, for what surrounds the lines may be in any encoding.
    content = re.sub(re.escape(begin.encode()) + b"(?s:.*?)" + re.escape(end.encode()), b"", content)
    if not lines:
        return content
    found = re.search(before.encode(), content, re.MULTILINE)
    if not found:
        raise NodeError(f"no line is like {before}, so nothing was inserted")
    return content[: found.start()] + (begin + lines + end).encode() + content[found.start() :]


def earlier(scope, path, kept):
    """What a file was before: without the scope's lines, as others have changed it since; or else what was kept."""
    now = path.read_bytes() if path.is_file() else b""
    without = inserted(scope, now, "", "")
    return without if without != now else kept.read_bytes()
