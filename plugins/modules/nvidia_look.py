#!/usr/bin/python
"""Ansible module: the GPUs of a node, and what becomes of their driver."""

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
short_description: Look at a node's GPUs, its driver and its kernel
description:
  - Tells what the role nvidia_driver decides by. Changes nothing.
options:
  kernel:
    description: Kernel that the driver is for; the running one where it is empty.
    type: str
    default: ""
  wanted:
    description: Packages that the driver is to consist of.
    type: list
    elements: str
    default: []
  change:
    description: Whether a driver that is loaded may become another.
    type: bool
    default: false
  dma_buf:
    description: Whether nvidia-peermem is wanted and DMA-BUF does what it is for.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: It only looks.
"""

EXAMPLES = r"""
- name: Look at the GPUs
  nvidia_look:
  register: look
"""

RETURN = r"""
devices:
  description: PCI device ids of the GPUs, four hexadecimal digits each.
  type: list
  returned: always
fabric:
  description: What joins the GPUs, C(nvswitch), C(nvlink5) or empty.
  type: str
  returned: always
kernel:
  description: The kernel that the driver is for.
  type: str
  returned: always
kept:
  description: Installed packages that are this kernel, or bring the next one.
  type: list
  returned: always
headers:
  description: Those packages that have to come so that the next kernel's headers come with it.
  type: list
  returned: always
driver:
  description: Version of the driver that is loaded, or answers in a container; empty where there is none.
  type: str
  returned: always
left:
  description: Why the driver is left as it is; empty where it is the role's.
  type: str
  returned: always
brought:
  description: Packages that the role has installed here.
  type: list
  returned: always
waits:
  description: Those of I(wanted) that would make another driver of the loaded one, which is not allowed now.
  type: list
  returned: always
peer_memory:
  description: Whether the kernel's InfiniBand takes the memory of GPUs by nvidia-peermem.
  type: bool
  returned: always
imex:
  description: Whether the role has ever had IMEX run here.
  type: bool
  returned: always
secure_boot:
  description: Whether the kernel takes signed modules alone.
  type: bool
  returned: always
key_enrolled:
  description: Whether it takes those that dkms signs.
  type: bool
  returned: always
runfile:
  description: Whether a driver from NVIDIA's own installer is here.
  type: bool
  returned: always
notes:
  description: What is worth knowing.
  type: list
  returned: always
"""

ROLE = "nvidia_driver"
# What makes up a kernel of the RHEL family; kernel-modules-core came with 9.2.
RPM_PARTS = ("", "-core", "-modules", "-modules-core", "-modules-extra", "-devel-matched")
DAEMONS = "nvidia_daemons"  # the scope of what needs the driver
SIGNED_MODULES = re.compile(r"linux-(modules|objects|signatures)-nvidia-")


def rpms_of(kernel: str) -> list[str]:
    """Return the names of a kernel's packages on the RHEL family; one of another kind ends so: 5.14.0-1.aarch64+64k."""
    kind = re.search(r"\+(\w+)$", kernel)
    return [f"kernel-{kind.group(1)}{part}" if kind else f"kernel{part}" for part in RPM_PARTS]


def kernel_packages(kernel: str) -> list[str]:
    """Return the installed packages that are this kernel, or depend on it so that they bring the next one."""
    if not Path("/usr/bin/dpkg-query").exists():
        names = rpms_of(kernel)
        told = run("rpm", "-q", "--qf", "%{NAME}\\n", *names, check=False)[1].splitlines()
        return [name for name in names if name in told]
    rows = run("dpkg-query", "-W", "-f", "${db:Status-Abbrev}\\t${Package}\\t${Depends}\\n", "linux-*", check=False)[1]
    installed = [row.split("\t") for row in rows.splitlines() if row.startswith(("ii", "hi")) and row.count("\t") == 2]
    depends = {name: set(re.findall(r"[a-z0-9][a-z0-9.+-]+", needs)) for _, name, needs in installed}
    # The modules that Canonical signs go with the driver, not with the kernel.
    depends = {name: needs for name, needs in depends.items() if not SIGNED_MODULES.match(name)}
    kept = {name for name in depends if name.endswith("-" + kernel)}
    while more := {name for name, needs in depends.items() if needs & kept} - kept:
        kept |= more
    return sorted(kept)


def headers(kept: list[str]) -> list[str]:
    """Return what brings the headers of the next kernel: linux-headers-amd64 for linux-image-amd64."""
    # Those of unsigned kernels have the same headers.
    images = [name.replace("linux-image-unsigned-", "linux-image-") for name in kept]
    metas = [name for name in images if re.match(r"linux-image-[a-z]", name)]
    return [name.replace("linux-image-", "linux-headers-") for name in metas]


def recorded() -> dict[str, bool]:
    """Return the packages of the role that are installed here, and of each whether the role has brought it.

    Of a kernel it never has, whatever came of it since.
    """
    items = load_record(ROLE)["items"]
    states = {key.split(":", 1)[1]: item for key, item in items.items() if key.startswith("package:")}
    return {
        name: not item["before"]["version"] and (SIGNED_MODULES.match(name) or not re.match(r"(linux|kernel)-", name))
        for name, item in sorted(states.items())
        if item["now"]["version"]
    }


DMA_BUF = (
    "nvidia-peermem is left out: it needs the InfiniBand drivers of MLNX_OFED or DOCA; with the open modules the GPUs' "
    "memory is reached by DMA-BUF"
)


def left(named: bool, gpus: list[str], driver: str, ours: bool, container: bool) -> str:
    """Return why the driver is none of the role's business."""
    if ours or named:
        return ""
    if driver:
        return f"driver {driver} is here already and is left as it is"
    if container:
        return "a container has its host's driver, and here is none that answers" if gpus else "no GPU"
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
    # Of the machine that boots the kernel, and that is another one in a container, or where an image is made.
    boots = kernel == os.uname().release and not container
    gpus, fabric = kernel_side.pci()
    driver = kernel_side.answers() or kernel_side.loaded()[0]
    try:
        why = left(named, gpus, driver, record_path(ROLE).exists(), container)
        # One that an image gets is there only for its headers.
        here = {} if why else recorded()
        kept = kernel_packages(kernel) if not why and kernel == os.uname().release else []
        imex = "unit:nvidia-imex" in load_record(DAEMONS)["items"]
    except NodeError as error:
        module.fail_json(msg=clean(str(error)))
    loaded = kernel_side.loaded()[0] if here and not container and not module.params["change"] else ""
    waits = [name for name in module.params["wanted"] if loaded and name not in here]
    notes = [why] if driver and why else []
    if waits:
        notes = [f"driver {loaded} stays, and becomes {', '.join(waits)} by clusterctl upgrade"]
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
