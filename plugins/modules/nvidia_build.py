#!/usr/bin/python
"""Ansible module: build the NVIDIA driver's kernel modules, and load them if their kernel runs."""

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
  - Builds the modules of installed packages with dkms, for a kernel and for newer ones whose headers are installed.
  - A failed build reports the compiler's error. The package manager is not affected.
  - Loads the modules if their kernel runs. A loaded driver is replaced only if I(change) is set, if possible without a
    reboot.
options:
  packages:
    description: Installed packages, one of which contains the modules' source.
    type: list
    elements: str
    required: true
  more:
    description: Installed packages that may contain the source of further modules.
    type: list
    elements: str
    default: []
  kernel:
    description: Kernel of the modules.
    type: str
    required: true
  signed:
    description: Whether I(packages) contain the built modules, signed for Secure Boot. Then nothing is built.
    type: bool
    default: false
  libraries:
    description: Version of the driver's libraries, which signed modules must match; empty if not known.
    type: str
    default: ""
  newer:
    description: Whether to build for newer kernels too.
    type: bool
    default: true
  change:
    description: Whether to replace a loaded driver with this one. It is never replaced while jobs run.
    type: bool
    default: false
  foreseen:
    description: Changes of a dry run, in the format of node_state; they decide which modules would change.
    type: list
    elements: dict
    default: []
  modules:
    description: Modules to load with the driver.
    type: list
    elements: str
    default: []
  units:
    description: Services that use the driver and are stopped, in this order, when it is replaced.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Reports whether it would build, and whether a reboot would be needed.
"""

EXAMPLES = r"""
- name: Build and load the modules
  nvidia_build:
    packages: [nvidia-kernel-open-dkms]
    kernel: 6.12.48+deb13-amd64
"""

RETURN = r"""
changes:
  description: Modules that were built and loaded, or would be; mappings with kind, name and what.
  type: list
  returned: always
notes:
  description: Notes that are not changes.
  type: list
  returned: always
loaded:
  description: Version of the loaded driver; empty if there is none.
  type: str
  returned: always
ready:
  description: Whether a driver is loaded now, or would be.
  type: bool
  returned: success
stopped:
  description:
    - Those of I(units) that ran before the driver was replaced, also in an earlier run, and must be started again.
    - They are stored in /run/clusterctl/nvidia-driver.stopped, which must be removed once they run.
  type: list
  returned: success
reboot:
  description: Why a reboot is needed; empty if it is not.
  type: str
  returned: always
