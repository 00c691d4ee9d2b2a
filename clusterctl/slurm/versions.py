"""Find a node's release of Slurm, and which releases are compatible.

The rule for all of clusterctl: the release is from the pin (`slurm_head_version`), or else from the node's
distribution. Role slurm_head has the same rule and the tables (roles/slurm_head/vars/main.yml).
"""

import functools
import re
from collections.abc import Mapping

from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.schedulers import SLURM
from clusterctl.util import paths, yaml_text
from clusterctl.util.text import upstream
from clusterctl.workspace import hardware
from clusterctl.workspace.hardware import Hardware, of_system

PIN = "slurm_head_version"


@functools.cache
def _tables() -> Mapping[str, Mapping[str, str]]:
    text = (paths.content() / "roles/slurm_head/vars/main.yml").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, str]] = yaml_text.load(text)
    return found


def oldest() -> Mapping[str, str]:
    """Return, by release, the oldest release with which it is compatible and whose state it reads."""
    return _tables()["__slurm_head_oldest_worker"]


def of_node(host: Host, node: Hardware) -> str | None:
    """Return the release that a host will have, for example 24.11; None if its distribution is not known."""
    if found := re.match(r"(?:\d+:)?(\d+\.\d+)", str(host.variables.get(PIN, ""))):
        return found[1]
    return of_system(_tables()["__slurm_head_distribution_versions"], node)


def of_package(version: str) -> str:
    """Return the release of a package's version: 24.11 of 24.11.5-4."""
    return ".".join(upstream(version).split(".")[:2])


def work_together(head: str, other: str) -> bool:
    """Return whether a head supports a worker, or the state, of another release; unknown releases support their own."""
    return oldest().get(head, head) <= other <= head


def learns_by_restart(inventory: Inventory) -> bool:
    """Return whether a node's Slurm is older than 23.11: a changed list of nodes needs a restart of its daemons.

    Role slurm_worker has the same rule. Source: https://slurm.schedmd.com/faq.html#add_nodes and the release notes of
    23.11.
    """
    for host in (*inventory.in_group(SLURM.head), *inventory.in_group(SLURM.workers)):
        path = hardware.path_of(inventory.directory, host.name)
        release = of_node(host, hardware.load(path)) if path.exists() else None
        if release is not None and release < "23.11":
            return True
    return False
