"""Shared directories of the nodes: which of them the probe looks at, and what is wrong with them."""

from collections.abc import Iterator, Mapping

from clusterctl.inventory import mounts, storage
from clusterctl.inventory.model import Host, Inventory
from clusterctl.nodes.contact import Facts
from clusterctl.nodes.probe.common import HUNG, NOT_MOUNTED
from clusterctl.util.errors import Finding

CHECK = "mount"


def of_host(inventory: Inventory, host: Host) -> dict[str, str]:
    """Return the directories that a host mounts, with their sources; also its homes, empty if the site mounts them."""
    server = next(iter(inventory.in_group(storage.SERVER)), host)
    follows = server is not host and not storage.FOLLOWING.isdisjoint(host.groups)
    homes = [{"path": server.variables.get("users_home", "/home")}]
    exports = server.variables.get(storage.EXPORTS, homes) if follows else ()
    address = str(server.variables.get("cluster_address", server.address))
    wanted = mounts.complete(host.variables.get(storage.MOUNTS, ()), (), exports, address)
    own = str(host.variables.get("users_home", "/home"))
    return {own: "", **{one["path"]: one["source"] for one in wanted}}


def problems(wanted: Mapping[str, str], states: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Yield what is wrong with directories, and whether it blocks programs. `states` are those of the probe."""
    for path, source in wanted.items():
        state, name = states.get(path, ""), f"{path} ({source})" if source else path
        if state == HUNG:
            yield f"{name} does not respond", True
        elif state and source:
            yield f"{name} is not mounted" if state == NOT_MOUNTED else f"{name}: {state}", False


def findings(inventory: Inventory, facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Yield the directories that would block a run. A run mounts what is not mounted."""
    for name, found in facts.items():
        for path, source in of_host(inventory, inventory.host(name)).items():
            for text, blocks in problems({path: source}, found.node.mounts):
                server = source.rpartition(":")[0].strip("[]") or "the file server"
                if blocks:
                    yield Finding(name, CHECK, text, f"check {server}; jobs continue when it responds again")
