"""Slurm's limits and reservations for the controller: the code that reads them on the head, the order of accounts.

Ansible's filters import this module. It names no variable of the inventory, so that a role that uses them does not
count as a reader of one (run/role_variables.py).
"""

import functools
import importlib.util
from collections.abc import Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

from clusterctl.util import paths

ROOT = "root"  # Slurm's own account, above all others


def limits() -> ModuleType:
    """Return the code of module slurm_accounts, which reads these options on the head."""
    return _module_utils("slurm_limits")


def reservations() -> ModuleType:
    """Return the code of module slurm_reservations, which reads these options on the head."""
    return _module_utils("slurm_reservations")


@functools.cache
def _module_utils(name: str) -> ModuleType:
    path = paths.content() / f"plugins/module_utils/{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    if not (spec and spec.loader):
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parents_first(accounts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return accounts in an order in which each follows its parent, without those that are each other's parents."""
    named = {str(one["name"]).lower(): dict(one) for one in accounts}
    parents = {name: {str(one.get("parent", ROOT)).lower()} for name, one in named.items()}
    parents |= {ROOT: set()} if ROOT in named else {}
    return [named[name] for name in ordered(parents)]


def ordered(others: Mapping[str, Collection[str]]) -> list[str]:
    """Return names in an order in which each follows its others, without those in a circle."""
    left, found = {name: {*names} for name, names in others.items()}, list[str]()
    while ready := [name for name, names in left.items() if names.isdisjoint(left)]:
        found += ready
        left = {name: names for name, names in left.items() if name not in ready}
    return found
