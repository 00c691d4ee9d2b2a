"""Lookup of the groups below a group in the inventory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ansible.plugins.lookup import LookupBase

DOCUMENTATION = r"""
name: subgroups
author: the clusterctl authors
short_description: List the groups below a group
description:
  - Returns the names of all groups below C(children) of the given groups in the inventory, at any depth.
  - Sub-groups of the workers are Slurm's features.
options:
  _terms:
    description: Names of groups.
    required: true
"""

EXAMPLES = r"""
- name: Show the features
  ansible.builtin.debug:
    msg: "{{ query('subgroups', 'slurm_workers') }}"
"""

RETURN = r"""
_raw:
  description: The names, in the order of the inventory.
  type: list
  elements: str
"""


def _groups(tree: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every group of an inventory's tree with its content."""
    for name, content in tree.items():
        yield name, content or {}
        yield from _groups((content or {}).get("children") or {})


def below(tree: dict[str, Any], name: str) -> list[str]:
    """Return the groups below ``name``; a group may be in several places of the tree."""
    found: dict[str, None] = {}
    for group, content in _groups(tree):
        if group == name:
            for child in content.get("children") or {}:
                found[child] = None
                found.update(dict.fromkeys(below(tree, child)))
    return list(found)


class LookupModule(LookupBase):
    """Reads the inventory file: Ansible's variables have each group's hosts, but not its parents."""

    def run(self, terms: list[str], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[str]:
        """Return the sub-groups of ``terms``."""
        # `unsafe`: without a copy of the inventory, which is only read.
        tree = self._loader.load_from_file(str((variables or {})["inventory_file"]), unsafe=True)
        return list(dict.fromkeys(child for term in terms for child in below(tree, term)))
