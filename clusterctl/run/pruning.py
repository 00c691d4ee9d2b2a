"""Roles that are set up on a host and that no group gives it any more: found by its records, uninstalled on request."""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache

import yaml

from clusterctl.ansible.outcome import Ledger
from clusterctl.inventory import schema
from clusterctl.inventory.model import Host
from clusterctl.run import converge
from clusterctl.run.converge import Options, Site, Work
from clusterctl.ui.screen import Screen
from clusterctl.util import paths
from clusterctl.util.errors import ClusterctlError, InputError, Interrupted, Problem, WorkersFailed
from clusterctl.util.text import fold

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
    table = yaml.safe_load((paths.content() / "roles/removal/vars/main.yml").read_text())
    return frozenset(table["__removal_optional"])


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


def bootstrap(options: Options, prune: bool) -> int:
    """Run `bootstrap`, then with `prune` uninstall what hosts have no group for; return the exit status.

    Raises InputError as converge.run does, and for a dry run: it would see the roles as bootstrap leaves them.
    """
    if not prune:
        return converge.run(options)
    if options.check:
        hint = "clusterctl status lists what it uninstalls"
        raise InputError([Problem(None, "--prune", "cannot be given with --check", hint)])
    if options.print_command:
        site = converge.load(options)
        return converge.print_command(site, replace(site, playbook="prune"))
    return converge.run(options, work=Work(finish=_finish))


def _finish(
    site: Site, ledger: Ledger, screen: Screen, play: Callable[[Site], ClusterctlError | None]
) -> ClusterctlError | None:
    """Uninstall where no job runs that may need it; WorkersFailed names the other hosts."""
    if ledger.stopped:
        return Interrupted(f"{ledger.why}; nothing is under way any more.")
    nodes = {name: found.node for name, found in site.facts.items()}
    due = [h for h in site.hosts if h.name in nodes and optional().intersection(unused(h, nodes[h.name].roles))]
    busy = [host.name for host in due if nodes[host.name].jobs]
    idle = tuple(host for host in due if host.name not in busy)
    error = play(replace(site, hosts=idle, playbook="prune")) if idle else None
    if not due:
        screen.say("  Nothing to uninstall.")
    if busy and error is None:
        return WorkersFailed(f"Jobs run on {fold(busy)}; nothing was uninstalled there. Drain it first.")
    return error
