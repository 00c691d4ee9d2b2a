"""Lookup of the roles of a host, in their order."""

from __future__ import annotations

from typing import Any

from ansible.plugins.loader import lookup_loader
from ansible.plugins.lookup import LookupBase

from clusterctl.inventory import schema

DOCUMENTATION = r"""
name: host_roles
author: the clusterctl authors
short_description: List the roles of a host
description:
  - Returns the names of the roles that C(playbooks/bootstrap.yml) gives this host, each once.
options:
  optional:
    description: Return the roles that can be uninstalled from a host in the cluster, in the order of the bootstrap.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Show what is set up here
  ansible.builtin.debug:
    msg: "{{ query('host_roles') }}"
"""

RETURN = r"""
_raw:
  description: Names of roles.
  type: list
  elements: str
"""


class LookupModule(LookupBase):
    """Finds the roles as role_packages does."""

    def run(self, _terms: list[str], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[str]:
        """Return the roles of the host that ``variables`` describes."""
        self.set_options(var_options=variables, direct=kwargs)
        if self.get_option("optional"):
            return list(schema.load().optional)
        finder = lookup_loader.get("role_packages", loader=self._loader, templar=self._templar)
        return [role.name for role in finder.roles(dict(variables or {}))]
