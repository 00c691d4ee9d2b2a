"""Preflight checks of GPUs, their driver, and packages with known vulnerabilities."""

import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from clusterctl.inventory.model import Host, Inventory
from clusterctl.nodes import advisories
from clusterctl.nodes.contact import Facts
from clusterctl.util import paths, yaml_text
from clusterctl.util.errors import Finding
from clusterctl.util.text import fold
from clusterctl.workspace import hardware

PINNED = {"munge": "munge_version", "slurmctld": "slurm_head_version", "slurmd": "slurm_head_version"}
TOOLKIT = "nvidia_container_toolkit"  # role and group
TOOLKIT_PINNED = {"nvidia-container-toolkit-base": "nvidia_container_toolkit_version"}
_DRIVER_PIN = "nvidia_driver_version"


def gpus(name: str, facts: Facts) -> Iterator[Finding]:
    """Yield GPUs without a driver, and a driver that does not respond."""
    usable, hint = len(facts.hardware.gpus), f"repair that, delete {hardware.DIRECTORY}/{name}.json and run again"
    unused = len(facts.node.pci_gpus) - usable
    if unused > 0:
        found = f"{unused} NVIDIA GPUs on the PCI bus are not reported by any driver"
        advice = f"the cluster does not use them; {hint}" if usable else "bootstrap and add-node install one on workers"
        yield Finding(name, "gpu", found, advice, warning=True)
    if usable and facts.node.nvml_error:
        found = f"the driver does not respond, so the models are unknown: {facts.node.nvml_error}"
        yield Finding(name, "gpu", found, hint, warning=True)


def driver(host: Host, facts: Facts) -> Iterator[Finding]:
    """Yield the reasons for which role nvidia_driver would fail on a worker, by the role's own rule.

    The role does not touch a working driver that it did not install.
    """
    node, hardware = facts.node, facts.hardware
    unmanaged = hardware.driver_version and "nvidia_driver" not in node.roles
    if not host.is_worker or node.container or not node.pci_gpus or unmanaged:
        return
    choose, tables, defaults = _driver_rule()
    values = {**defaults, **{name: value for name, value in host.variables.items() if name in defaults}}
    look: dict[str, Any] = {"devices": node.pci_gpus, "driver": hardware.driver_version or ""}
    # A working managed driver has modules signed by an enrolled key. Modules for another kernel are not loaded now.
    signed = bool(hardware.driver_version) or bool(host.variables.get("nvidia_driver_kernel"))
    look |= {"secure_boot": node.secure_boot and not signed, "key_enrolled": node.key_enrolled}
    wanted = {name: values[f"nvidia_driver_{name}"] for name in ("source", "modules", "gdrcopy")}
    wanted |= {name: str(values[f"nvidia_driver_{name}"] or "") for name in ("branch", "version")}
    wanted["fingerprint"] = values["nvidia_driver_key_fingerprint"]
    wanted["system"] = choose.system_of(hardware.os.id, hardware.os.family, hardware.os.version)
    wanted["architecture"] = hardware.os.architecture
    for problem in choose.driver(look, wanted, tables)["problems"]:
        found, _, variable = problem.partition(": nvidia_driver_")
        hint = f"set nvidia_driver_{variable}" if variable else "see `clusterctl docs gpus`"
        yield Finding(host.name, "driver", found, hint)


@cache
def _driver_rule() -> tuple[Any, Mapping[str, Any], Mapping[str, Any]]:
    """Return the filters of role nvidia_driver that choose a driver, its tables without prefix, and its defaults."""
    content = paths.content()
    specification = importlib.util.spec_from_file_location(
        "clusterctl_filter_nvidia", content / "plugins/filter/nvidia.py"
    )
    if specification is None or specification.loader is None:
        raise ImportError("plugins/filter/nvidia.py")
    rule: Any = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(rule)
    role = content / "roles/nvidia_driver"
    tables = yaml_text.load((role / "vars/main.yml").read_text(encoding="utf-8"))
    defaults = yaml_text.load((role / "defaults/main.yml").read_text(encoding="utf-8"))
    return rule, {name: tables[f"__nvidia_driver_{name}"] for name in rule.TABLES}, defaults


def security(inventory: Inventory, facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Yield installed or pinned packages with known vulnerabilities, each once with all its nodes."""
    nodes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, found in facts.items():
        for text, hint in _unsafe(inventory.host(name), found):
            nodes[text, hint].append(name)
    for (text, hint), (first, *others) in nodes.items():
        also = f"; also on {fold(others)}" if others else ""
        yield Finding(first, "security", f"{text}{also}", hint, warning=True)


def _unsafe(host: Host, found: Facts) -> Iterator[tuple[str, str]]:
    """Yield each vulnerability of a host, and its hint."""
    system = f"{found.hardware.os.id} {found.hardware.os.version}"
    variables = PINNED | (TOOLKIT_PINNED if TOOLKIT in host.groups else {})
    pins = {package: str(host.variables.get(variable, "")) for package, variable in variables.items()}
    exact = {package: pin for package, pin in pins.items() if pin and not re.search(r"[*?^]", pin)}
    installed = found.node.slurm_packages.installed if found.node.slurm_packages else {}
    for one in advisories.unsafe(system, {**installed, **found.node.watched_packages, **exact}):
        hint = "clusterctl upgrade installs it"
        if one.package in exact:
            hint = f"correct {variables[one.package]}"
        elif one.package in advisories.TOOLKIT:
            hint = "not managed by clusterctl: update it"
            if TOOLKIT in found.node.roles:
                hint = f"clusterctl upgrade --only {TOOLKIT} installs it"
        elif not one.fixed:
            log = "rpm --query --changelog" if found.hardware.os.family == "RedHat" else "apt-get changelog"
            hint = f"clusterctl upgrade installs the newest version; check whether it has the fix: {log} {one.package}"
        yield str(one), hint
    pin = str(host.variables.get(_DRIVER_PIN, ""))
    pinned = bool(pin) and not re.search(r"[*?^]", pin)
    version = pin if pinned and found.hardware.gpus else found.hardware.driver_version
    for one in advisories.unsafe_driver(version):
        yield str(one), f"correct {_DRIVER_PIN}" if pinned else "clusterctl upgrade --only nvidia_driver installs it"
