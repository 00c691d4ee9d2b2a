"""Filters for shared directories: the mounts of a host, their units, exports, and quotas of homes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterctl.inventory import mounts


def units(wanted: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the units of mounts for node_state."""
    return [{"name": str(one["unit"])} for one in wanted]


def exports(given: Sequence[Mapping[str, Any]], options: Sequence[str]) -> list[dict[str, Any]]:
    """Return the exports with the options of those without their own."""
    return [{"options": [*options], **one} for one in given]


def quotas(accounts: Sequence[Mapping[str, Any]], common: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the limits of users in KiB, for module nfs_quotas: those of each account, else the common ones.

    A user without limits is not in the result. A missing limit is 0, which means no limit.
    """
    present = [one for one in accounts if one.get("state", "present") == "present"]
    limits = {(one["name"], one["uid"]): one.get("home_quota") or common for one in present}
    return [
        {"name": name, "uid": uid, **{key: kibibytes(str(quota.get(key, "0"))) for key in ("soft", "hard")}}
        for (name, uid), quota in limits.items()
        if quota
    ]


def kibibytes(size: str) -> int:
    """Return a size such as 400G in KiB; a number without a unit is in KiB, as for setquota(8)."""
    number, unit = (size[:-1], size[-1]) if size[-1:].isalpha() else (size, "K")
    return int(number) << 10 * "KMGT".index(unit.upper())


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"nfs_exports": exports, "nfs_mounts": mounts.complete, "nfs_quotas": quotas, "nfs_units": units}
