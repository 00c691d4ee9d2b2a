#!/usr/bin/python
"""Ansible module: upgrade all packages of a node but those of our roles, and tell whether it has to be rebooted."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_packages import package_manager
from ansible.module_utils.node_record import load_record, recorded_scopes
from ansible.module_utils.node_tools import RUN, NodeError, clean, exclusive, numbers

DOCUMENTATION = r"""
module: os_upgrade
author: the clusterctl authors
short_description: Upgrade a node's distribution within its release
description:
  - Moves every package to the newest version of the package sources, and installs what those need. Nothing is removed.
  - The packages that clusterctl's roles have recorded, and all others of the same source, stay at their version.
options: {}
attributes:
  check_mode: {support: full, description: Says what would move. The index of the package sources is refreshed.}
"""

EXAMPLES = r"""
- name: Upgrade the operating system
  os_upgrade:
"""

RETURN = r"""
changes:
  description: The packages that moved or came, or would in check mode; mappings with kind, name and what.
  type: list
  returned: always
notes:
  description: What is worth knowing and no change.
  type: list
  returned: always
reboot:
  description: Why the node has to be rebooted for what is installed; empty where it has not to be.
  type: str
  returned: always
"""

BOOT = Path("/boot")


def reason(manager: Any, moves: Iterable[str]) -> str:
    """Return why the node has to be rebooted: for what is installed, or would be; empty where it has not to be."""
    if manager.wants_reboot():
        return "the distribution asks for it"
    running = os.uname().release
    installed = [path.name.split("-", 1)[1] for path in BOOT.glob("vmlinuz-[1-9]*")]
    newest = max(installed, key=numbers, default=running)
    if numbers(newest) > numbers(running):
        return f"Linux {newest} is installed, and {running} runs"
    coming = [name for name in moves if re.match(r"linux-image-\d|kernel-core$", name)]
    return f"{coming[0]} comes" if coming else ""


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    os.umask(0o022)
    notes: list[str] = []
    try:
        items = [key for scope in recorded_scopes() for key in load_record(scope)["items"]]
        kept = sorted({key.split(":", 1)[1] for key in items if key.startswith("package:")})
        manager = package_manager("auto", notes)
        with contextlib.nullcontext() if module.check_mode else exclusive(RUN / "node_state.lock", notes):
            moves = manager.moves(kept, module.check_mode)
            if moves and not module.check_mode:
                manager.move(kept)
            reboot = reason(manager, moves)
    except NodeError as error:
        module.fail_json(msg=clean(str(error)), notes=notes)
    changes = [
        {"kind": "package", "name": name, "what": f"version {new}, was {old}" if old else f"installed ({new})"}
        for name, (new, old) in moves.items()
    ]
    module.exit_json(changed=bool(moves), changes=changes, notes=notes, reboot=reboot)


if __name__ == "__main__":
    main()
