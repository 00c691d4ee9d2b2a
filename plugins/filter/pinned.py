"""Filter for packages of node_state at one version."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def pinned(names: Iterable[str], version: str, hold: bool = False) -> list[str | dict[str, Any]]:
    """Return the packages with this version pattern and hold; plain names without both."""
    wanted = ({"version": version} if version else {}) | ({"hold": True} if hold else {})
    return [{"name": name, **wanted} if wanted else name for name in names]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"pinned": pinned}
