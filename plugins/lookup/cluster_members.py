"""Lookup of the networks of the cluster's members, for the firewall."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible.plugins.loader import lookup_loader
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = r"""
name: cluster_members
author: the clusterctl authors
short_description: Networks of the cluster's members
description:
  - Returns C(cluster_networks) and the addresses of the given hosts, each once.
  - If C(cluster_networks) is empty, returns the addresses of all interfaces of the recorded nodes. The prefix lengths
    that a node reports are not used, because root of one node could then open all others.
  - A host that has only a name and no record yet is left out.
options:
  _terms:
    description: Names of hosts in the inventory whose addresses are always included.
    required: true
"""

EXAMPLES = r"""
- name: Show who is let through
  ansible.builtin.debug:
    msg: "{{ query('cluster_members', *groups['all']) }}"
"""

RETURN = r"""
_raw:
  description: Networks in CIDR notation, those of IPv4 first.
  type: list
  elements: str
"""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def own(records: Iterable[Mapping[str, Any]]) -> set[Network]:
    """Return the addresses of recorded nodes, each as a network of one address."""
    texts = {text for record in records for nic in record["nics"] for text in nic["addresses"]}
    addresses = [ipaddress.ip_interface(text).ip for text in texts]
    usable = [one for one in addresses if not (one.is_loopback or one.is_link_local or one.is_unspecified)]
    return {ipaddress.ip_network(one) for one in usable}


class LookupModule(LookupBase):
    """Reads the hardware records only if the inventory has no networks."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[str]:
        """Return the members' networks."""
        variables = variables or {}
        known: Sequence[str] = [str(network) for network in variables["cluster_networks"]]
        networks = {ipaddress.ip_network(network, strict=False) for network in known}
        if not known:
            [records] = self._other("cluster_hardware").run([], variables=variables)
            networks |= own(records.values())
        addresses = self._other("node_ip").run(terms, variables=variables)
        networks |= {ipaddress.ip_network(address) for address in addresses if address}
        return [str(one) for one in sorted(networks, key=lambda one: (one.version, one))]

    def _other(self, name: str) -> Any:
        return lookup_loader.get(name, loader=self._loader, templar=self._templar)
