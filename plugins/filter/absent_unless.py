"""Filter for files of node_state that a setting switches on and off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def absent_unless(files: Sequence[Mapping[str, Any]], wanted: object, state: str = "absent") -> list[dict[str, Any]]:
    """Return the files if ``wanted`` is true, else the same paths as absent, or in another ``state``.

    So the files are removed, or restored, when the setting is reverted.
    """
    if wanted:
        return [dict(file) for file in files]
    return [{key: file[key] for key in ("dest", "before_packages") if key in file} | {"state": state} for file in files]


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"absent_unless": absent_unless}
