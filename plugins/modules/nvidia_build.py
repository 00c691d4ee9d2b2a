#!/usr/bin/python
"""Ansible module: the NVIDIA driver's kernel modules, built for a kernel and loaded where that one runs."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from ansible.module_utils import nvidia_kernel as kernel_side
from ansible.module_utils import slurm_steps
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.node_state.tools import RUN, NodeError, alone_on_node, change, clean, exclusive, numbers, run

DOCUMENTATION = r"""
module: nvidia_build
author: the clusterctl authors
short_description: Build and load the NVIDIA driver's kernel modules
description:
  - Has dkms build the modules of installed packages for a kernel, and for newer ones whose headers are installed.
  - A build that fails ends with the compiler's own line. The package manager knows nothing of it, and stays whole.
  - Loads the modules where the kernel runs here. A driver that is loaded stays, unless I(change) allows to exchange it,
    which is tried without a reboot first.
options:
  packages:
    description: Installed packages, one of which brings the modules' source.
    type: list
    elements: str
    required: true
  more:
    description: Installed packages that may bring further modules' source.
    type: list
    elements: str
    default: []
  kernel:
    description: Kernel that they are for.
    type: str
    required: true
  signed:
    description: Whether I(packages) have the modules themselves, signed for Secure Boot. Nothing is built then.
    type: bool
    default: false
  libraries:
    description: Version of the driver's libraries, which signed modules have to have; empty where it is not known.
    type: str
    default: ""
  newer:
    description: Whether newer kernels count as well.
    type: bool
    default: true
  change:
    description: Whether a driver that is loaded may be exchanged for this one. Jobs that run here forbid it anyway.
    type: bool
    default: false
  foreseen:
    description: Changes that a dry run has found, as node_state tells them; they decide which modules would be others.
    type: list
    elements: dict
    default: []
  modules:
    description: Modules that are loaded with the driver.
    type: list
    elements: str
    default: []
  units:
    description: Services that hold the driver and are stopped for its exchange, in this order.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Says whether it would build, and whether a reboot would be needed.
"""

EXAMPLES = r"""
- name: Build and load the modules
  nvidia_build:
    packages: [nvidia-kernel-open-dkms]
    kernel: 6.12.48+deb13-amd64
"""

RETURN = r"""
changes:
  description: What was built and loaded, or would be; mappings with kind, name and what.
  type: list
  returned: always
notes:
  description: What is worth knowing and no change.
  type: list
  returned: always
loaded:
  description: Version of the driver that is loaded now; empty where none is.
  type: str
  returned: always
ready:
  description: Whether a driver is loaded now, or would be.
  type: bool
  returned: success
stopped:
  description:
    - Those of I(units) that ran before an exchange, of an earlier run too, and are to be started again.
    - They are kept in /run/clusterctl/nvidia-driver.stopped, which is to be removed once they run.
  type: list
  returned: success
reboot:
  description: Why a reboot is needed; empty where it is not.
  type: str
  returned: always
