"""Kubernetes' preflight checks: what its kubelet and kubeadm need of a node, a lost control plane, releases."""

from collections.abc import Iterator, Mapping
from typing import Any

from clusterctl.inventory import addresses, schema
from clusterctl.inventory.kubernetes_consistency import (
    OLDER_HEADS,
    OLDER_WORKERS,
    VERSION,
    minor,
)
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.schedulers import KUBERNETES
from clusterctl.nodes.contact import Answer, Facts
from clusterctl.util.errors import Finding
from clusterctl.workspace.hardware import Hardware

DAEMON = "kubelet"  # the package whose version is the node's
ROLE = "kubernetes_node"
# kubeadm's own preflight (ControlPlaneNumCPU and ControlPlaneMem in cmd/kubeadm/app/constants).
HEAD_CPUS, HEAD_MEMORY_MB = 2, 1700
# The kubelet refuses version 1 of cgroups by default since this minor release (failCgroupV1 of KubeletConfiguration).
REFUSES_CGROUP_V1 = 35
# Controllers that the kubelet needs with version 2 of cgroups, for limits of CPU and memory and for pinned CPUs.
CONTROLLERS = ("cpu", "cpuset", "memory")
_KUBELET = "kubernetes_node_kubelet_config"
_RESTORE = "restore a backup: clusterctl restore; to start with an empty cluster: --new-head"


def nodes(inventory: Inventory, facts: Mapping[str, Facts], known: Mapping[str, Hardware]) -> Iterator[Finding]:
    """Yield the hosts on which the kubelet or the control plane would not start."""
    for host in _members(inventory):
        if host.name in facts:
            yield from _swap(host, facts[host.name].node.swap_mb)
        if host.name not in known:
            continue
        node = known[host.name]
        yield from _cgroups(host, node)
        yield from _address(host, node)
        if KUBERNETES.head in host.groups:
            ignored = _setting(host, "kubernetes_head_ignore_checks") or ()
            if node.cpu.cpus < HEAD_CPUS and "NumCPU" not in ignored:
                yield Finding(host.name, "cpu", f"{node.cpu.cpus} CPU", f"a head needs at least {HEAD_CPUS}")
            if node.memory_mb < HEAD_MEMORY_MB and "Mem" not in ignored:
                yield Finding(host.name, "memory", f"{node.memory_mb} MB", f"a head needs at least {HEAD_MEMORY_MB} MB")


def _cgroups(host: Host, node: Hardware) -> Iterator[Finding]:
    release = minor(_setting(host, VERSION))
    if node.cgroup.version == 1:
        refuses = _kubelet(host).get("failCgroupV1", (release or REFUSES_CGROUP_V1) >= REFUSES_CGROUP_V1)
        if refuses is not False:
            hint = f"boot with systemd.unified_cgroup_hierarchy=1, or set {_KUBELET}: {{failCgroupV1: false}}"
            yield Finding(host.name, "cgroups", "version 1 of cgroups, which the kubelet refuses", hint)
        return
    if missing := [name for name in CONTROLLERS if name not in node.cgroup.controllers]:
        found = f"cgroups lack the controllers {', '.join(missing)}, which the kubelet needs"
        yield Finding(host.name, "cgroups", found, "enable them, see kernel-command-line(7)")


def _address(host: Host, node: Hardware) -> Iterator[Finding]:
    """Yield a host with a name whose address in the cluster is not certain: plugins/lookup/node_ip.py would guess."""
    name = str(host.variables.get("cluster_address", host.address))
    if addresses.is_ip(name):
        return
    networks = [str(network) for network in host.variables.get("cluster_networks") or ()]
    found = addresses.of_kubernetes(
        [nic.addresses for nic in node.nics], networks, {key: _setting(host, key) for key in addresses.BESIDE}
    )
    if len(found) == 1:
        return
    has = f"the node has {', '.join(found)}" if found else "the node has no IPv4 address"
    where = " in cluster_networks" if networks else ""
    hint = "set cluster_networks to the network of the nodes, or cluster_address of the host to its IP address"
    yield Finding(host.name, "address", f"{name} is a name, and {has}{where}", hint)


