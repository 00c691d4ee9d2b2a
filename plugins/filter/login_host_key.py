"""The filter `login_host_key`."""

from __future__ import annotations

from clusterctl.workspace import login_key

DOCUMENTATION = r"""
name: login_host_key
author: the clusterctl authors
short_description: Derive the SSH host key of the login nodes
description:
  - Turns the secret C(login_host_key_seed) into a key pair. The same secret always gives the same one.
options:
  _input:
    description: The secret.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Write the public key
  ansible.builtin.copy:
    content: "{{ (lookup('cluster_secret', 'login_host_key_seed') | login_host_key).public }}\n"
    dest: /etc/ssh/ssh_host_login_ed25519_key.pub
    mode: "0644"
"""

RETURN = r"""
_value:
  description: C(private), in OpenSSH's format, and C(public), as in known_hosts.
  type: dict
"""


def login_host_key(secret: str) -> dict[str, str]:
    """Return the key pair of a secret."""
    return {"private": login_key.private(str(secret)), "public": login_key.public(str(secret))}


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, object]:
        """Return the filter by its name."""
        return {"login_host_key": login_host_key}
