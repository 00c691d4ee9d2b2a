"""Shared directories and scratch: one NFS server for Slurm, paths that do not overlap, quotas that fit together."""

from collections.abc import Iterator

from clusterctl.inventory.document import Node, shown
from clusterctl.inventory.reading import HostDraft, Reading
from clusterctl.inventory.schedulers import KINDS, LOGIN, SLURM
from clusterctl.inventory.slurm_policy import Given, entries_of

SERVER = "nfs_server"
EXPORTS, MOUNTS, SCRATCH = "nfs_server_exports", "nfs_client_mounts", "slurm_worker_scratch"
QUOTA, ACCOUNTS = "nfs_server_home_quota", "users_accounts"
FOLLOWING = frozenset({SLURM.head, SLURM.workers, LOGIN})
"""Groups whose hosts mount what the server exports."""


def check(reading: Reading, given: Given) -> None:
    """Check values that do not depend on groups; `given` returns the values of a variable, each once."""
    for name in (EXPORTS, MOUNTS):
        for node in given(reading, name):
            paths = set[str]()
            for index, one in enumerate(entries_of(node)):
                path = one.get("path", node)
                if str(path.value) in paths:
                    reading.refuse(path.position, f"{name}[{index}].path", f"duplicate path, got {path.value}")
                paths.add(str(path.value))
    quotas = [(QUOTA, node) for node in given(reading, QUOTA)]
    for node in given(reading, ACCOUNTS):
        found = enumerate(entries_of(node))
        quotas += [(f"{ACCOUNTS}[{i}].home_quota", one["home_quota"]) for i, one in found if "home_quota" in one]
    for key, quota in quotas:
        sizes = {str(name): _bytes(node) for name, node in _items(quota)}
        if sizes.get("soft", 0) > (sizes.get("hard") or float("inf")):
            reading.refuse(quota.position, key, "soft is larger than hard, so it would have no effect")


def _items(node: Node) -> Iterator[tuple[object, Node]]:
    yield from node.value.items() if isinstance(node.value, dict) else ()


def _bytes(size: Node) -> int:
    text = str(size.value)
    number, unit = (text[:-1], text[-1:]) if text[-1:] in "KMGT" else (text, "K")
    return int(number) << 10 * ("KMGT".index(unit) + 1) if number.isdecimal() else 0


def check_groups(reading: Reading) -> None:
    """Check the server's groups, and that mounts and scratch directories of a host do not overlap."""
    servers = [host for host in reading.hosts.values() if SERVER in host.groups]
    key = f"all.children.{SERVER}"
    if len(servers) > 1:
        names = ", ".join(host.name for host in servers)
        reading.refuse(reading.top, key, f"has {names}, expected one host")
    for host in servers:
        if SLURM.head not in reading.groups:
            reading.refuse(host.position, key, f"{host.name} would serve Slurm, but there is no group {SLURM.head}")
        others = {group for kind in KINDS for group in kind.groups} - {SLURM.head}
        if group := next(iter(sorted(others & host.groups)), ""):
            hint = f"use the head, a login node or another host, or remove {host.name} from {group}"
            reading.refuse(host.position, key, f"{host.name} is also in {group}", hint)
    for host in reading.hosts.values():
        _check_mounts(reading, host, servers[0] if servers else None)
        _check_scratch(reading, host, servers[0] if servers else None)


def _exported(host: HostDraft, server: HostDraft | None) -> list[str]:
    """Return the directories that a host mounts from the server, or exports itself."""
    if server is None or not (host is server or host.groups & FOLLOWING):
        return []
    if EXPORTS not in server.merged:
        return [str(server.get("users_home", "/home"))]
    return [str(one["path"].value) for one in entries_of(server.merged[EXPORTS]) if "path" in one]


def _check_mounts(reading: Reading, host: HostDraft, server: HostDraft | None) -> None:
    exported = _exported(host, server)
    for index, one in enumerate(entries_of(host.merged[MOUNTS]) if MOUNTS in host.merged else ()):
        if "path" in one and str(one["path"].value) in exported and server:
            path, where = one["path"], f"{MOUNTS}[{index}].path"
            message = f"{host.name} has {path.value} already, from {server.name} of the group {SERVER}"
            reading.refuse(path.position, where, message, f"remove it here, or from {EXPORTS}")


def _check_scratch(reading: Reading, host: HostDraft, server: HostDraft | None) -> None:
    """Refuse a scratch directory in homes or shared directories, or above them: all in it is deleted."""
    scratch = str(host.get(SCRATCH, "") or "").rstrip("/")
    if not scratch:
        return
    mounts = entries_of(host.merged[MOUNTS]) if MOUNTS in host.merged else []
    used = {str(host.get("users_home", "/home")), "/home", *_exported(host, server)}
    used |= {str(one["path"].value) for one in mounts if "path" in one}
    for path in sorted(used):
        if f"{scratch}/".startswith(f"{path}/") or f"{path}/".startswith(f"{scratch}/"):
            message = f"got {shown(scratch)}, but {path} has homes or shared files, and scratch is deleted after jobs"
            reading.refuse(host.place(SCRATCH), SCRATCH, message, "use a directory on a local disk, such as /local")
            return
