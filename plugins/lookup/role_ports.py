"""Lookup of all ports that a host's roles declare, for the firewall."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.loader import lookup_loader
from ansible.plugins.lookup import LookupBase
from ansible.template import trust_as_template

from clusterctl.inventory import ports
from clusterctl.util.errors import ClusterctlError

DOCUMENTATION = r"""
name: role_ports
author: the clusterctl authors
short_description: Collect the ports that all roles of a host declare
description:
  - Returns what the C(meta/ports.yml) of this host's roles has, each port once as C(port),
    C(protocol), C(to) (V(cluster), V(nodes), V(heads), V(monitoring), V(admin), V(listed) or V(local)), C(login),
    C(privileged), C(addresses), C(role) and C(purpose).
  - If a port is the name of a variable, its value for this host is returned, and so for C(addresses).
options:
  everywhere:
    description: Return the ports of hosts of all groups, each with this host's value of its variable.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Show the ports that administrators can reach
  ansible.builtin.debug:
    msg: "{{ query('role_ports') | selectattr('to', 'equalto', 'admin') }}"
"""

RETURN = r"""
_raw:
  description: The ports, in the order of the roles.
  type: list
  elements: dict
"""


class LookupModule(LookupBase):
    """Finds the roles as role_packages does."""

    def run(self, _terms: list[str], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[dict[str, Any]]:
        """Return the ports of the host that ``variables`` describes."""
        variables = dict(variables or {})
        self.set_options(var_options=variables, direct=kwargs)
        if self.get_option("everywhere"):
            variables["group_names"] = sorted(variables["groups"])
        finder = lookup_loader.get("role_packages", loader=self._loader, templar=self._templar)
        found: dict[tuple[int, str], dict[str, Any]] = {}
        for role in finder.roles(variables):
            try:
                declared = ports.load(role)
            except ClusterctlError as error:
                raise AnsibleError(str(error)) from error
            for one in declared:
                if one.groups and not set(one.groups) & set(variables["group_names"]):
                    continue
                number = one.port
                if isinstance(number, str):
                    wanted = trust_as_template(f"{{{{ {number} | default({ports.SSH.get(number, 'omit')}) }}}}")
                    number = int(finder.resolve(wanted, role, variables))
                fields = {"protocol": one.protocol, "to": one.to, "login": one.login, "role": one.role}
                fields["privileged"] = one.privileged
                listed = trust_as_template(f"{{{{ {one.addresses} | default([]) }}}}") if one.addresses else []
                fields["addresses"] = finder.resolve(listed, role, variables) if one.addresses else []
                found.setdefault((number, one.protocol), {"port": number, "purpose": one.purpose, **fields})
        return list(found.values())
