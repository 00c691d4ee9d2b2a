"""Shared directories of the nodes: which of them the probe looks at, and what is wrong with them."""

from collections.abc import Iterator, Mapping

from clusterctl.inventory import mounts, storage
from clusterctl.inventory.model import Host, Inventory
from clusterctl.nodes.contact import Facts
from clusterctl.nodes.probe.common import FORMER, HIDES, HUNG, NOT_MOUNTED, OTHER
from clusterctl.util.errors import Finding

CHECK = "mount"
OCCUPIED = "mount point"
# As in role nfs_client.
HIDDEN_HINT = (
    "move these files to the server and delete them on the node, or mount another path; for homes, set users_home"
)
OTHER_HINT = "move its files to the server, unmount it and delete it from /etc/fstab, or mount another path"
Wanted = Mapping[str, tuple[str, str]]
"""Directories of a host, with the source and the type of what is mounted there."""


def of_host(inventory: Inventory, host: Host) -> Wanted:
    """Return the directories that a host mounts; also its homes, with an empty source if the site mounts them."""
    server = next(iter(inventory.in_group(storage.SERVER)), host)
    follows = server is not host and not storage.FOLLOWING.isdisjoint(host.groups)
    homes = [{"path": server.variables.get("users_home", "/home")}]
    exports = server.variables.get(storage.EXPORTS, homes) if follows else ()
    address = str(server.variables.get("cluster_address", server.address))
    wanted = mounts.complete(host.variables.get(storage.MOUNTS, ()), (), exports, address)
    own = str(host.variables.get("users_home", "/home"))
    return {own: ("", ""), **{one["path"]: (one["source"], one["type"]) for one in wanted}}


def problems(wanted: Wanted, states: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Yield what is wrong with directories, and whether it blocks programs. `states` are those of the probe."""
    for path, (source, _) in wanted.items():
        state, name = states.get(path, ""), f"{path} ({source})" if source else path
        if state == HUNG:
            yield f"{name} does not respond", True
        elif state and source:
            yield f"{name}{_told(state)}", False


def _told(state: str) -> str:
    if state == NOT_MOUNTED:
        return " is not mounted"
    for known, text in {
        HIDES: " is not mounted and would hide files",
        OTHER: " has another file system mounted",
        FORMER: " still has its former source mounted, until the next reboot",
    }.items():
        if state.startswith(known):
            return f"{text} ({state[len(known) :]})"
    return f": {state}"


def findings(inventory: Inventory, facts: Mapping[str, Facts], mounts_them: bool) -> Iterator[Finding]:
    """Yield the directories that would block a run; if it `mounts_them`, also those that it cannot mount."""
    for name, found in facts.items():
        for path, one in of_host(inventory, inventory.host(name)).items():
            state = found.node.mounts.get(path, "")
            for text, blocks in problems({path: one}, found.node.mounts):
                server = one[0].rpartition(":")[0].strip("[]") or "the file server"
                if blocks:
                    yield Finding(name, CHECK, text, f"check {server}; jobs continue when it responds again")
                elif mounts_them and state.startswith(HIDES):
                    yield Finding(name, OCCUPIED, text, HIDDEN_HINT)
                elif mounts_them and state.startswith(OTHER):
                    yield Finding(name, OCCUPIED, text, OTHER_HINT)
