"""Names of Slurm's packages, from the table in role slurm_head that lookup slurm_source reads too."""

import functools
from collections.abc import Mapping
from typing import Any

from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.schedulers import SLURM
from clusterctl.util import paths, yaml_text

DAEMONS = ("controller", "worker")
USER_ID = 64030


@functools.cache
def table() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return names by source, family and part."""
    text = (paths.content() / "roles/slurm_head/vars/main.yml").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, Mapping[str, Any]]] = yaml_text.load(text)["__slurm_head_package_table"]
    return found


def given(inventory: Inventory, host: Host, name: str, default: Any) -> Any:
    """Return a variable of the host, or else of Slurm's head."""
    heads = [host, *inventory.in_group(SLURM.head)]
    return next((one.variables[name] for one in heads if name in one.variables), default)


def names(inventory: Inventory, host: Host, part: str) -> list[str]:
    """Return the packages of a part on the host, for any family."""
    own = given(inventory, host, "slurm_head_package_names", {})
    if isinstance(own, Mapping) and isinstance(own.get(part), list):
        return [str(name) for name in own[part]]
    families = table().get(given(inventory, host, "slurm_head_source", "distribution"), {})
    return [name for parts in families.values() for name in parts[part]]


def every(inventory: Inventory, part: str) -> list[str]:
    """Return the packages of a part from all sources, each once."""
    known = [name for families in table().values() for parts in families.values() for name in parts[part]]
    return list(dict.fromkeys(known + [name for host in inventory.hosts for name in names(inventory, host, part)]))
