"""The filter `client_certificate`."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError
from cryptography.exceptions import UnsupportedAlgorithm

from clusterctl.workspace import certificates

DOCUMENTATION = r"""
name: client_certificate
author: the clusterctl authors
short_description: Issue a user's client certificate
description:
  - Turns a secret into a client certificate of a user, its key, and the certificate of the authority for this purpose.
    The same arguments always give the same result, so nothing is stored.
options:
  _input:
    description: The secret.
    type: str
    required: true
  cluster:
    description: The cluster's name, shown in the certificate.
    type: str
    required: true
  purpose:
    description: What the authority is for. Its certificates are not valid for anything else.
    type: str
    required: true
  user:
    description: The user's name.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Write the certificate
  ansible.builtin.copy:
    content: "{{ (seed | client_certificate('aurora', 'logging', 'log-store')).certificate }}"
    dest: /etc/clusterctl/log-store/certificate.pem
    mode: "0644"
  vars:
    seed: "{{ lookup('cluster_secret', 'logging_admin_seed') }}"
"""

RETURN = r"""
_value:
  description: C(certificate), C(key) and C(authority), as PEM.
  type: dict
"""


def client_certificate(seed: str, cluster: str, purpose: str, user: str) -> dict[str, str]:
    """Return a user's certificate, its key, and the certificate of the purpose's authority."""
    try:
        issued = certificates.issue_client(str(seed), str(cluster), str(purpose), str(user))
        authority = certificates.authority_for(str(seed), str(cluster), str(purpose))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise AnsibleFilterError(f"{user}: no certificate can be made: {error}") from None
    return {"certificate": issued.certificate, "key": issued.key, "authority": authority.certificate}


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, object]:
        """Return the filter by its name."""
        return {"client_certificate": client_certificate}
