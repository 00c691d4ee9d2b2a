#!/usr/bin/python
"""Ansible module: upgrade all packages of a node except those of clusterctl's roles; report a needed reboot."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_state.packages import moved, package_manager
from ansible.module_utils.node_state.record import load_record, recorded_scopes
from ansible.module_utils.node_state.tools import STORE, NodeError, alone_on_node, change, clean, numbers, run, store

DOCUMENTATION = r"""
module: os_upgrade
author: the clusterctl authors
short_description: Upgrade a node's distribution within its release
description:
  - Upgrades every package to the newest version of the package sources, and installs new dependencies.
  - Removes only packages that a new package replaces and, with dnf, kernels beyond the number that it keeps.
  - Packages that clusterctl's roles have recorded, and all others of the same source, keep their version.
options:
  packages:
    description: Whether to upgrade packages. If false, only check whether a reboot is needed.
    type: bool
    default: true
  package_manager:
    description: V(auto) uses the distribution's.
    type: str
    choices: [auto, apt, dnf]
    default: auto
attributes:
  check_mode: {support: full, description: Reports the upgrades. The index of the package sources is refreshed.}
"""

EXAMPLES = r"""
- name: Upgrade the operating system
  os_upgrade:
"""

RETURN = r"""
changes:
  description: Upgraded, installed and removed packages, or those planned; mappings with kind, name and what.
  type: list
  returned: always
notes:
  description: Notes that are not changes.
  type: list
  returned: always
reboot:
  description: Why the node must be rebooted; empty if it must not.
  type: str
  returned: always
"""

KERNEL = re.compile(r"linux-image-\d|kernel(-\w+)*-core$")
BOOT = Path("/boot")
LINKS = (Path("/vmlinuz"), BOOT / "vmlinuz")
DUE = STORE / "kernel-due"


def boot_entry() -> str:
    """Return the boot loader's default entry in its own format; empty if it is not known."""
    if shutil.which("grubby"):
        status, output = run("grubby", "--default-kernel", check=False)
        return output.strip() if status == 0 else ""
    menu, kept = BOOT / "grub/grub.cfg", BOOT / "grub/grubenv"
    if menu.exists():
        variables = dict(re.findall(r"(?m)^(\w+)=(.*)$", kept.read_text(errors="replace") if kept.exists() else ""))
        # An entry for the next boot only has precedence.
        chosen = re.findall(r'(?m)^\s*set default="(.*)"', menu.read_text(errors="replace"))
        named = [re.sub(r"\$\{(\w+)\}", lambda match: variables.get(match[1], ""), entry) for entry in chosen]
        return next(filter(None, named), "")
    return next((str(link.resolve()) for link in LINKS if link.is_symlink()), "")


def due_kernel() -> str:
    """Return the kernel after a reboot if it is newer than the running one, else an empty text.

    It is the kernel of the boot loader's default entry. If that has no kernel's name, for example 0, it is the newest.
    """
    running, entry = os.uname().release, boot_entry()
    installed = [path.name.split("-", 1)[1] for path in BOOT.glob("vmlinuz-[1-9]*")]
    named = [kernel for kernel in installed if kernel in entry]
    due = max(named, key=len) if named else max(installed, key=numbers, default=running)
    return due if numbers(due) > numbers(running) else ""


def boot() -> str:
    """Return an id of the current boot. A container has its host's kernel and its own first process."""
    started = Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{started}"


def in_vain(kernel: str, planned: bool) -> bool:
    """Return whether the node was rebooted since this kernel was first found due; store the boot of that time."""
    first, now = DUE.read_text().split() if DUE.exists() else [], [kernel, boot()]
    if kernel and first[:1] == [kernel]:
        return first != now
    if not planned:
        store(DUE, " ".join(now).encode()) if kernel else DUE.unlink(missing_ok=True)
    return False


def reason(manager: Any, moves: Iterable[str], planned: bool, notes: list[str]) -> str:
    """Return why the node must be rebooted for installed or planned packages; empty if it must not."""
    kernel = due_kernel()
    tried, running = in_vain(kernel, planned), os.uname().release
    if tried:
        notes.append(f"Linux {running} still runs after a reboot, expected {kernel}: check the boot loader's default")
    if manager.wants_reboot():
        return "the distribution requires it"
    if kernel and not tried:
        return f"Linux {kernel} is installed, but {running} runs"
    coming = [name for name in moves if name in manager.restarts or (planned and KERNEL.match(name))]
    return f"{coming[0]} comes" if coming else ""


def coming(manager: Any, kept: list[str], planned: bool, notes: list[str]) -> dict[str, tuple[str, str]]:
    """Return the package changes; a rehearsal may not know all of them after an interrupted package manager."""
    try:
        return manager.moves(kept, planned)
    except NodeError as error:
        if not (planned and (manager.broken or manager.interrupted)):
            raise
        broken = ", ".join(manager.broken) or "an interrupted dpkg"
        notes.append(f"more packages may change after {broken} is repaired: {clean(str(error))}")
        return {}


def main() -> None:
    """Ansible's entry point."""
    choices = ["auto", "apt", "dnf"]
    spec = {
        "packages": {"type": "bool", "default": True},
        "package_manager": {"type": "str", "choices": choices, "default": "auto"},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    os.umask(0o022)
    notes: list[str] = []
    try:
        items = [key for scope in recorded_scopes() for key in load_record(scope)["items"]]
        kept = sorted({key.split(":", 1)[1] for key in items if key.startswith("package:")})
        manager = package_manager(module.params["package_manager"], notes)
        with contextlib.nullcontext() if module.check_mode else alone_on_node(notes):
            left: list[str] = []
            moves: dict[str, tuple[str, str]] = {}
            if module.params["packages"]:
                manager.installed(kept)
                left = list(manager.broken)
                if (left or manager.interrupted) and not module.check_mode:
                    manager.repair()
                moves = coming(manager, kept, module.check_mode, notes)
            if moves and not module.check_mode:
                manager.move(kept)
            comes = [name for name, (new, _) in moves.items() if new]
            reboot = reason(manager, comes, module.check_mode, notes)
    except NodeError as error:
        module.fail_json(msg=clean(str(error)), notes=notes)
    changes = [moved(name, new, old) for name, (new, old) in moves.items()]
    changes += [change("package", name, "repaired", "repaired") for name in left if name not in moves]
    module.exit_json(changed=bool(changes), changes=changes, notes=notes, reboot=reboot)


if __name__ == "__main__":
    main()
