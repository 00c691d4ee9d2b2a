"""Check the Kubernetes part of an inventory: heads, networks, the address of the API, versions, labels."""

import re
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network

from clusterctl.inventory import addresses
from clusterctl.inventory.addresses import API_ADDRESS, POD_NETWORK, SERVICE_NETWORK
from clusterctl.inventory.document import Node, shown
from clusterctl.inventory.reading import HostDraft, Reading
from clusterctl.inventory.schedulers import KUBERNETES
from clusterctl.util.errors import Position
from clusterctl.util.text import plural

VERSION = "kubernetes_node_version"
STORAGE, EXPORT = "kubernetes_storage_class", "kubernetes_storage_nfs_export"
KEEPALIVED, HAPROXY = "kubernetes_head_keepalived", "kubernetes_head_haproxy"
API_NAME = "kubernetes-api"  # the API's name in the cluster's domain
SHARED = (
    POD_NETWORK,
    SERVICE_NETWORK,
    API_ADDRESS,
    "kubernetes_node_api_port",
    "kubernetes_node_service_domain",
    "kubernetes_node_image_registry",
)
"""Variables with one value in the whole cluster: kubeadm writes them into certificates and into each node's files."""
# The controller manager gives each node a network of this size, and kubeadm accepts only these sizes of the whole
# (defaultNodeMaskCIDRIPv4, PodSubnetNodeMaskMaxDiff and MaximumBitsForServiceSubnet of cmd/kubeadm/app; the tenth
# address of the service network is the DNS service's).
NODE_PREFIX = 24
PREFIXES = {POD_NETWORK: (NODE_PREFIX - 16, NODE_PREFIX), SERVICE_NETWORK: (12, 28)}
# A kubelet may be three minor releases older than the API server and not newer; API servers of several heads may be
# one apart (https://kubernetes.io/releases/version-skew-policy/).
OLDER_WORKERS, OLDER_HEADS = 3, 1
# The name of a label has 63 characters at most, and begins and ends with a letter or digit; group.NAME is one.
LABEL = re.compile("[a-z0-9]([a-z0-9_]{0,55}[a-z0-9])?")
_OTHERS = ("cluster_networks", "cluster_admin_networks", "cluster_nameservers", "cluster_ntp_servers")


def check(reading: Reading) -> None:
    """Report all inconsistencies to the reading. The reading has the whole inventory."""
    members = _members(reading, KUBERNETES.head, KUBERNETES.workers)
    if members:
        _heads(reading)
        _names(reading)
        _one_value(reading, members, SHARED)
        _networks(reading, members)
        _api(reading, members)
        _haproxy(reading)
        _storage(reading)
        _versions(reading)


def _members(reading: Reading, *groups: str) -> list[HostDraft]:
    return [host for host in reading.hosts.values() if not host.groups.isdisjoint(groups)]


def _heads(reading: Reading) -> None:
    """Refuse an even number of heads, which tolerates no more failures than one head less, and heads that are workers.

    Source: https://etcd.io/docs/v3.6/faq/#why-an-odd-number-of-cluster-members. Each head has a member of etcd.
    """
    heads = _members(reading, KUBERNETES.head)
    if heads and len(heads) % 2 == 0:
        message = f"got {len(heads)} heads, expected an odd number"
        hint = f"{len(heads)} members of etcd tolerate as many failures as {len(heads) - 1}"
        reading.refuse(heads[-1].position, f"all.children.{KUBERNETES.head}", message, hint)
    for host in heads:
        if KUBERNETES.workers in host.groups:
            message = f"is in {KUBERNETES.head} and in {KUBERNETES.workers}, expected one of them"
            reading.refuse(host.position, host.name, message)


def _names(reading: Reading) -> None:
    """Refuse names that are no labels of Kubernetes, and the API's name as a host's."""
    for group in reading.groups.values():
        if KUBERNETES.workers in group.lineage[:-1] and not LABEL.fullmatch(group.name):
            expected = "at most 57 characters, the last one a letter or a digit"
            message = f'no valid label, got "{shown(group.name)}", expected {expected}'
            reading.refuse(reading.top, f"{KUBERNETES.workers}.children.{group.name}", message)
    if API_NAME in reading.hosts:
        host = reading.hosts[API_NAME]
        reading.refuse(host.position, host.name, "is the name of the Kubernetes API in the cluster's domain")


