"""Roles that are set up on a host and that no group gives it any more: found by its records, uninstalled on request."""

from collections.abc import Collection
from functools import cache

from clusterctl.inventory import schema
from clusterctl.inventory.model import Host

# What a role records its items under, where that is not the role's own name.
ROLE_OF = {
    "nvidia_daemons": "nvidia_driver",
    "nvidia_repository": "nvidia_driver",
    "prometheus_release": "prometheus",
    "pyxis_slurm": "pyxis",
    "slurm_head_database": "slurm_head",
    "sources": "base",
    "users_homes": "users",
}
COMMAND = "clusterctl bootstrap --prune"


@cache
def optional() -> frozenset[str]:
    """Return the roles that a host in service may lose, which are those that playbooks/prune.yml uninstalls."""
    return frozenset(schema.load().optional)


def unused(host: Host, recorded: Collection[str]) -> list[str]:
    """Return the roles among a host's recorded scopes that its groups do not give it, in the order of the groups."""
    known = schema.load()
    given = {role for group in host.groups for role in known.groups.get(group, ())} | {*known.common}
    found = {ROLE_OF.get(scope, scope) for scope in recorded}
    order = dict.fromkeys(role for roles in known.groups.values() for role in roles)
    return [role for role in order if role in found - given]


def explain(roles: Collection[str]) -> list[tuple[str, str]]:
    """Return what to say of a host's unused roles, and what helps: those that can be uninstalled, then the others."""
    can = [role for role in roles if role in optional()]
    others = [role for role in roles if role not in optional()]
    hints = ((can, f"to uninstall: {COMMAND}"), (others, "`clusterctl docs inventory` says how to remove Slurm's"))
    return [(f"installed, but no group of the host has it: {', '.join(names)}", hint) for names, hint in hints if names]
