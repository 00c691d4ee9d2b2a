"""The filter `certificate`."""

from __future__ import annotations

from collections.abc import Iterable

from ansible.errors import AnsibleFilterError
from cryptography.exceptions import UnsupportedAlgorithm

from clusterctl.workspace import certificates

DOCUMENTATION = r"""
name: certificate
author: the clusterctl authors
short_description: Issue a host's certificate
description:
  - Turns the secret C(certificate_authority_seed) into a host's certificate, its key, and the certificate of the
    cluster's authority that issued it. The same arguments always give the same result, so nothing is stored.
options:
  _input:
    description: The secret.
    type: str
    required: true
  cluster:
    description: The cluster's name, shown in the certificate.
    type: str
    required: true
  host:
    description: The host's name.
    type: str
    required: true
  addresses:
    description: Further names and IP addresses of the server, besides the host's name.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Write the certificate
  ansible.builtin.copy:
    content: "{{ (seed | certificate('aurora', 'head1', ['10.0.0.10'])).certificate }}"
    dest: /etc/prometheus/certificate.pem
    mode: "0644"
  vars:
    seed: "{{ lookup('cluster_secret', 'certificate_authority_seed') }}"
"""

RETURN = r"""
_value:
  description: C(certificate), C(key) and C(authority), as PEM.
  type: dict
"""


def certificate(seed: str, cluster: str, host: str, addresses: Iterable[str] = ()) -> dict[str, str]:
    """Return a host's certificate, its key, and the authority's certificate."""
    try:
        issued = certificates.issue(str(seed), str(cluster), str(host), [str(address) for address in addresses])
    except (ValueError, UnsupportedAlgorithm) as error:
        raise AnsibleFilterError(f"{host}: no certificate can be made for {', '.join(addresses)}: {error}") from None
    authority = certificates.authority(str(seed), str(cluster))
    return {"certificate": issued.certificate, "key": issued.key, "authority": authority}


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, object]:
        """Return the filter by its name."""
        return {"certificate": certificate}
