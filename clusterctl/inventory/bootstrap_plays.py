"""Read from playbooks/bootstrap.yml which roles which hosts get: the only reader, once per process."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from clusterctl.inventory import host_pattern
from clusterctl.inventory.schedulers import KINDS, LOGIN
from clusterctl.util import yaml_text

_IN_SERVICE = (*(group for kind in KINDS for group in sorted(kind.groups)), LOGIN, "gpu_config")
"""Groups whose roles can be uninstalled only together with the node."""
APPLY = "apply"
"""The role that applies what the roles before it in a play describe; a host does not get anything by it."""


@dataclass(frozen=True)
class Play:
    """One play: its host pattern and its roles, in order."""

    hosts: str
    roles: tuple[str, ...]


@cache
def load(content: Path) -> tuple[Play, ...]:
    """Return the plays of the Ansible content in a directory."""
    plays = yaml_text.load((content / "playbooks/bootstrap.yml").read_bytes())
    names = [[role if isinstance(role, str) else role["role"] for role in play.get("roles", ())] for play in plays]
    return tuple(
        Play(play["hosts"], tuple(name for name in roles if name != APPLY))
        for play, roles in zip(plays, names, strict=True)
    )


def roles_of_host(plays: Sequence[Play], groups: Collection[str]) -> list[str]:
    """Return the roles of a host in these groups, each once: of a repeated role the last, as the first only prepares.

    `groups` are all groups of the host, `all` and its own name included.
    """
    names: dict[str, None] = {}
    for play in plays:
        if host_pattern.matches(play.hosts, groups):
            names = {name: None for name in names if name not in play.roles} | dict.fromkeys(play.roles)
    return list(names)


def optional(plays: Sequence[Play], given: Mapping[str, Sequence[str]], common: Sequence[str]) -> tuple[str, ...]:
    """Return the roles of the plays that can be uninstalled from a host in service; `given` are the roles by group.

    They are the roles of other groups, also if Kubernetes needs them too: a host of Slurm can lose its containerd.
    """
    others = {role for group, roles in given.items() if group not in _IN_SERVICE for role in roles} - {*common}
    return tuple(dict.fromkeys(role for play in plays for role in play.roles if role in others))


def groups(plays: Sequence[Play]) -> dict[str, tuple[str, ...]]:
    """Return the roles that each group gives its hosts, `all` for every host."""
    found: dict[str, tuple[str, ...]] = {}
    for play in plays:
        for operator, name in host_pattern.parse(play.hosts):
            if not operator:
                found[name] = tuple(dict.fromkeys((*found.get(name, ()), *play.roles)))
    return found
