#!/usr/bin/python
"""Ansible module: report the GPUs of a node and the state of their driver."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ansible.module_utils import nvidia_kernel as kernel_side
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_state.record import load_record, record_path
from ansible.module_utils.node_state.tools import NodeError, clean, run

DOCUMENTATION = r"""
module: nvidia_look
author: the clusterctl authors
short_description: Report a node's GPUs, its driver and its kernel
description:
  - Returns the facts on which role nvidia_driver decides. Changes nothing.
options:
  kernel:
    description: Kernel of the driver; empty for the running one.
    type: str
    default: ""
  wanted:
    description: Packages of the wanted driver.
    type: list
    elements: str
    default: []
  change:
    description: Whether a loaded driver may be replaced.
    type: bool
    default: false
  dma_buf:
    description: Whether nvidia-peermem is wanted and DMA-BUF replaces it.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Changes nothing.
"""

EXAMPLES = r"""
- name: Read the GPUs
  nvidia_look:
  register: look
"""

RETURN = r"""
devices:
  description: PCI device ids of the GPUs, four hexadecimal digits each.
  type: list
  returned: always
fabric:
  description: What connects the GPUs, C(nvswitch), C(nvlink5) or empty.
  type: str
  returned: always
kernel:
  description: The kernel of the driver.
  type: str
  returned: always
kept:
  description: Installed packages of this kernel, and those that install its successors.
  type: list
  returned: always
headers:
  description: Packages that install the headers together with the next kernel.
  type: list
  returned: always
driver:
  description: Version of the loaded driver, or of the one that answers in a container; empty if there is none.
  type: str
  returned: always
left:
  description: Why the role does not manage the driver; empty if it does.
  type: str
  returned: always
brought:
  description: Packages that the role has installed.
  type: list
  returned: always
waits:
  description: Those of I(wanted) that would replace the loaded driver, which is not allowed now.
  type: list
  returned: always
peer_memory:
  description: Whether the kernel's InfiniBand supports nvidia-peermem.
  type: bool
  returned: always
imex:
  description: Whether the role has ever started IMEX on this node.
  type: bool
  returned: always
secure_boot:
  description: Whether the kernel accepts only signed modules.
  type: bool
  returned: always
key_enrolled:
  description: Whether it accepts modules signed by dkms.
  type: bool
  returned: always
runfile:
  description: Whether a driver from NVIDIA's installer exists.
  type: bool
  returned: always
notes:
  description: Notes for the user.
  type: list
  returned: always
"""

ROLE = "nvidia_driver"
# Packages of a kernel of the RHEL family; kernel-modules-core exists since 9.2.
RPM_PARTS = ("", "-core", "-modules", "-modules-core", "-modules-extra", "-devel-matched")
DAEMONS = "nvidia_daemons"  # the scope of services that need the driver
SIGNED_MODULES = re.compile(r"linux-(modules|objects|signatures)-nvidia-")


def rpms_of(kernel: str) -> list[str]:
    """Return the names of a kernel's packages on the RHEL family; a variant has a suffix: 5.14.0-1.aarch64+64k."""
    kind = re.search(r"\+(\w+)$", kernel)
    return [f"kernel-{kind.group(1)}{part}" if kind else f"kernel{part}" for part in RPM_PARTS]


def kernel_packages(kernel: str) -> list[str]:
    """Return the installed packages of this kernel, and those that depend on it and install its successors."""
    if not Path("/usr/bin/dpkg-query").exists():
        names = rpms_of(kernel)
        told = run("rpm", "-q", "--qf", "%{NAME}\\n", *names, check=False)[1].splitlines()
        return [name for name in names if name in told]
    rows = run("dpkg-query", "-W", "-f", "${db:Status-Abbrev}\\t${Package}\\t${Depends}\\n", "linux-*", check=False)[1]
    installed = [row.split("\t") for row in rows.splitlines() if row.startswith(("ii", "hi")) and row.count("\t") == 2]
    depends = {name: set(re.findall(r"[a-z0-9][a-z0-9.+-]+", needs)) for _, name, needs in installed}
    # Canonical's signed modules belong to the driver, not to the kernel.
    depends = {name: needs for name, needs in depends.items() if not SIGNED_MODULES.match(name)}
    kept = {name for name in depends if name.endswith("-" + kernel)}
    while more := {name for name, needs in depends.items() if needs & kept} - kept:
        kept |= more
    return sorted(kept)


