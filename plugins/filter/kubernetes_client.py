"""The filter `kubernetes_client`."""

from __future__ import annotations

from clusterctl.workspace import kubernetes_pki as pki

DOCUMENTATION = r"""
name: kubernetes_client
author: the clusterctl authors
short_description: Issue the certificate of a user of the Kubernetes API
description:
  - Turns the secret C(kubernetes_head_pki_seed) into the certificate and the key of a user. What the user may do is
    decided by role bindings. The same arguments always give the same result, so nothing is stored.
options:
  _input:
    description: The secret.
    type: str
    required: true
  cluster:
    description: The cluster's name.
    type: str
    required: true
  user:
    description: The user's name in the API.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Write the certificate
  ansible.builtin.copy:
    content: "{{ (seed | kubernetes_client('aurora', 'clusterctl:metrics')).certificate }}"
    dest: /etc/prometheus/tls/kubernetes-certificate.pem
    mode: "0644"
  vars:
    seed: "{{ lookup('cluster_secret', 'kubernetes_head_pki_seed') }}"
"""

RETURN = r"""
_value:
  description: C(certificate), C(key), and the C(authority) of API servers and kubelets, as PEM.
  type: dict
"""


def kubernetes_client(seed: str, cluster: str, user: str) -> dict[str, str]:
    """Return a user's certificate and key, and the authority's certificate."""
    return pki.client(str(seed), str(cluster), str(user))


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, object]:
        """Return the filter by its name."""
        return {"kubernetes_client": kubernetes_client}
