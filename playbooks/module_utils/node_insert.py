"""Lines that a role inserts into a file which is somebody else's, such as a distribution's rules of PAM."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from ansible.module_utils.node_items import Entry
from ansible.module_utils.node_tools import NodeError, about


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


def inserted(scope, content, lines, after, **_):
    """The content with the scope's lines behind the last line that matches, and nowhere else."""
    begin, end = (f"# {word} clusterctl {scope}\n" for word in ("BEGIN", "END"))
    # As bytes, for what surrounds the lines may be in any encoding.
    content = re.sub(re.escape(begin.encode()) + b"(?s:.*?)" + re.escape(end.encode()), b"", content)
    if not lines:
        return content
    found = list(re.finditer(after.encode(), content, re.MULTILINE))
    if not found:
        raise NodeError(f"no line is like {after}, so nothing was inserted")
    rest = content.find(b"\n", found[-1].end()) + 1
    before, behind = (content[:rest], content[rest:]) if rest else (content + b"\n", b"")
    return before + (begin + lines + end).encode() + behind