"""

BUILD_LIMIT_S = 3600
CDI = "nvidia-cdi-refresh.service"
UP = ("active", "activating", "reloading")
# Exists while services are stopped for replacing the driver.
STOPPED = RUN / "nvidia-driver.stopped"
# Lock of role gpu_health's checks, which use the driver: Slurm's checks are skipped while it is held, others wait.
DIAGNOSES = RUN / "gpu-health.diagnosis"


def kernels(kernel: str, newer: bool, root: str = "/", headers: bool = True) -> list[str]:
    """Return the kernel, and with `newer` later installed ones; with `headers` only those with headers."""
    files = Path(root, "lib/modules").glob("*/build" if headers else "*/kernel")
    found = [path.parent.name for path in files if path.is_dir()]
    later = [name for name in found if numbers(name) > numbers(kernel)]
    return [kernel, *sorted(later, key=numbers)] if newer else [kernel]


def target(kernel: str, newer: bool) -> str:
    """Return the kernel of the driver: with `newer` the running one, which a reboot may have changed."""
    return os.uname().release if newer and not kernel_side.in_container() else kernel


def coming(changes: list[dict[str, str]]) -> set[str]:
    """Return the packages that these changes would install or update."""
    return {it["name"] for it in changes if it["kind"] == "package" and it["action"] in ("installed", "upgraded")}


class Driver:
    """The driver's modules in dkms, and their state on this node."""

    def __init__(self, given: dict[str, Any], check: bool) -> None:
        self.given, self.check = given, check
        self.changes: list[dict[str, str]] = []
        self.notes: list[str] = []
        self.reboot = ""

    def changed(self, action: str, what: str, name: str = "nvidia") -> None:
        self.changes.append(change("kernel module", name, action, what))

    def build(self, kernel: str, name: str, version: str) -> None:
        """Build and install a module for one kernel. Raises NodeError with the compiler's error."""
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
                f"{kernel_side.complaint(kernel_side.text(log)) or 'dkms printed no error'}\nLog on the node: {log}"
            )
        run("dkms", "install", "--force", *module, "-k", kernel)

    def load(self) -> str:
        """Load the modules, replacing another version only if allowed; return the loaded version."""
        wanted, kernel = self.wanted()
        loaded = kernel_side.loaded()[0]
        if loaded == wanted and not kernel:
            self.complete()
            return loaded
        if loaded and not self.given["change"]:
            self.notes.append(
                f"driver {wanted} is installed but {loaded} is loaded: run clusterctl upgrade to replace it"
            )
            return loaded
        # In a rehearsal for a node that will be drained, its jobs will have ended by then.
        running = [] if self.check and self.given["change"] else slurm_steps.jobs()
        if running:
            raise NodeError(f"the driver is not replaced while jobs run: {', '.join(running[:10])}")
        with contextlib.nullcontext() if self.check else exclusive(DIAGNOSES, self.notes):
            self.changed("loaded", f"{wanted} loaded" + (f", was {loaded}" if loaded else ""))
            if kernel:
                self.wait_for_reboot(f"kernel {kernel} has the signed modules of driver {wanted}")
            return loaded if self.check or kernel else self.exchange(loaded)

    def wanted(self) -> tuple[str, str]:
        """Return the version of the modules to load, and the kernel to boot for them, empty if it runs.

        Signed modules are built once for each kernel, and work only with libraries of the same version. Raises
        NodeError if no installed kernel has such modules.
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
            f"kernel {kernel} has signed modules of driver {version or '(none)'}, but the libraries are {libraries}: "
            "install the newest kernel from Ubuntu's package sources, reboot, and run this again"
        )

    def exchange(self, loaded: str) -> str:
        """Unload the loaded driver, if any, and load the built one; return the loaded version."""
        if loaded and not self.unload():
            return loaded
        if Path("/sys/module/nouveau").exists() and run("modprobe", "-r", "nouveau", check=False)[0]:
            self.wait_for_reboot("nouveau uses the GPUs")
            return ""
        self.insert("nvidia")
        self.complete()
        self.describe()
        return kernel_side.loaded()[0]

    def complete(self) -> None:
        """Load the driver's modules that are not loaded."""
        for module in self.given["modules"]:
            if not Path("/sys/module", module.replace("-", "_")).exists():
                self.changed("loaded", "loaded", module)
                if not self.check:
                    self.insert(module)

    def describe(self) -> None:
        """Write the GPUs' CDI description for containers again, with the paths of this driver's libraries.

        It was not possible when the packages were installed, because no driver of their version was loaded.
        """
        known = run("systemctl", "show", "--property=LoadState", "--value", CDI, check=False)[1].strip() == "loaded"
        if known and run("systemctl", "start", CDI, check=False)[0]:
            self.notes.append(f"{CDI} failed: containers have no GPUs until it succeeds")

    def unload(self) -> bool:
        """Unload the driver; return whether that was possible without a reboot.

        Check for users before the first module is unloaded: the old modules are no longer on disk to load again.
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
        """Load one module. Raises NodeError with the kernel's message."""
        status, output = run("modprobe", module, check=False)
        if status:
            told = [line for line in run("dmesg", check=False)[1].splitlines() if re.search("NVRM|nvidia|modul", line)]
            signed = "\nSecure Boot is on and accepts only modules whose key is enrolled." * kernel_side.secure_boot()
            self.changes.pop()
            raise NodeError(f"modprobe {module}: {output.strip()}\n" + "\n".join(told[-3:]) + signed)

    def foresee(self) -> None:
        """Report in a dry run whether replacing the driver would need a reboot."""
        loaded = kernel_side.loaded()[0]
        if loaded and not self.given["change"]:
            self.notes.append(f"driver {loaded} stays loaded: run clusterctl upgrade to replace it")
            return
        others = kernel_side.holders(self.given["units"], jobs=False)  # jobs will have ended by then
        drawing = kernel_side.text("/sys/module/nvidia_drm/refcnt") not in ("", "0")
        if loaded and (others or drawing):
            by = ", ".join(others[:5]) or "the console"
            self.changed("replaced", f"exchanged, now {loaded}")
            self.wait_for_reboot(f"the driver is in use by {by}")
        elif Path("/sys/module/nouveau").exists():
            self.notes.append("nouveau is loaded: if it cannot be unloaded, the node is rebooted")


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
                    for found in kernel_side.sources(given["more"]):  # built against the driver's source
                        driver.build(kernel, *found)
                if here:
                    loaded = driver.load()
                else:
                    driver.notes.append(f"the driver is built for kernel {given['kernel']}, which is not running")
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
