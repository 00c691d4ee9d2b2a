"""What runs on a node at contact: it finds hardware and what a run needs to know, changes nothing, and prints JSON.

The text of the parts goes over SSH to `python3 -` as one program. So each part uses the standard library alone, as
Python 3.6 has it, and imports nothing but other parts, whose names are then the program's own. hardware.py and
preflight.py evaluate what it prints.
"""

import re
from pathlib import Path
from typing import Any

# In the order in which they need each other.
_PARTS = ("common", "gpus", "machine", "packages", "services", "drift", "main")
# Imports of other parts.
_OWN = re.compile(r"^from clusterctl\.[^\n(]*(?:\([^)]*\)|[^\n]*)\n", re.MULTILINE)


def program(options: dict[str, Any]) -> str:
    """Return the text of the program that answers with these options (see main.main)."""
    texts = [Path(__file__).with_name(f"{part}.py").read_text(encoding="utf-8") for part in _PARTS]
    return _OWN.sub("", "\n".join(texts)) + f"\n\nmain({options!r})\n"
