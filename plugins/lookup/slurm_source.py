"""Lookup of the source of a host's Slurm packages, and their names on its system."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = r"""
name: slurm_source
author: the clusterctl authors
short_description: Return the names of Slurm's packages on this host
description:
  - Reads C(slurm_head_source), C(slurm_head_package_names), C(slurm_head_mpi) and C(slurm_head_user_id) of the host,
    or of the head if the host does not set them. The table is C(__slurm_head_package_table) of role slurm_head.
options:
  _terms:
    description: None.
"""

EXAMPLES = r"""
- name: Install the worker's packages
  node_state:
    packages: "{{ lookup('slurm_source').worker }}"
"""

RETURN = r"""
_raw:
  description: >-
    One mapping: C(source), lists of package names by part, C(mpi) (the MPI plugin of srun), C(brings_user)
    (whether a package creates the user slurm), and C(user_id).
  type: list
  elements: dict
"""

TABLE = Path(__file__).resolve().parents[2] / "roles/slurm_head/vars/main.yml"
VARIABLES: Mapping[str, Any] = {
    "slurm_head_source": "distribution",
    "slurm_head_package_names": {},
    "slurm_head_mpi": "",
    "slurm_head_user_id": 64030,
}


def of_codename(value: Any, codename: str) -> Any:
    """Return the value for a release of a distribution, or else for all others."""
    return value.get(codename, value["*"]) if isinstance(value, Mapping) else value


def names(table: Mapping[str, Any], given: Mapping[str, Any], family: str, codename: str) -> dict[str, Any]:
    """Return the package names of a source on a system, with the inventory's changes.

    Raises:
        ValueError: unknown source or part.
    """
    source = str(given["slurm_head_source"])
    if source not in table:
        raise ValueError(f"slurm_head_source is {source[:64]!r}, expected {' or '.join(table)}")
    found = {key: copy.copy(of_codename(value, codename)) for key, value in table[source][family].items()}
    parts = [key for key, value in found.items() if isinstance(value, list)]
    for part, value in given["slurm_head_package_names"].items():
        if part not in parts:
            raise ValueError(f"slurm_head_package_names has no part {str(part)[:64]!r}, expected {', '.join(parts)}")
        found[part] = [value] if isinstance(value, str) else list(value)
    found |= {"source": source, "user_id": int(given["slurm_head_user_id"])}
    return found | ({"mpi": str(given["slurm_head_mpi"])} if given["slurm_head_mpi"] else {})


class LookupModule(LookupBase):
    """Resolves the variables as Ansible does."""

    def run(self, terms: list[Any], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[dict[str, Any]]:
        """Return the source of the host that ``variables`` describes."""
        if terms:
            raise AnsibleLookupError("slurm_source has no terms")
        known = variables or {}
        head = next(iter(known.get("groups", {}).get("slurm_head", ())), None)
        of_head = known["hostvars"][head] if head and "hostvars" in known else {}
        given = {}
        for name, default in VARIABLES.items():
            value = known[name] if name in known else of_head.get(name, default)
            given[name] = self._templar.template(value)
        # Trusted as when the role loads it, because the loader caches one copy of a file; `unsafe`: it copies nothing.
        content = self._loader.load_from_file(str(TABLE), unsafe=True, trusted_as_template=True)
        table = content["__slurm_head_package_table"]
        facts = known["ansible_facts"]
        try:
            return [names(table, given, facts["os_family"], facts.get("distribution_release", ""))]
        except ValueError as error:
            raise AnsibleLookupError(str(error)) from error
