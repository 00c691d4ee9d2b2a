"""Lookup of what all nodes of the Kubernetes cluster share: its heads, the API's name and address, its networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.loader import lookup_loader
from ansible.plugins.lookup import LookupBase

from clusterctl.inventory import addresses, schema

DOCUMENTATION = r"""
name: kubernetes_cluster
author: the clusterctl authors
short_description: Return what all nodes of the Kubernetes cluster share
description:
  - Reads the variables C(kubernetes_node_*) of the first head, with their defaults. All nodes have to agree on them,
    so a value that only another host has is not used.
  - Roles of other plays, such as base, do not see the defaults of role kubernetes_node.
options:
  _terms:
    description: None.
"""

EXAMPLES = r"""
- name: Show how to reach the API
  ansible.builtin.debug:
    msg: "https://{{ lookup('kubernetes_cluster').endpoint }}"
"""

RETURN = r"""
_raw:
  description: >-
    One mapping: C(heads) (names of hosts, empty without Kubernetes), C(api_name), C(api_addresses) (what the name
    resolves to in the cluster; empty for a name in the site's DNS), C(endpoint) (name and port), C(api_port),
    C(pod_network), C(service_network), C(service_domain), C(image_registry), C(version), C(reserved) (pattern of the
    namespaces of Kubernetes, its parts and clusterctl, which no person or team can have).
  type: list
  elements: dict
"""

SHARED = (
    "kubernetes_node_api_address",
    "kubernetes_node_api_port",
    "kubernetes_node_image_registry",
    "kubernetes_node_pod_network",
    "kubernetes_node_service_domain",
    "kubernetes_node_service_network",
    "kubernetes_node_version",
)

# Kubernetes' own, then those of the roles' parts, whose pods are privileged.
RESERVED = r"((kube|kubernetes|system|default|clusterctl|nvidia)(-.*)?|local-path-storage|csi-nfs)$"


def api(given: str, domain: str, heads: Sequence[str]) -> tuple[str, list[str]]:
    """Return the name of the API and the addresses that the cluster resolves it to.

    An address can change later without a new certificate, because clients use the name. Without an address the name
    resolves to all heads, and clients try each: Go's net.Dial "will try each IP address in order until one succeeds".
    """
    own = f"kubernetes-api.{domain}"
    if not given:
        return own, list(heads)
    return (own, [given]) if addresses.is_ip(given) else (given, [])


class LookupModule(LookupBase):
    """Reads hostvars of the first head only."""

    def run(self, terms: list[Any], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[dict[str, Any]]:
        """Return the one mapping."""
        if terms:
            raise AnsibleLookupError("kubernetes_cluster has no terms")
        known = variables or {}
        heads = list(known.get("groups", {}).get("kubernetes_head", ()))
        of_head: Mapping[str, Any] = known["hostvars"][heads[0]] if heads else {}
        defaults = schema.load().defaults
        found = {name.removeprefix("kubernetes_node_"): of_head.get(name, defaults[name]) for name in SHARED}
        reader = lookup_loader.get("node_ip", loader=self._loader, templar=self._templar)
        of_heads = [one for one in reader.run(heads, variables=known) if one] if heads else []
        domain = str(of_head.get("cluster_domain", ""))
        name, resolved = api(str(found.pop("api_address")), domain, of_heads)
        endpoint = f"{name}:{found['api_port']}"
        found |= {"api_name": name, "api_addresses": resolved, "endpoint": endpoint, "reserved": RESERVED}
        return [{"heads": heads, **found}]