"""

BUILD_LIMIT_S = 3600
CDI = "nvidia-cdi-refresh.service"
UP = ("active", "activating", "reloading")
# There from when services are stopped for an exchange until they are started again.
STOPPED = RUN / "nvidia-driver.stopped"
# Of role gpu_health, whose looks ask the driver: a look of Slurm's is left out while another holds this, others wait.
DIAGNOSES = RUN / "gpu-health.diagnosis"


def kernels(kernel: str, newer: bool, root: str = "/", headers: bool = True) -> list[str]:
    """Return the kernel, and with `newer` later ones that the next boot can have; with `headers` those with some."""
    files = Path(root, "lib/modules").glob("*/build" if headers else "*/kernel")
    found = [path.parent.name for path in files if path.is_dir()]
    later = [name for name in found if numbers(name) > numbers(kernel)]
    return [kernel, *sorted(later, key=numbers)] if newer else [kernel]


def target(kernel: str, newer: bool) -> str:
    """Return the kernel that the driver is for: with `newer` the running one, which a reboot may have changed."""
    return os.uname().release if newer and not kernel_side.in_container() else kernel


def coming(changes: list[dict[str, str]]) -> set[str]:
    """Return the packages that would be installed, or be of another version, by these changes."""
    return {it["name"] for it in changes if it["kind"] == "package" and it["action"] in ("installed", "upgraded")}


class Driver:
    """The modules as dkms names them, and what becomes of them here."""

    def __init__(self, given: dict[str, Any], check: bool) -> None:
        self.given, self.check = given, check
        self.changes: list[dict[str, str]] = []
        self.notes: list[str] = []
        self.reboot = ""

    def changed(self, action: str, what: str, name: str = "nvidia") -> None:
        self.changes.append(change("kernel module", name, action, what))

    def build(self, kernel: str, name: str, version: str) -> None:
        """Build and install a module for one kernel; NodeError with what the compiler said."""
        state = kernel_side.state(name, version, kernel)
        if state == "installed":
            return
        self.changed("built", f"{version} built for {kernel}", name)
        if self.check:
            return
        if not Path("/lib/modules", kernel, "build").is_dir():
            raise NodeError(f"the headers of kernel {kernel} are not installed")
        module = ("-m", name, "-v", version)
        if not state:
            run("dkms", "add", *module)
        if state != "built" and run("dkms", "build", *module, "-k", kernel, check=False, timeout=BUILD_LIMIT_S)[0]:
            log = Path("/var/lib/dkms", name, version, "build/make.log")
            called = "NVIDIA's driver" if name.startswith("nvidia") else name
            self.changes.pop()
            raise NodeError(
                f"{called} {version} does not build for kernel {kernel}:\n"
                f"{kernel_side.complaint(kernel_side.text(log)) or 'dkms says nothing of it'}\nWhole log there: {log}"
            )
        run("dkms", "install", "--force", *module, "-k", kernel)

    def load(self) -> str:
        """Load them, in place of another version only where that is allowed; returns the version that is loaded."""
        wanted, kernel = self.wanted()
        loaded = kernel_side.loaded()[0]
        if loaded == wanted and not kernel:
            self.complete()
            return loaded
        if loaded and not self.given["change"]:
            self.notes.append(f"driver {wanted} is installed and {loaded} is loaded: clusterctl upgrade exchanges it")
            return loaded
        # A rehearsal for a node that will be drained: its jobs will have ended by then.
        running = [] if self.check and self.given["change"] else slurm_steps.jobs()
        if running:
            raise NodeError(f"the driver is not touched under jobs: {', '.join(running[:10])} run here")
        with contextlib.nullcontext() if self.check else exclusive(DIAGNOSES, self.notes):
            self.changed("loaded", f"{wanted} loaded" + (f", was {loaded}" if loaded else ""))
            if kernel:
                self.wait_for_reboot(f"kernel {kernel} has the signed modules of driver {wanted}")
            return loaded if self.check or kernel else self.exchange(loaded)

    def wanted(self) -> tuple[str, str]:
        """Return the version of the modules to load, and the kernel to boot for them, empty where that one runs.

        Signed modules are built once for each kernel, and work with the libraries of their own version alone. NodeError
        where no kernel here has those.
        """
        if not self.given["signed"]:
            return kernel_side.source(self.given["packages"])[1], ""
        kernel, libraries = self.given["kernel"], self.given["libraries"]
        version = kernel_side.signed_module(kernel)
        if version and (version == libraries or not re.fullmatch(r"[0-9.]+", libraries)):
            return version, ""
        for later in kernels(kernel, True, headers=False)[1:]:
            if kernel_side.signed_module(later) == libraries:
                return libraries, later
        raise NodeError(
            f"kernel {kernel} has signed modules of driver {version or '(none)'}, and the libraries are {libraries}: "
            "install the newest kernel of Ubuntu's package sources, reboot, and run this again"
        )

    def exchange(self, loaded: str) -> str:
        """Take out the driver that is loaded, if any, and load the built one; returns what is loaded then."""
        if loaded and not self.unload():
            return loaded
        if Path("/sys/module/nouveau").exists() and run("modprobe", "-r", "nouveau", check=False)[0]:
            self.wait_for_reboot("nouveau holds the GPUs")
            return ""
        self.insert("nvidia")
        self.complete()
        self.describe()
        return kernel_side.loaded()[0]

    def complete(self) -> None:
        """Load what belongs to the driver and is not loaded."""
        for module in self.given["modules"]:
            if not Path("/sys/module", module.replace("-", "_")).exists():
                self.changed("loaded", "loaded", module)
                if not self.check:
                    self.insert(module)

    def describe(self) -> None:
        """Have the GPUs described anew for containers, with the paths of this driver's libraries.

        The description was due when the packages came: no driver of their version answered then.
        """
        known = run("systemctl", "show", "--property=LoadState", "--value", CDI, check=False)[1].strip() == "loaded"
        if known and run("systemctl", "start", CDI, check=False)[0]:
            self.notes.append(f"{CDI} failed: containers have no GPUs until it succeeds")

    def unload(self) -> bool:
        """Take the loaded driver out; whether that went without a reboot.

        What uses it is looked for before the first module is taken out: its old ones are no longer there to load again.
        """
        units = self.given["units"]
        up = [unit for unit in units if run("systemctl", "is-active", unit, check=False)[1].strip() in UP]
        running = [unit for unit in units if unit in {*up, *kernel_side.text(STOPPED).split()}]
        STOPPED.write_text(" ".join(running))
        for unit in units:
            run("systemctl", "stop", unit, check=False)
        used = kernel_side.in_use()
        for module in [] if used else kernel_side.MODULES:
            if Path("/sys/module", module).exists() and run("rmmod", module, check=False)[0]:
                used = [module]
                break
        if used:
            by = ", ".join(kernel_side.holders()[:5])
            self.wait_for_reboot(f"{used[0]} is in use" + f" by {by}" * bool(by))
            for unit in reversed(running):
                run("systemctl", "start", unit, check=False)
            STOPPED.unlink()
            return False
        return True

    def wait_for_reboot(self, why: str) -> None:
        self.changes.pop()
        self.reboot = why
        self.changes.append(change("reboot", os.uname().nodename, "rebooted", why))

    def insert(self, module: str) -> None:
        """Load one module; NodeError with the kernel's own line."""
        status, output = run("modprobe", module, check=False)
        if status:
            told = [line for line in run("dmesg", check=False)[1].splitlines() if re.search("NVRM|nvidia|modul", line)]
            signed = "\nSecure boot is on, and takes only modules whose key is enrolled." * kernel_side.secure_boot()
            self.changes.pop()
            raise NodeError(f"modprobe {module}: {output.strip()}\n" + "\n".join(told[-3:]) + signed)

    def foresee(self) -> None:
        """Say of a dry run whether the exchange would need a reboot."""
        loaded = kernel_side.loaded()[0]
        if loaded and not self.given["change"]:
            self.notes.append(f"driver {loaded} is loaded and stays: clusterctl upgrade exchanges it")
            return
        others = kernel_side.holders(self.given["units"], jobs=False)  # they will have ended by then
        drawing = kernel_side.text("/sys/module/nvidia_drm/refcnt") not in ("", "0")
        if loaded and (others or drawing):
            by = ", ".join(others[:5]) or "the console"
            self.changed("replaced", f"exchanged, now {loaded}")
            self.wait_for_reboot(f"the driver is in use by {by}")
        elif Path("/sys/module/nouveau").exists():
            self.notes.append("nouveau is loaded: where it does not let go of the GPUs, the node is rebooted")


