"""Read from playbooks/bootstrap.yml which roles the hosts of each group get."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_IN_SERVICE = ("slurm_head", "slurm_workers", "gpu_config")
"""Groups whose roles can be uninstalled only together with the node."""


def roles_of(play: Mapping[str, Any]) -> list[str]:
    """Return the roles of a play."""
    return [role if isinstance(role, str) else role["role"] for role in play.get("roles", ())]


def optional(
    plays: list[Mapping[str, Any]], given: Mapping[str, Sequence[str]], common: Sequence[str]
) -> tuple[str, ...]:
    """Return the roles that can be uninstalled from a host in service; `given` are the roles by group."""
    kept = {*common, *(role for group in _IN_SERVICE for role in given.get(group, ()))}
    return tuple(dict.fromkeys(role for play in plays for role in roles_of(play) if role not in kept))


def groups(plays: list[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the roles of each group, `all` for every host."""
    found: dict[str, tuple[str, ...]] = {}
    for play in plays:
        roles = roles_of(play)
        for part in re.split("[:,]", play["hosts"]):
            name = part.strip(" &!")
            added = () if "!" in part else roles
            found[name] = tuple(dict.fromkeys((*found.get(name, ()), *added)))
    return found
