"""The filter `certificate_end`."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError
from cryptography import x509

DOCUMENTATION = r"""
name: certificate_end
author: the clusterctl authors
short_description: Find out when certificates expire
description:
  - Returns when the first of the certificates in a text expires.
options:
  _input:
    description: One or several certificates as PEM.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show when the certificate expires
  ansible.builtin.debug:
    msg: "{{ lookup('ansible.builtin.file', 'company.pem') | certificate_end }}"
"""

RETURN = r"""
_value:
  description: Seconds since 1970.
  type: int
"""


def certificate_end(text: str) -> int:
    """Return when the first of the certificates expires, in seconds since 1970."""
    try:
        found = x509.load_pem_x509_certificates(str(text).encode())
    except ValueError as error:
        raise AnsibleFilterError(f"no certificate can be read: {error}") from None
    return min(int(one.not_valid_after_utc.timestamp()) for one in found)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, object]:
        """Return the filter by its name."""
        return {"certificate_end": certificate_end}
