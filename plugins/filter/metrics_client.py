"""The filter `metrics_client`."""

from __future__ import annotations

from clusterctl.workspace import certificates

DOCUMENTATION = r"""
name: metrics_client
author: the clusterctl authors
short_description: Issue the certificate with which Prometheus reads exporters
description:
  - Turns the secret C(certificate_authority_seed) into Prometheus's client certificate, its key, and the certificate of
    the authority that issued it. That authority issues nothing else, so the certificate of a node reads no metrics.
  - The same arguments always give the same result, so nothing is stored.
options:
  _input:
    description: The secret.
    type: str
    required: true
  cluster:
    description: The cluster's name.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Write the authority of the clients
  ansible.builtin.copy:
    content: "{{ (seed | metrics_client('aurora')).authority }}"
    dest: /etc/clusterctl-metrics/clients.pem
    mode: "0644"
  vars:
    seed: "{{ lookup('cluster_secret', 'certificate_authority_seed') }}"
"""

RETURN = r"""
_value:
  description: C(certificate), C(key) and C(authority), as PEM.
  type: dict
"""


def metrics_client(seed: str, cluster: str) -> dict[str, str]:
    """Return the certificate of Prometheus, its key, and the authority's certificate."""
    issued = certificates.issue_client(str(seed), str(cluster), "metrics", "prometheus")
    authority = certificates.authority_for(str(seed), str(cluster), "metrics").certificate
    return {"certificate": issued.certificate, "key": issued.key, "authority": authority}


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, object]:
        """Return the filter by its name."""
        return {"metrics_client": metrics_client}
