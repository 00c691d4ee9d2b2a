"""Lookup of nodes' IP addresses, for files that cannot have names (a hosts file, a time server's clients)."""

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
short_description: Return the IP addresses of nodes in the cluster
description:
  - Returns each host's C(cluster_address) if it is an IP address. If it is a name, returns the first address of the
    host's hardware record in C(cluster_networks), or the first of all if there are no networks.
  - For a host with neither an IP address nor a record, returns an empty text.
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
    """Return whether ``text`` is an IP address."""
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
    """Reads the hardware records only if an address is a name."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[str]:
        """Return the addresses of ``terms``. Raises AnsibleLookupError with the host if its address is not known."""
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