def _one_value(reading: Reading, members: Sequence[HostDraft], names: Sequence[str]) -> None:
    for name in names:
        values = {host.name: _value(reading, host, name) for host in members}
        first = members[0].name
        for host in members:
            if values[host.name] != values[first]:
                message = f"differs between {first} and {host.name}, expected one value in all.vars"
                at = host.merged.get(name) or members[0].merged[name]
                reading.refuse(at.position, name, message)
                break


def _value(reading: Reading, host: HostDraft, name: str) -> object:
    return host.merged[name].value if name in host.merged else reading.known.defaults.get(name)


# --- networks ---------------------------------------------------------------------------------------------------------


def _networks(reading: Reading, members: Sequence[HostDraft]) -> None:
    """Check the sizes of both networks, and that they overlap neither each other nor an address of the site.

    Such an address could not be reached from pods and nodes: their routes lead into the cluster.
    """
    networks: dict[str, IPv4Network] = {}
    for name in (POD_NETWORK, SERVICE_NETWORK):
        at, text = _place(reading, members[0], name), _value(reading, members[0], name)
        if not isinstance(text, str) or not addresses.is_network(text):
            continue  # its value was refused
        network = ip_network(text)
        if not isinstance(network, IPv4Network):
            reading.refuse(at, name, f"Kubernetes uses IPv4 only, got {text}")
            continue
        least, most = PREFIXES[name]
        if not least <= network.prefixlen <= most:
            reading.refuse(at, name, f"bad size, got {text}, expected a prefix length from {least} to {most}")
            continue
        networks[name] = network
    if POD_NETWORK in networks:
        _room(reading, members, networks[POD_NETWORK])
    if len(networks) == 2 and networks[POD_NETWORK].overlaps(networks[SERVICE_NETWORK]):
        message = f"overlaps {SERVICE_NETWORK}, got {networks[POD_NETWORK]} and {networks[SERVICE_NETWORK]}"
        reading.refuse(_place(reading, members[0], POD_NETWORK), POD_NETWORK, message)
    for at, key, text, other in _site(reading):
        for name, network in networks.items():
            if network.overlaps(other):
                place = members[0].merged[name].position if name in members[0].merged else at
                message = f"overlaps {key}, got {network} and {text}"
                reading.refuse(place, name, message, f"set {name} to a network that is unused at this site")


def _room(reading: Reading, members: Sequence[HostDraft], network: IPv4Network) -> None:
    room = 2 ** (NODE_PREFIX - network.prefixlen)
    if len(members) > room:
        message = f"{network} has networks for {plural(room, 'node')}, got {len(members)} nodes"
        hint = f"each node needs a /{NODE_PREFIX} of its own"
        reading.refuse(_place(reading, members[0], POD_NETWORK), POD_NETWORK, message, hint)


def _place(reading: Reading, host: HostDraft, name: str) -> Position:
    return host.merged[name].position if name in host.merged else reading.top


def _site(reading: Reading) -> Iterator[tuple[Position, str, str, IPv4Network]]:
    """Yield position, key, text and network of each network and address that the inventory has."""
    seen: set[int] = set()
    for host in reading.hosts.values():
        for variable in _OTHERS:
            node = host.merged.get(variable)
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))  # many hosts may share it
            for item in node.value if isinstance(node.value, list) else ():
                # A list of 0.0.0.0/0 means anyone, and is no network of the site.
                if isinstance(item.value, str) and (network := _network(item.value)) and network.prefixlen:
                    yield item.position, variable, item.value, network
        for variable in ("cluster_address", "ansible_host"):
            value = host.get(variable, "")
            if isinstance(value, str) and (network := _network(value)):
                yield host.place(variable), f"the address of {host.name}", value, network
                break  # inside the cluster, only cluster_address is used


def _network(text: str) -> IPv4Network | None:
    """Return a network or address as a network; None for IPv6 and for names."""
    try:
        found = ip_network(text)
    except ValueError:
        return None
    return found if isinstance(found, IPv4Network) else None


# --- the API and versions ---------------------------------------------------------------------------------------------


