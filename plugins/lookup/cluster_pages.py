"""Lookup of the pages for people that the roles of a cluster's hosts declare."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

from clusterctl.inventory import pages
from clusterctl.util.errors import ClusterctlError

DOCUMENTATION = r"""
name: cluster_pages
author: the clusterctl authors
short_description: Collect the pages for people of all hosts
description:
  - Returns what the C(meta/pages.yml) of the roles of all hosts have, each page of each host once.
options:
  _terms:
    description: None.
"""

EXAMPLES = r"""
- name: Show the addresses of the cluster's pages
  ansible.builtin.debug:
    msg: "{{ query('cluster_pages') | map(attribute='url') }}"
"""

RETURN = r"""
_raw:
  description: >-
    Mappings with C(name), C(title), C(purpose), C(host), C(url), C(port), C(path), C(user), C(secret), and C(here):
    whether it is a page of this host.
  type: list
  elements: dict
"""


class LookupModule(LookupBase):
    """Reads the declarations as `clusterctl open` does."""

    def run(self, _terms: list[str], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[dict[str, Any]]:
        """Return the pages of the cluster that ``variables`` describes."""
        variables = variables or {}
        try:
            found = pages.of_hosts(variables.get("groups", {}), variables.get("hostvars", {}))
        except ClusterctlError as error:
            raise AnsibleError(str(error)) from error
        here = variables.get("inventory_hostname")
        return [
            {
                "name": one.page.name,
                "title": one.page.title,
                "purpose": one.page.purpose,
                "host": one.host,
                "url": one.url,
                "port": one.port,
                "path": one.page.path,
                "user": one.user,
                "secret": one.page.secret,
                "here": one.host == here,
            }
            for one in found
        ]
