"""The filter `kubernetes_args`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def kubernetes_args(options: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return options of a component as kubeadm's configuration lists them: names and texts, by name.

    An option with a null value is left out, so a role's own option can be removed.
    """
    return [
        {"name": name, "value": str(value).lower() if isinstance(value, bool) else str(value)}
        for name, value in sorted(options.items())
        if value is not None
    ]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"kubernetes_args": kubernetes_args}
