"""People of a directory (role sssd): what the group needs, and names and entries that would not fit local accounts."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterctl.inventory.document import Node, shown
from clusterctl.inventory.reading import Reading
from clusterctl.inventory.schedulers import LOGIN, SLURM
from clusterctl.inventory.slurm_policy import USERS, entries_of

if TYPE_CHECKING:
    from clusterctl.inventory.model import Inventory

SSSD = "sssd"
BIND_DN, BIND_PASSWORD = "sssd_bind_dn", "sssd_bind_password"
_NEEDED = {
    "sssd_uris": "[ldaps://ldap1.example.org]",
    "sssd_base": "dc=example,dc=org",
    "sssd_login_groups": "[gpu-users]",
}
_OF_DEPARTED = {"name", "state"}
Given = Callable[[Reading, str], list[Node]]


def secrets(inventory: "Inventory") -> dict[str, str]:
    """Return the secret that signing in to the directory needs, with the variable that needs it."""
    needs_it = any(host.variables.get(BIND_DN) for host in inventory.in_group(SSSD))
    return {BIND_PASSWORD: BIND_DN} if needs_it else {}


def check(reading: Reading) -> None:
    """Check that all hosts of Slurm know the same people, and that the directory is named."""
    members = [host for host in reading.hosts.values() if SSSD in host.groups]
    if not members:
        return
    of_slurm = [group for group in (SLURM.head, SLURM.workers, LOGIN) if group in reading.groups]
    others = [host for host in reading.hosts.values() if not host.groups.isdisjoint(of_slurm) and host not in members]
    if others:
        message = f"lacks {', '.join(host.name for host in others)}, where jobs and logins of its people would fail"
        hint = f"children: {{{', '.join(f'{group}: {{}}' for group in of_slurm)}}}"
        reading.refuse(reading.top, f"all.children.{SSSD}", message, hint)
    for name, example in _NEEDED.items():
        for host in members:
            if not host.get(name, None):
                reading.refuse(host.place(name), name, f"needed by the group {SSSD}", f"{name}: {example}")
                break
    for host in members:
        if host.get("sssd_id_mapping", False) is True and host.get("sssd_schema", "") != "ad":
            message = "computes IDs from SIDs, which only sssd_schema: ad has"
            reading.refuse(host.place("sssd_id_mapping"), "sssd_id_mapping", message)
        highest = host.get("sssd_highest_id", None)
        lowest = host.get("sssd_lowest_id", 1000)
        if isinstance(highest, int) and isinstance(lowest, int) and highest < lowest:
            message = f"{highest} is below sssd_lowest_id, {lowest}, so that all entries would be ignored"
            reading.refuse(host.place("sssd_highest_id"), "sssd_highest_id", message)


def check_accounts(reading: Reading, given: Given) -> None:
    """Refuse accounts without a UID that are not of a directory, and groups of it that a local group would hide."""
    has_directory = SSSD in reading.groups
    for node in given(reading, USERS):
        for index, one in enumerate(entries_of(node)):
            if "uid" in one or "name" not in one:
                continue
            where = f"{USERS}[{index}]"
            if "state" not in one or one["state"].value != "absent" or not has_directory:
                message = "missing, expected a UID; only state: absent for a person of the directory has none"
                reading.refuse(one["name"].position, f"{where}.uid", message)
            for key in sorted(one.keys() - _OF_DEPARTED):
                reading.refuse(one[key].position, f"{where}.{key}", "has no effect for a person of the directory")
    groups = [one for node in given(reading, "users_groups") for one in entries_of(node) if "name" in one]
    local = {str(one["name"].value) for one in groups}
    common = {str(node.value) for node in given(reading, "users_common_group")} or {"cluster"}
    for variable in ("sssd_login_groups", "sssd_slurm_accounts"):
        for node in given(reading, variable):
            items = node.value if isinstance(node.value, list | dict) else ()
            for item in items:
                name = str(item.value) if isinstance(item, Node) else str(item)
                if name in local or name in common:
                    message = f"{shown(name)} is a local group, which hides one of the directory"
                    reading.refuse(item.position, variable, message, "rename one of the two")
