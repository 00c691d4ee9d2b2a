"""Which roles the plays of playbooks/bootstrap.yml give the hosts of which group."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_IN_SERVICE = ("slurm_head", "slurm_workers", "gpu_config")
"""Groups whose roles go with the node, out of service."""


def roles_of(play: Mapping[str, Any]) -> list[str]:
    """Return the roles of a play."""
    return [role if isinstance(role, str) else role["role"] for role in play.get("roles", ())]


def optional(
    plays: list[Mapping[str, Any]], given: Mapping[str, Sequence[str]], common: Sequence[str]
) -> tuple[str, ...]:
    """Return the roles of the plays that a host in service may lose; `given` are the roles by group."""
    stay = {*common, *(role for group in _IN_SERVICE for role in given.get(group, ()))}
    return tuple(dict.fromkeys(role for play in plays for role in roles_of(play) if role not in stay))


def groups(plays: list[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the roles that each group gives its hosts, `all` for every host."""
    found: dict[str, tuple[str, ...]] = {}
    for play in plays:
        roles = roles_of(play)
        for part in re.split("[:,]", play["hosts"]):
            name = part.strip(" &!")
            mine = () if "!" in part else roles
            found[name] = tuple(dict.fromkeys((*found.get(name, ()), *mine)))
    return found
