"""Filters for networks in nftables' form: by address family, without overlaps; and for networks of interfaces."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import Any

FAMILIES = {4: "ip", 6: "ip6"}


def by_family(networks: Iterable[str]) -> dict[str, list[str]]:
    """Return the collapsed networks under C(ip) and C(ip6); a family without networks is left out."""
    known = [ipaddress.ip_network(network, strict=False) for network in networks]
    found = {}
    for version, family in FAMILIES.items():
        own = [str(one) for one in ipaddress.collapse_addresses(n for n in known if n.version == version)]
        if own:
            found[family] = own
    return found


def networks_with(interfaces: Iterable[str], address: str) -> list[str]:
    """Return the networks of the interfaces, such as C(10.0.0.5/24), with this address; none for a name."""
    known = [ipaddress.ip_interface(interface) for interface in interfaces]
    return [str(one.network) for one in known if str(one.ip) == address]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"by_family": by_family, "networks_with": networks_with}
