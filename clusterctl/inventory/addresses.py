"""Addresses and networks, and the address in the cluster of a host that the inventory has by its name.

Lookups import this, so a role may read each variable that is named here: run/role_variables.py.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Interface, IPv4Network, ip_interface, ip_network

POD_NETWORK, SERVICE_NETWORK = "kubernetes_node_pod_network", "kubernetes_node_service_network"
API_ADDRESS = "kubernetes_node_api_address"
BESIDE = (POD_NETWORK, SERVICE_NETWORK, API_ADDRESS)
"""Variables with what may be on a node's interfaces besides its own addresses."""


def is_ip(text: str) -> bool:
    """Return whether `text` is an IPv4 or IPv6 address without a zone."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def is_network(text: str) -> bool:
    """Return whether `text` is an IPv4 or IPv6 network in CIDR notation, without host bits."""
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return "/" in text and "%" not in text


def candidates(nics: Iterable[Sequence[str]], networks: Sequence[str], without: Sequence[str] = ()) -> list[str]:
    """Return the addresses that a host may have in the cluster; only one of them is certain.

    `nics` are the addresses of its interfaces, such as 10.0.0.5/24, `networks` those of `cluster_networks`: the first
    one in which the host has an address counts, and without networks all do. `without` has networks and addresses that
    are no host's, such as those of pods. Slurm and Kubernetes use IPv4 only.
    """
    others = [ip_network(text, strict=False) for text in without]
    usable = [[one for text in nic if (one := _usable(text)) and not any(one.ip in o for o in others)] for nic in nics]
    given = [ip_network(text, strict=False) for text in networks]
    wanted = [network for network in given if isinstance(network, IPv4Network)]
    for network in wanted if networks else [IPv4Network("0.0.0.0/0")]:
        if found := [str(one.ip) for nic in usable for one in _first([one for one in nic if one.ip in network])]:
            return found
    return []


def _usable(text: str) -> IPv4Interface | None:
    one = ip_interface(text)
    return one if isinstance(one, IPv4Interface) and not (one.is_loopback or one.is_link_local) else None


def _first(nic: Iterable[IPv4Interface]) -> list[IPv4Interface]:
    """Return an interface's first address in each network: later ones move between hosts, such as keepalived's."""
    found: list[IPv4Interface] = []
    for one in nic:
        if not any(one.ip in first.network for first in found):
            found.append(one)
    return found


def of_kubernetes(nics: Sequence[Sequence[str]], networks: Sequence[str], beside: Mapping[str, object]) -> list[str]:
    """Return the addresses that a node of Kubernetes may have in the cluster; `beside` are values of BESIDE.

    The API's address moves between heads, and is a single head's own one.
    """
    pods = [str(beside[name]) for name in (POD_NETWORK, SERVICE_NETWORK) if is_network(str(beside[name]))]
    api = [str(beside[API_ADDRESS])] if is_ip(str(beside[API_ADDRESS])) else []
    return candidates(nics, networks, [*pods, *api]) or candidates(nics, networks, pods)
