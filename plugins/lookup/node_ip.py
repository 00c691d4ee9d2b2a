"""Lookup of nodes' IP addresses, for files that cannot have names (a hosts file, a time server's clients)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.loader import lookup_loader
from ansible.plugins.lookup import LookupBase

from clusterctl.inventory import addresses, schema
from clusterctl.inventory.schedulers import KUBERNETES

DOCUMENTATION = r"""
name: node_ip
author: the clusterctl authors
short_description: Return the IP addresses of nodes in the cluster
description:
  - Returns each host's C(cluster_address) if it is an IP address. If it is a name, returns the first IPv4 address of
    the host's hardware record in the first of C(cluster_networks) that it has an address in, or the first of all if
    there are no networks. Preflight refuses a host of Kubernetes that has several.
  - On hosts of Kubernetes, the addresses of the API and of networks of pods and services do not count.
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


def recorded(record: Mapping[str, Any], networks: Sequence[str], beside: Mapping[str, Any] | None = None) -> str:
    """Return the address of a hardware record in ``networks`` (empty: any), or an empty string.

    ``beside`` has the variables of Kubernetes for one of its nodes.
    """
    nics = [nic["addresses"] for nic in record.get("nics", ())]
    found = addresses.of_kubernetes(nics, networks, beside) if beside else addresses.candidates(nics, networks)
    return next(iter(found), "")


class LookupModule(LookupBase):
    """Reads the hardware records only if an address is a name."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[str]:
        """Return the addresses of ``terms``. Raises AnsibleLookupError with the host if its address is not known."""
        variables = variables or {}
        hostvars = variables.get("hostvars", {})
        found = {name: str(hostvars[name]["cluster_address"]) for name in terms}
        named = {name: address for name, address in found.items() if not addresses.is_ip(address)}
        if named:
            reader = lookup_loader.get("cluster_hardware", loader=self._loader, templar=self._templar)
            records = dict(zip(named, reader.run([*named], variables=variables), strict=True))
            networks = [str(network) for network in variables["cluster_networks"]]
            groups, defaults = variables.get("groups", {}), schema.load().defaults
            nodes = {name for group in KUBERNETES.groups for name in groups.get(group, ())}
            for name, address in named.items():
                values = {key: hostvars[name].get(key, defaults[key]) for key in addresses.BESIDE}
                found[name] = recorded(records[name], networks, values if name in nodes else None)
                if not found[name] and records.get(name):
                    raise AnsibleLookupError(
                        f"{name}: {address} is a name, and no recorded address of the node is in its networks; "
                        "set cluster_address to its IP address"
                    )
        return [found[name] for name in terms]
