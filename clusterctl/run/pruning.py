"""Find unused roles: installed on a host according to its records, but in none of its groups."""

from collections.abc import Collection
from functools import cache

from clusterctl.inventory import schema
from clusterctl.inventory.model import Host

# Scopes of recorded items whose name differs from the role's name.
ROLE_OF = {
    "alertmanager_release": "alertmanager",
    "kubernetes_head_haproxy": "kubernetes_head",
    "nvidia_daemons": "nvidia_driver",
    "nvidia_repository": "nvidia_driver",
    "opensearch": "elasticsearch",
    "prometheus_release": "prometheus",
    "pyxis_slurm": "pyxis",
    "slurm_head_database": "slurm_head",
    "sources": "base",
    "users_homes": "nfs_client",
}
COMMAND = "clusterctl bootstrap --prune"


@cache
def optional() -> frozenset[str]:
    """Return the roles that playbooks/prune.yml uninstalls from a host in service."""
    return frozenset(schema.load().optional)


def unused(host: Host, recorded: Collection[str]) -> list[str]:
    """Return the roles of a host's recorded scopes that are in none of its groups, in the order of the groups."""
    known = schema.load()
    given = {role for group in host.groups for role in known.groups.get(group, ())} | {*known.common}
    found = {ROLE_OF.get(scope, scope) for scope in recorded}
    order = dict.fromkeys(role for roles in known.groups.values() for role in roles)
    return [role for role in order if role in found - given]


def explain(roles: Collection[str]) -> list[tuple[str, str]]:
    """Return message and hint for a host's unused roles: first the roles that can be uninstalled, then the others."""
    removable = [role for role in roles if role in optional()]
    others = [role for role in roles if role not in optional()]
    manual = "`clusterctl docs inventory` describes how to remove Slurm's roles"
    hints = ((removable, f"to uninstall: {COMMAND}"), (others, manual))
    return [(f"installed, but in no group of the host: {', '.join(names)}", hint) for names, hint in hints if names]
