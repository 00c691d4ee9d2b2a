"""Lookup of all addresses of nodes: a node's routes select the one from which it connects."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.plugins.loader import lookup_loader
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = r"""
name: node_addresses
author: the clusterctl authors
short_description: Return all addresses from which nodes may connect
description:
  - Returns the address of each host in the cluster and those of its recorded interfaces, each once.
  - A host that has only a name and no record yet is left out.
options:
  _terms:
    description: Names of hosts in the inventory.
    required: true
"""

EXAMPLES = r"""
- name: Show from where Prometheus may connect
  ansible.builtin.debug:
    msg: "{{ query('node_addresses', *groups['monitoring']) }}"
"""

RETURN = r"""
_raw:
  description: The addresses.
  type: list
  elements: str
"""


def recorded(record: Mapping[str, Any]) -> list[str]:
    """Return the addresses of a hardware record with which other hosts can be reached."""
    found = [ipaddress.ip_interface(text).ip for nic in record.get("nics", ()) for text in nic["addresses"]]
    return [str(one) for one in found if not (one.is_loopback or one.is_link_local or one.is_unspecified)]


def once(addresses: Iterable[str]) -> list[str]:
    """Return each address once, without empty texts."""
    return [one for one in dict.fromkeys(addresses) if one]


class LookupModule(LookupBase):
    """Combines node_ip and the hardware records."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[str]:
        """Return the addresses of ``terms``."""
        if not terms:
            return []
        addresses = self._other("node_ip").run(terms, variables=variables)
        records = self._other("cluster_hardware").run(terms, variables=variables)
        return once([*addresses, *(one for record in records for one in recorded(record))])

    def _other(self, name: str) -> Any:
        return lookup_loader.get(name, loader=self._loader, templar=self._templar)
