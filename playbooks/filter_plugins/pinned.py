"""Packages of node_state at one version."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def pinned(names: Iterable[str], version: str) -> list[str | dict[str, str]]:
    """Return the packages with this version, which is a pattern; as they are where it is empty."""
    return [{"name": name, "version": version} if version else name for name in names]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"pinned": pinned}
