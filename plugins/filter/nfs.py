"""Filters for shared directories: the mounts of a host, their units, exports, and quotas of homes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterctl.inventory import mounts
from clusterctl.nodes.probe import mounts as probe
from clusterctl.nodes.probe.common import OTHER

KINDS = ("mounted", "hidden", "unit")


def units(wanted: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the units of mounts for node_state."""
    return [{"name": str(one["unit"])} for one in wanted]


def found(lines: Sequence[str], wanted: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return what is on a host: files that mounts would hide, other file systems in their place, former units.

    `lines` are those of the role's command: "mounted" with a line of /proc/self/mounts, "hidden" with a path, "unit"
    with the name of a unit of the role.
    """
    of = {kind: [line[len(kind) + 1 :] for line in lines if line.startswith(f"{kind} ")] for kind in KINDS}
    others = []
    for one in wanted:
        there = probe.mounted(of["mounted"], one["path"])
        if there and probe.unlike(there, (one["source"], one["type"]), one["unit"] in of["unit"]) == OTHER:
            others.append(f"{one['path']} ({there[0]})")
    former = [name for name in of["unit"] if name not in {one["unit"] for one in wanted}]
    return {"hidden": of["hidden"], "others": others, "former": former}


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
        own = {"nfs_exports": exports, "nfs_found": found, "nfs_quotas": quotas, "nfs_units": units}
        return {"nfs_mounts": mounts.complete, **own}
