"""Preflight checks of operating systems: what no source publishes for them."""

from collections.abc import Iterator, Mapping

from clusterctl.inventory.model import Host, Inventory
from clusterctl.util import paths, yaml_text
from clusterctl.util.errors import Finding
from clusterctl.workspace.hardware import Hardware, of_system


def unpublished(inventory: Inventory, known: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Yield what a node's groups need and no source has for its system, as declared in roles' meta/systems.yml."""
    declared = [
        entry
        for path in sorted(paths.content().glob("roles/*/meta/systems.yml"))
        for entry in yaml_text.load(path.read_text(encoding="utf-8"))
    ]
    for entry in declared:
        for host in inventory.in_group(entry["group"]):
            heads = (inventory.head, *inventory.in_group(host.scheduler.head if host.scheduler else ""))
            names = [entry["unless"]] if isinstance(entry["unless"], str) else entry["unless"]
            systems = [entry["system"]] if isinstance(entry["system"], str) else entry["system"]
            given = any(_is_given(one, name) for one in (host, *heads) for name in names)
            if host.name in known and not given and of_system(dict.fromkeys(systems, "it"), known[host.name]):
                hint = f"leave {host.name} out of {entry['group']}, or say where it is: {' or '.join(names)}"
                yield Finding(host.name, entry["group"], entry["lacks"], hint)


def _is_given(host: Host, name: str) -> bool:
    """Return whether the inventory sets a variable of a host, or with `variable.key` a key of it."""
    variable, _, key = name.partition(".")
    value = host.variables.get(variable)
    return bool(value.get(key) if key and isinstance(value, Mapping) else value)
