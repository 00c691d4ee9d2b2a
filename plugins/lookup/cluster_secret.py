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
  - Reads C(secrets.yml) beside the inventory with Ansible's own vault passwords and returns the named secrets.
  - A value is data. It is never treated as a template.
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
    """Reads the file anew in each worker process: decrypted secrets stay in no cache but the loader's own."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[str]:
        """Return the secrets called ``terms``.

        Values come from the loader without its trust tag, so that Ansible (2.19 and later) prints them as they are.
        """
        path = Path(str((variables or {})["inventory_dir"])) / "secrets.yml"
        if not path.is_file():
            raise AnsibleError(f"{path}: the cluster's secrets are not there; `clusterctl bootstrap` creates them")
        try:
            secrets = self._loader.load_from_file(str(path))
        except Exception as error:  # of a dozen kinds, and what the parser says can quote what it read
            raise AnsibleError(f"{path}: the cluster's secrets cannot be read ({type(error).__name__})") from None
        if not isinstance(secrets, dict):
            raise AnsibleError(f"{path}: expected one mapping of names to secrets")
        missing = [name for name in terms if name not in secrets]
        if missing:
            raise AnsibleError(f"{path}: no secret called {', '.join(missing)}; `clusterctl bootstrap` adds it")
        return [str(secrets[name]) for name in terms]
