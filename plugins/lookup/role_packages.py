"""Lookup of the packages of all roles of a host, for installation in one transaction."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812 (its own name for itself)
from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible.template import trust_as_template

DOCUMENTATION = r"""
name: role_packages
author: the clusterctl authors
short_description: Collect the packages of all roles of a host in a playbook
description:
  - Reads the plays of the playbook whose C(hosts) pattern has a group of the host, and returns the union of the
    C(__<role>_packages) of their roles, from C(vars/<os family>.yml) with the role's defaults and the host's variables.
  - Packages that a role removes are not included.
options:
  _terms:
    description: The playbook's path.
    required: true
"""

EXAMPLES = r"""
- name: Install everything at once
  node_state:
    packages: "{{ lookup('role_packages', playbook_dir ~ '/bootstrap.yml') }}"
"""

RETURN = r"""
_raw:
  description: The packages in the format of node_state, each once.
  type: list
"""


def matches(pattern: str | list[str], groups: set[str]) -> bool:
    """Return whether a ``hosts`` pattern (``a``, ``a:b``, ``a:!b``, ``a:&b``) selects a host that is in ``groups``."""
    parts = [part for item in ([pattern] if isinstance(pattern, str) else pattern) for part in re.split("[:,]", item)]
    if any(part[1:] in groups for part in parts if part.startswith("!")):
        return False
    if any(part[1:] not in groups for part in parts if part.startswith("&")):
        return False
    return any(part in groups for part in parts if not part.startswith(("!", "&")))


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
            raise ValueError(f"package {name} is given as {known} and as {package}")
    return list(found.values())


class LookupModule(LookupBase):
    """Templates a role's list with the role's variables."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[Any]:
        """Return the union for the host that ``variables`` describes."""
        variables = dict(variables or {})
        try:
            return union(
                package for role in self.roles(terms, variables) for package in self._packages(role, variables)
            )
        except ValueError as error:
            raise AnsibleError(f"{', '.join(map(str, terms))}: {error}") from error

    def roles(self, playbooks: list[Any], variables: dict[str, Any]) -> list[Path]:
        """Return the directories of a host's roles in playbooks; other lookups use it too."""
        groups = {"all", variables["inventory_hostname"], *variables["group_names"]}
        names: dict[str, None] = {}
        for playbook in playbooks:
            for play in self._loader.load_from_file(str(playbook)):
                if matches(play["hosts"], groups):
                    added = dict.fromkeys(r if isinstance(r, str) else r["role"] for r in play.get("roles", []))
                    # If a role is in two plays, the first one only prepares, so the last position counts.
                    names = {name: None for name in names if name not in added} | added
        return [self._directory(name) for name in names]

    def resolve(self, value: Any, role: Path, variables: dict[str, Any], *files: str) -> Any:
        """Return a value, templated with a role's defaults and these files of its variables."""
        known: dict[str, Any] = self._load(role / "defaults" / "main.yml") | variables
        for file in files:
            known |= self._load(role / "vars" / file)
        return self._templar.copy_with_new_env(available_variables=known).template(value)

    def _packages(self, role: Path, variables: dict[str, Any]) -> list[Any]:
        family = variables["ansible_facts"]["os_family"]
        if family not in ("Debian", "RedHat"):  # it comes from a node, and is used in a file's name
            raise AnsibleError(f"the operating system's family is {str(family)[:40]!r}, expected Debian or RedHat")
        wanted = trust_as_template(f"{{{{ __{role.name}_packages | default([]) }}}}")
        return list(self.resolve(wanted, role, variables, "main.yml", f"{family}.yml"))

    def _directory(self, role: str) -> Path:
        places = [Path(root) / role for root in C.DEFAULT_ROLES_PATH]
        directory = next((place for place in places if place.is_dir()), None)
        if directory is None:
            raise AnsibleError(f"role {role} is in none of {', '.join(str(place) for place in places)}")
        return directory

    def _load(self, path: Path) -> dict[str, Any]:
        # Files of a role are part of the project, so they are trusted, as when Ansible loads them.
        return (self._loader.load_from_file(str(path), trusted_as_template=True) or {}) if path.is_file() else {}
