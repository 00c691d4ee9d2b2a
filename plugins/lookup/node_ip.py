"""Lookup of nodes' IP addresses, for files that have no room for a name (a hosts file, a time server's clients)."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.loader import lookup_loader
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = r"""
name: node_ip
author: the clusterctl authors
short_description: IP addresses of nodes as the cluster sees them
description:
  - Returns each host's C(cluster_address) where that is an IP address. Where it is a name, returns the first address of
    the host's hardware record that lies in C(cluster_networks), or any where no networks are named.
  - A host that was never reached has no record; where its address is a name, too, an empty text stands for it.
options:
  _terms:
    description: Names of hosts in the inventory.
    required: true
"""

EXAMPLES = r"""
- name: Show the address of every node
  ansible.builtin.debug:
    msg: "{{ query('node_ip', *groups['all']) }}"
"""

RETURN = r"""
_raw:
  description: The addresses, in the order of the names.
  type: list
  elements: str
"""


def is_ip(text: str) -> bool:
    """Tell whether ``text`` is an IP address and no name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def recorded(record: Mapping[str, Any], networks: Sequence[str]) -> str:
    """Return the first address of a hardware record that is in ``networks`` (empty: any), or an empty string."""
    wanted = [ipaddress.ip_network(network, strict=False) for network in networks]
    for nic in record.get("nics", ()):
        for text in nic["addresses"]:
            ip = ipaddress.ip_interface(text).ip
            if not (ip.is_loopback or ip.is_link_local) and (not wanted or any(ip in network for network in wanted)):
                return str(ip)
    return ""


class LookupModule(LookupBase):
    """Reads the hardware records only where an address is a name."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[str]:
        """Return the addresses of ``terms``; an address that cannot be known is an error that names the host."""
        variables = variables or {}
        addresses = {name: str(variables["hostvars"][name]["cluster_address"]) for name in terms}
        if not all(map(is_ip, addresses.values())):
            reader = lookup_loader.get("cluster_hardware", loader=self._loader, templar=self._templar)
            named = [name for name, address in addresses.items() if not is_ip(address)]
            records = dict(zip(named, reader.run(named, variables=variables), strict=True))
            networks = [str(network) for network in variables["cluster_networks"]]
            for name, address in addresses.items():
                if not is_ip(address):
                    addresses[name] = recorded(records[name], networks)
                if not addresses[name] and records.get(name):
                    raise AnsibleLookupError(
                        f"{name}: {address} is a name, and no recorded address of the node is in its networks; "
                        "set cluster_address to its IP address"
                    )
        return [addresses[name] for name in terms]