def main() -> None:
    """Ansible's entry point."""
    spec = {
        "packages": {"type": "list", "elements": "str", "required": True},
        "more": {"type": "list", "elements": "str", "default": []},
        "kernel": {"type": "str", "required": True},
        "signed": {"type": "bool", "default": False},
        "libraries": {"type": "str", "default": ""},
        "newer": {"type": "bool", "default": True},
        "change": {"type": "bool", "default": False},
        "foreseen": {"type": "list", "elements": "dict", "default": []},
        "modules": {"type": "list", "elements": "str", "default": []},
        "units": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(spec, supports_check_mode=True)
    given = module.params
    given["kernel"] = target(given["kernel"], given["newer"])
    driver = Driver(given, module.check_mode)
    here = given["kernel"] == os.uname().release and not kernel_side.in_container()
    loaded = ""
    try:
        with contextlib.nullcontext() if module.check_mode else alone_on_node(driver.notes):
            if module.check_mode and coming(given["foreseen"]).intersection(given["packages"]):
                if here:
                    driver.foresee()
            else:
                for kernel in [] if given["signed"] else kernels(given["kernel"], given["newer"]):
                    driver.build(kernel, *kernel_side.source(given["packages"]))
                    for found in kernel_side.sources(given["more"]):  # they are built against the driver's source
                        driver.build(kernel, *found)
                if here:
                    loaded = driver.load()
                else:
                    driver.notes.append(f"the driver is built for kernel {given['kernel']}, which does not run here")
    except NodeError as error:
        module.fail_json(
            msg=clean(str(error)), changes=driver.changes, notes=driver.notes, changed=bool(driver.changes)
        )
    told = {"changes": driver.changes, "notes": driver.notes, "reboot": driver.reboot, "loaded": loaded}
    told["stopped"] = kernel_side.text(STOPPED).split() if loaded else []
    told["ready"] = here and (module.check_mode or bool(loaded))
    module.exit_json(changed=bool(driver.changes), **told)


if __name__ == "__main__":
    main()
