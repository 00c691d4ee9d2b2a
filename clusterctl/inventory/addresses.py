"""The address in the cluster of a host that the inventory has by its name."""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Interface, IPv4Network, ip_interface, ip_network


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
