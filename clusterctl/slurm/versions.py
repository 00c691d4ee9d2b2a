"""Which release of Slurm a node has, and which releases work together.

The one rule, for every part of clusterctl: the release is that of the pin (`slurm_head_version`), else what the node's
distribution brings. Role slurm_head has the same rule and the tables (roles/slurm_head/vars/main.yml).
"""

import functools
import re
from collections.abc import Mapping

import yaml

from clusterctl.inventory.model import Host
from clusterctl.util import paths
from clusterctl.util.text import upstream
from clusterctl.workspace.hardware import Hardware, of_system

PIN = "slurm_head_version"


@functools.cache
def _tables() -> Mapping[str, Mapping[str, str]]:
    text = (paths.content() / "roles/slurm_head/vars/main.yml").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, str]] = yaml.safe_load(text)
    return found


def oldest() -> Mapping[str, str]:
    """Return by release the oldest release that it talks to, and whose state it reads."""
    return _tables()["__slurm_head_oldest_worker"]


def of_node(host: Host, node: Hardware) -> str | None:
    """Return the release that a host is to have, such as 24.11; None where its distribution is not known."""
    if found := re.match(r"(?:\d+:)?(\d+\.\d+)", str(host.variables.get(PIN, ""))):
        return found[1]
    return of_system(_tables()["__slurm_head_distribution_versions"], node)


def of_package(version: str) -> str:
    """Return the release of a package's version: 24.11 of 24.11.5-4."""
    return ".".join(upstream(version).split(".")[:2])


def work_together(head: str, other: str) -> bool:
    """Return whether a head of a release takes a worker, or the state, of another release; of unknown ones the same."""
    return oldest().get(head, head) <= other <= head
