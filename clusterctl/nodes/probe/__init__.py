"""What runs on a node at contact: it finds hardware and what a run needs to know, changes nothing, and prints JSON.

The text of the parts goes over SSH to `python3 -` as one program, compressed. So each part uses the standard library
alone, as Python 3.6 has it, and imports nothing but other parts, whose names are then the program's own. hardware.py
and preflight.py evaluate what it prints.
"""

import base64
import re
import zlib
from functools import cache
from pathlib import Path
from typing import Any

# In the order in which they need each other.
_PARTS = (
    *("common", "mounts", "gpus", "machine", "packages", "services", "people", "drift", "kubernetes", "reservations"),
    *("state", "prometheus", "main"),
)
_OF_STATE = {"kubernetes", "reservations", "state"}  # needed with option `state` alone
# Imports of other parts.
_OWN = re.compile(r"^from clusterctl\.[^\n(]*(?:\([^)]*\)|[^\n]*)\n", re.MULTILINE)


@cache
def text(*, state: bool = True) -> str:
    """Return the text of the program, without its options; without `state` it cannot answer that one."""
    parts = [part for part in _PARTS if state or part not in _OF_STATE]
    texts = [Path(__file__).with_name(f"{part}.py").read_text(encoding="utf-8") for part in parts]
    return _OWN.sub("", "\n".join(texts))


@cache
def packed(source: str) -> str:
    """Return a source compressed, in base64: `status` sends it to all nodes over the same uplink."""
    return base64.b64encode(zlib.compress(source.encode(), 9)).decode()


def program(options: dict[str, Any], function: str = "main") -> str:
    """Return the program that answers with these options (see main.main), or calls another function of a part."""
    unpacked = f'zlib.decompress(base64.b64decode("{packed(text(state=bool(options.get("state"))))}"))'
    return f'import base64, zlib\nexec(compile({unpacked}, "probe", "exec"))\n{function}({options!r})\n'
