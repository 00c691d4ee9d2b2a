"""The filter `kubernetes_pki`."""

from __future__ import annotations

from clusterctl.workspace import kubernetes_pki as pki

DOCUMENTATION = r"""
name: kubernetes_pki
author: the clusterctl authors
short_description: Derive the files that all Kubernetes heads share
description:
  - Turns the secret C(kubernetes_head_pki_seed) into the certificate authorities of Kubernetes, of its front proxy and
    of etcd, and the key of service accounts. The same secret always gives the same files, so a head can be replaced
    without another head.
options:
  _input:
    description: The secret.
    type: str
    required: true
  cluster:
    description: The cluster's name, shown in the certificates.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show which files there are
  ansible.builtin.debug:
    msg: "{{ (seed | kubernetes_pki('aurora')).keys() }}"
  vars:
    seed: "{{ lookup('cluster_secret', 'kubernetes_head_pki_seed') }}"
"""

RETURN = r"""
_value:
  description: The files as PEM, by their paths below C(/etc/kubernetes/pki).
  type: dict
"""


def kubernetes_pki(seed: str, cluster: str) -> dict[str, str]:
    """Return the files by their paths."""
    return pki.shared(str(seed), str(cluster))


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, object]:
        """Return the filter by its name."""
        return {"kubernetes_pki": kubernetes_pki}
