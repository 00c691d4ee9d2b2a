"""Lookup of what all roles of a host need early: packages for one transaction, their repositories, images."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible.template import trust_as_template

from clusterctl.inventory import bootstrap_plays
from clusterctl.util import paths

DOCUMENTATION = r"""
name: role_packages
author: the clusterctl authors
short_description: Collect the packages, repositories or images of all roles of a host in a playbook
description:
  - Returns the union of the C(__<role>_packages) of the roles that C(playbooks/bootstrap.yml) gives this host, from
    C(vars/<os family>.yml) with the role's defaults and the host's variables.
  - Packages that a role removes are not included.
  - A role whose repository is necessary on its hosts has it in C(__<role>_early_repositories). Others add it later,
    so that its failure does not stop the roles before.
options:
  _terms:
    description:
      - What to collect, C(packages), C(early_repositories), or C(images), by default C(packages). Further terms are
        groups whose roles count as well as those of the host.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Install everything at once
  node_state:
    repositories: "{{ query('role_packages', 'early_repositories') }}"
    packages: "{{ query('role_packages') }}"
"""

RETURN = r"""
_raw:
  description: The packages or repositories in the format of node_state, or the names of images; each once.
  type: list
"""


def union(packages: Iterable[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
    """Return each package once, in order; an entry with a version or a hold replaces a bare name.

    Raises:
        ValueError: two roles have different entries of a package.
    """
    found: dict[str, str | dict[str, Any]] = {}
    for package in packages:
        if isinstance(package, dict) and package.get("state") == "absent":
            continue
        name = package["name"] if isinstance(package, dict) else package
        known = found.setdefault(name, package)
        if isinstance(known, str):
            found[name] = package
        elif isinstance(package, dict) and package != known:
            raise ValueError(f"{name} is given as {known} and as {package}")
    return list(found.values())


class LookupModule(LookupBase):
    """Templates a role's list with the role's variables."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[Any]:
        """Return the union for the host that ``variables`` describes."""
        variables = dict(variables or {})
        what, *groups = terms or ["packages"]
        roles = self.roles({**variables, "group_names": [*variables["group_names"], *groups]})
        try:
            return union(item for role in roles for item in self._items(what, role, variables))
        except ValueError as error:
            raise AnsibleError(f"{variables['inventory_hostname']}: {error}") from error

    def roles(self, variables: dict[str, Any]) -> list[Path]:
        """Return the directories of a host's roles; other lookups use this, too."""
        groups = {"all", variables["inventory_hostname"], *variables["group_names"]}
        content = paths.content()
        names = bootstrap_plays.roles_of_host(bootstrap_plays.load(content), groups)
        return [content / "roles" / name for name in names]

    def resolve(self, value: Any, role: Path, variables: dict[str, Any], *files: str) -> Any:
        """Return a value, templated with a role's defaults and these files of its variables."""
        known: dict[str, Any] = self._load(role / "defaults" / "main.yml") | variables
        for file in files:
            known |= self._load(role / "vars" / file)
        return self._templar.copy_with_new_env(available_variables=known).template(value)

    def _items(self, what: str, role: Path, variables: dict[str, Any]) -> list[Any]:
        family = variables["ansible_facts"]["os_family"]
        if family not in ("Debian", "RedHat"):  # it comes from a node, and is used in a file's name
            raise AnsibleError(f"the operating system's family is {str(family)[:40]!r}, expected Debian or RedHat")
        wanted = trust_as_template(f"{{{{ __{role.name}_{what} | default([]) }}}}")
        return list(self.resolve(wanted, role, variables, "main.yml", f"{family}.yml"))

    def _load(self, path: Path) -> dict[str, Any]:
        # Files of a role are part of the project, so they are trusted, as when Ansible loads them. `unsafe` only means
        # that the loader makes no copy, which took most of the time of this lookup.
        if not path.is_file():
            return {}
        return self._loader.load_from_file(str(path), unsafe=True, trusted_as_template=True) or {}
