"""Lookup of all packages that a host's roles will state, so that one transaction can install them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812 (its own name for itself)
from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = r"""
name: role_packages
author: the clusterctl authors
short_description: Collect the packages of all roles that a playbook gives a host
description:
  - Reads the playbook, takes the plays whose C(hosts) pattern names a group of the host, and returns the union of the
    C(__<role>_packages) of their roles, from C(vars/<os family>.yml) with the role's defaults and the host's variables.
  - Packages that a role wants removed are left to the role.
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
  description: The packages as node_state takes them, each once.
  type: list
"""


def matches(pattern: str | list[str], groups: set[str]) -> bool:
    """Tell whether a ``hosts`` pattern (``a``, ``a:b``, ``a:!b``, ``a:&b``) selects a host that is in ``groups``."""
    parts = [part for item in ([pattern] if isinstance(pattern, str) else pattern) for part in re.split("[:,]", item)]
    if any(part[1:] in groups for part in parts if part.startswith("!")):
        return False
    if any(part[1:] not in groups for part in parts if part.startswith("&")):
        return False
    return any(part in groups for part in parts if not part.startswith(("!", "&")))


def union(packages: Iterable[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
    """Return each package once, in order; one stated with a version or a hold wins over its bare name.

    Raises:
        ValueError: two roles want different things of one package.
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
            raise ValueError(f"package {name} is stated as {known} and as {package}")
    return list(found.values())


class LookupModule(LookupBase):
    """Templates a role's list as the role itself will see it."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[Any]:
        """Return the union for the host that ``variables`` describes."""
        variables = dict(variables or {})
        groups = {"all", variables["inventory_hostname"], *variables["group_names"]}
        family = variables["ansible_facts"]["os_family"]
        if family not in ("Debian", "RedHat"):  # it is a node's word, and will name a file
            raise AnsibleError(f"the operating system's family is {str(family)[:40]!r}, expected Debian or RedHat")
        roles: dict[str, None] = {}
        for term in terms:
            for play in self._loader.load_from_file(str(term)):
                if matches(play["hosts"], groups):
                    roles.update(dict.fromkeys(r if isinstance(r, str) else r["role"] for r in play.get("roles", [])))
        try:
            return union(package for role in roles for package in self._packages(role, family, variables))
        except ValueError as error:
            raise AnsibleError(f"{', '.join(map(str, terms))}: {error}") from error

    def _packages(self, role: str, family: str, variables: dict[str, Any]) -> list[Any]:
        places = [Path(root) / role for root in C.DEFAULT_ROLES_PATH]
        directory = next((place for place in places if place.is_dir()), None)
        if directory is None:
            raise AnsibleError(f"role {role} is in none of {', '.join(str(place) for place in places)}")
        known: dict[str, Any] = self._load(directory / "defaults" / "main.yml") | variables
        known |= self._load(directory / "vars" / "main.yml") | self._load(directory / "vars" / f"{family}.yml")
        packages = known.get(f"__{role}_packages", [])
        return list(self._templar.copy_with_new_env(available_variables=known).template(packages))

    def _load(self, path: Path) -> dict[str, Any]:
        # Files of a role are the project's own text, as trusted here as where Ansible loads them itself.
        return (self._loader.load_from_file(str(path), trusted_as_template=True) or {}) if path.is_file() else {}