def _swap(host: Host, size: int) -> Iterator[Finding]:
    if size and _kubelet(host).get("failSwapOn", True) is not False:
        hint = f"disable it: swapoff -a, and in /etc/fstab; or set {_KUBELET}: {{failSwapOn: false}}"
        yield Finding(host.name, "swap", f"{size} MB of swap, with which the kubelet does not start", hint)


def daemon_of(host: Host) -> str:
    """Return the daemon of Kubernetes that a host runs; empty for other hosts."""
    return DAEMON if host.scheduler is KUBERNETES else ""


def unmanaged(host: Host, facts: Facts) -> Iterator[Finding]:
    """Yield a kubelet that another tool has set up: kubeadm cannot join the node to a second cluster."""
    if daemon_of(host) in facts.node.before and ROLE not in facts.node.roles:
        hint = "remove the node from its cluster, then run on it: kubeadm reset"
        yield Finding(host.name, "kubernetes", "kubelet not managed by clusterctl", hint)


def needed_heads(inventory: Inventory, answers: Mapping[str, Answer]) -> set[str]:
    """Return the heads that a run cannot skip: all of them if no majority responds."""
    heads = [host.name for host in inventory.in_group(KUBERNETES.head)]
    silent = [name for name in heads if name in answers and not answers[name].facts]
    return {*heads} if 2 * len(silent) >= len(heads) else set()


def lost_head(
    inventory: Inventory, facts: Mapping[str, Facts], records: Mapping[str, Hardware], wanted: bool
) -> Iterator[Finding]:
    """Yield heads that are all without a control plane, while workers have joined one.

    A new control plane has no objects: the kubelets would register with it and end all their pods. If a head's machine
    was replaced, recorded workers that this run does not contact count as joined.
    """
    heads = inventory.in_group(KUBERNETES.head)
    if any(head.name not in facts or "controller" in facts[head.name].node.kubernetes for head in heads):
        return
    replaced = any(
        head.name in records and records[head.name].machine_id != facts[head.name].hardware.machine_id for head in heads
    )
    joined = [
        host.name
        for host in inventory.in_group(KUBERNETES.workers)
        if ("worker" in facts[host.name].node.kubernetes if host.name in facts else replaced and host.name in records)
    ]
    for head in heads if joined else ():
        others = " and others have" if len(joined) > 1 else " has"
        found = f"has no control plane, but {joined[0]}{others} joined one; a new one would end all their pods"
        hint = "the cluster starts empty" if wanted else _RESTORE
        yield Finding(head.name, "lost head", found, hint, warning=wanted)


def upgrade(
    inventory: Inventory, moves: Mapping[str, tuple[str, str]], present: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield changes of the release that are not supported; `moves` are old and new versions by host.

    `present` are the installed versions of hosts that stay as they are. kubeadm upgrades a control plane by one minor
    release at a time and never downgrades (https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/kubeadm-upgrade/).
    """
    after = {name: minor(version) for name, version in present.items()}
    after |= {name: minor(new) for name, (_, new) in moves.items()}
    heads = [host.name for host in inventory.in_group(KUBERNETES.head)]
    for name, (old, new) in moves.items():
        was, will = minor(old), minor(new)
        if name in heads and was is not None and will is not None and not 0 <= will - was <= 1:
            found = f"kubeadm does not change Kubernetes from 1.{was} to 1.{will}"
            yield Finding(name, "kubernetes version", found, f"upgrade one release at a time: {VERSION}")
    known = [release for name in heads if (release := after.get(name)) is not None]
    if not known:
        return
    oldest, newest = min(known), max(known)
    for name, release in after.items():
        least, most = (newest - OLDER_HEADS, newest) if name in heads else (oldest - OLDER_WORKERS, oldest)
        if release is not None and not least <= release <= most:
            found = f"Kubernetes 1.{release} is not compatible with the heads (accept 1.{least} to 1.{most})"
            yield Finding(name, "kubernetes version", found, f"correct {VERSION}, or upgrade all nodes")


def _members(inventory: Inventory) -> list[Host]:
    return [host for host in inventory.hosts if host.scheduler is KUBERNETES]


def _setting(host: Host, name: str) -> Any:
    return host.variables.get(name, schema.load().defaults.get(name))


def _kubelet(host: Host) -> Mapping[str, Any]:
    """Return the kubelet's own configuration on a host, which the roles check, too."""
    found = _setting(host, _KUBELET)
    return found if isinstance(found, Mapping) else {}