def _api(reading: Reading, members: Sequence[HostDraft]) -> None:
    """Check the API's address: with several heads it must not be one head's own, and it is never a worker's."""
    node = members[0].merged.get(API_ADDRESS)
    if node is None or not isinstance(node.value, str) or not node.value:
        return
    address, heads = node.value, _members(reading, KUBERNETES.head)
    for host in members:
        if address not in (host.get("cluster_address", host.get("ansible_host", host.name)), host.name):
            continue
        if host not in heads:
            reading.refuse(node.position, API_ADDRESS, f"got {address}, which is the worker {host.name}'s")
        elif len(heads) > 1:
            message = f"got {address}, which is the address of {host.name} alone"
            hint = "expected an address that a load balancer or keepalived keeps while one head is down"
            reading.refuse(node.position, API_ADDRESS, message, hint)
    for name in (POD_NETWORK, SERVICE_NETWORK):
        text = _value(reading, members[0], name)
        if addresses.is_ip(address) and isinstance(text, str) and addresses.is_network(text):
            found = ip_address(address)
            if isinstance(found, IPv4Address) and found in ip_network(text):
                reading.refuse(node.position, API_ADDRESS, f"got {address}, which is in {name}, {text}")


def _haproxy(reading: Reading) -> None:
    """Refuse haproxy without an address that keepalived moves between the heads.

    All heads need the same value: it changes options of the API server, of which kubeadm stores one set.
    """
    heads = _members(reading, KUBERNETES.head)
    if not any(_value(reading, host, HAPROXY) is True for host in heads):
        return
    _one_value(reading, heads, (HAPROXY, KEEPALIVED))
    at, address = _place(reading, heads[0], HAPROXY), _value(reading, heads[0], API_ADDRESS)
    own = {host.get("cluster_address", host.get("ansible_host", host.name)) for host in heads}
    if _value(reading, heads[0], KEEPALIVED) is False:
        message = f"expected {KEEPALIVED}: true, because haproxy listens on the address that keepalived moves"
        reading.refuse(at, HAPROXY, message)
    elif not (isinstance(address, str) and addresses.is_ip(address)) or address in own:
        message = f"expected an IP address that no host has in {API_ADDRESS}, got {shown(str(address)) or 'none'}"
        reading.refuse(
            at, HAPROXY, message, "haproxy listens on that address, which keepalived moves between the heads"
        )


def _storage(reading: Reading) -> None:
    """Refuse volumes on the first of several heads: they would be lost if that head was removed or replaced."""
    heads = _members(reading, KUBERNETES.head)
    if len(heads) > 1 and _value(reading, heads[0], STORAGE) == "nfs" and not _value(reading, heads[0], EXPORT):
        message = f"expected the export of an NFS server: volumes on {heads[0].name} would be lost with that head"
        reading.refuse(_place(reading, heads[0], STORAGE), EXPORT, message)


def minor(version: object) -> int | None:
    """Return the minor release of a version of Kubernetes: 36 of 1.36.3; None for another text."""
    found = re.match(r"v?1\.(\d{1,4})(?:[.+-]|$)", str(version))
    return int(found[1]) if found else None


def _versions(reading: Reading) -> None:
    """Refuse pins that the version skew policy forbids."""
    heads, workers = ((_members(reading, group)) for group in (KUBERNETES.head, KUBERNETES.workers))
    releases = {host.name: minor(_value(reading, host, VERSION)) for host in (*heads, *workers)}
    known = [release for host in heads if (release := releases[host.name]) is not None]
    if not known:
        return
    oldest = min(known)
    for host, least in [*((host, max(known) - OLDER_HEADS) for host in heads),
                        *((host, oldest - OLDER_WORKERS) for host in workers)]:  # fmt: skip
        release, newest = releases[host.name], max(known) if host in heads else oldest
        node: Node | None = host.merged.get(VERSION)
        if release is not None and not least <= release <= newest:
            at = node.position if node else reading.top
            range_ = f"1.{newest}" if least == newest else f"1.{least} to 1.{newest}"
            message = f"got 1.{release} for {host.name}, which is not compatible with the heads, expected {range_}"
            reading.refuse(at, VERSION, message)