def headers(kept: list[str]) -> list[str]:
    """Return the packages that install the next kernel's headers: linux-headers-amd64 for linux-image-amd64."""
    # Unsigned kernels use the same headers.
    images = [name.replace("linux-image-unsigned-", "linux-image-") for name in kept]
    metas = [name for name in images if re.match(r"linux-image-[a-z]", name)]
    return [name.replace("linux-image-", "linux-headers-") for name in metas]


def recorded() -> dict[str, bool]:
    """Return the role's installed packages, and for each whether the role has installed it.

    That is always false for a kernel.
    """
    items = load_record(ROLE)["items"]
    states = {key.split(":", 1)[1]: item for key, item in items.items() if key.startswith("package:")}
    return {
        name: not item["before"]["version"] and (SIGNED_MODULES.match(name) or not re.match(r"(linux|kernel)-", name))
        for name, item in sorted(states.items())
        if item["now"]["version"]
    }


DMA_BUF = (
    "nvidia-peermem is not loaded: it needs the InfiniBand drivers of MLNX_OFED or DOCA; the open modules use DMA-BUF "
    "instead"
)


def left(named: bool, gpus: list[str], driver: str, ours: bool, container: bool) -> str:
    """Return why the role does not manage the driver."""
    if ours or named:
        return ""
    if driver:
        return f"driver {driver} is already installed and is not changed"
    if container:
        return "a container uses its host's driver, but none responds" if gpus else "no GPU"
    return "" if gpus else "no GPU"


def main() -> None:
    """Ansible's entry point."""
    spec = {
        "kernel": {"type": "str", "default": ""},
        "wanted": {"type": "list", "elements": "str", "default": []},
        "change": {"type": "bool", "default": False},
        "dma_buf": {"type": "bool", "default": False},
    }
    module = AnsibleModule(spec, supports_check_mode=True)
    named = bool(module.params["kernel"])
    kernel = module.params["kernel"] or os.uname().release
    container = kernel_side.in_container()
    # Facts of the machine that boots the kernel: not the case in a container or while an image is built.
    boots = kernel == os.uname().release and not container
    gpus, fabric = kernel_side.pci()
    driver = kernel_side.answers() or kernel_side.loaded()[0]
    try:
        why = left(named, gpus, driver, record_path(ROLE).exists(), container)
        # A kernel in an image is only there for its headers.
        here = {} if why else recorded()
        kept = kernel_packages(kernel) if not why and kernel == os.uname().release else []
        imex = "unit:nvidia-imex" in load_record(DAEMONS)["items"]
    except NodeError as error:
        module.fail_json(msg=clean(str(error)))
    loaded = kernel_side.loaded()[0] if here and not container and not module.params["change"] else ""
    waits = [name for name in module.params["wanted"] if loaded and name not in here]
    notes = [why] if driver and why else []
    if waits:
        notes = [f"driver {loaded} stays: run clusterctl upgrade to replace it with {', '.join(waits)}"]
    peer_memory = kernel_side.peer_memory(kernel)
    if module.params["dma_buf"] and not peer_memory:
        notes.append(DMA_BUF)
    module.exit_json(
        changed=False,
        devices=gpus,
        fabric=fabric,
        kernel=kernel,
        kept=kept,
        headers=headers(kept),
        driver=driver,
        left=why,
        peer_memory=peer_memory,
        imex=imex,
        secure_boot=boots and kernel_side.secure_boot(),
        key_enrolled=boots and kernel_side.key_enrolled(),
        runfile=Path("/usr/bin/nvidia-uninstall").exists(),
        brought=[name for name, brought in here.items() if brought],
        waits=waits,
        notes=notes,
    )


if __name__ == "__main__":
    main()
