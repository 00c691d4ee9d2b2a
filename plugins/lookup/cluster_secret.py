"""Lookup of the cluster's secrets, in the vaulted file beside the inventory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = r"""
name: cluster_secret
author: the clusterctl authors
short_description: Read a secret of the cluster
description:
  - Reads C(secrets.yml) beside the inventory with Ansible's vault passwords and returns the given secrets.
  - A value is never treated as a template.
options:
  _terms:
    description: Names of secrets, as the roles declare them in C(meta/secrets.yml).
    required: true
"""

EXAMPLES = r"""
- name: Use the database's password
  ansible.builtin.assert:
    that: lookup('cluster_secret', 'slurm_head_database_password') | length > 32
"""

RETURN = r"""
_raw:
  description: The values, in the order of the names.
  type: list
  elements: str
"""


class LookupModule(LookupBase):
    """Decrypted secrets are cached only by the loader, for the run."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[str]:
        """Return the secrets named in ``terms``.

        Values come from the loader without its trust tag, so Ansible (2.19 and later) does not template them.
        """
        path = Path(str((variables or {})["inventory_dir"])) / "secrets.yml"
        if not path.is_file():
            raise AnsibleError(f"{path}: the cluster's secrets do not exist; `clusterctl bootstrap` creates them")
        try:
            secrets = self._loader.load_from_file(str(path), unsafe=True)  # without a copy of all of them
        except Exception as error:  # many types; a parser's message may quote the content
            raise AnsibleError(f"{path}: the cluster's secrets cannot be read ({type(error).__name__})") from None
        if not isinstance(secrets, dict):
            raise AnsibleError(f"{path}: expected one mapping of names to secrets")
        missing = [name for name in terms if name not in secrets]
        if missing:
            raise AnsibleError(f"{path}: no secret {', '.join(missing)}; `clusterctl bootstrap` creates it")
        return [str(secrets[name]) for name in terms]
