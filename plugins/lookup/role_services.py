"""Lookup of the services that a host's roles declare, for verify and metrics."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.loader import lookup_loader
from ansible.plugins.lookup import LookupBase

from clusterctl.inventory import services
from clusterctl.util.errors import ClusterctlError

DOCUMENTATION = r"""
name: role_services
author: the clusterctl authors
short_description: List the units that all roles of a host declare
description:
  - Returns the units of the C(meta/services.yml) of this host's roles, each once, by their names on the host's system.
options:
  everywhere:
    description: Return the units of all roles on all systems, including optional ones.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Show the units that must run on this host
  ansible.builtin.debug:
    msg: "{{ query('role_services') }}"
"""

RETURN = r"""
_raw:
  description: Names of units, with their suffix.
  type: list
  elements: str
"""


class LookupModule(LookupBase):
    """Finds the roles as role_packages does."""

    def run(self, _terms: list[str], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[str]:
        """Return the units of the host that ``variables`` describes."""
        variables = dict(variables or {})
        self.set_options(var_options=variables, direct=kwargs)
        try:
            if self.get_option("everywhere"):
                found = [one for of_role in services.load_all().values() for one in of_role]
                return sorted({name for one in found for name in one.unit.values()})
            finder = lookup_loader.get("role_packages", loader=self._loader, templar=self._templar)
            declared = [one for role in finder.roles(variables) for one in services.load(role)]
        except ClusterctlError as error:
            raise AnsibleError(str(error)) from error
        family, mine = variables["ansible_facts"]["os_family"], variables["group_names"]
        heads = [variables.get("groups", {}).get(group, ()) for group in mine if group.endswith("_head")]
        backup = any(variables.get("inventory_hostname") in members[1:] for members in heads)
        wanted = [one for one in declared if one.runs_here(variables, mine, backup=backup)]
        return list(dict.fromkeys(one.unit[family] for one in wanted))
