"""`secret`: print a secret of the cluster or its authority's certificate, or replace secrets on all nodes.

A new secret comes to the nodes as everything else does, by a bootstrap. Only munge's key needs more: two daemons of
Slurm that have different keys refuse each other's messages. So it is laid beside the old one on all nodes first, counts
from then on, and all nodes exchange it at one moment that they were told (roles/munge/tasks/exchange.yml).
"""

from collections.abc import Callable
from dataclasses import replace

from clusterctl import certificates, converge, schema, secrets
from clusterctl.converge import Options, Site, Work
from clusterctl.document import shown
from clusterctl.errors import ClusterctlError, InputError, Interrupted, Problem
from clusterctl.outcome import Ledger
from clusterctl.screen import Screen

_ALL = "all"
_MUNGE = "munge_key"
_BACKUP = "backup_key"
_SEED = "certificate_authority_seed"


def show(options: Options, name: str) -> str:
    """Return a secret; InputError names those that there are."""
    values = secrets.values(converge.load(options).inventory.directory)
    _known(name, [name for name in values if not name.endswith(secrets.NEXT)])
    return values[name]


def authority(options: Options) -> str:
    """Return the certificate of the cluster's authority as PEM."""
    inventory = converge.load(options).inventory
    known = secrets.values(inventory.directory)
    if _SEED not in known:
        raise InputError([Problem(None, secrets.FILE, f"has no {_SEED} yet", "bootstrap makes it")])
    return certificates.authority(known[_SEED], inventory.cluster_name)


def rotate(options: Options) -> int:
    """Replace the secrets that `options.flags` names, and bootstrap the cluster with the new ones; the exit status.

    Until all nodes have the new munge key beside the old one, nothing is changed. An unknown name is an InputError, and
    no node is contacted.
    """
    can = secrets.rotatable()
    for name in options.flags:
        _known(name, [*can, _ALL])
    names = can if _ALL in options.flags else list(options.flags)

    def begin(site: Site, screen: Screen) -> Site:
        secrets.propose(site.inventory.directory, names)
        if _MUNGE in names:
            return replace(site, playbook="rotate-munge-key")
        secrets.adopt(site.inventory.directory)
        return replace(site, playbook="bootstrap")

    def finish(
        site: Site, ledger: Ledger, screen: Screen, play: Callable[[Site], ClusterctlError | None]
    ) -> ClusterctlError | None:
        if ledger.stopped:
            return Interrupted(f"{ledger.why}; nothing is under way any more.")
        error = None
        if _MUNGE in names:
            secrets.adopt(site.inventory.directory)
            error = play(replace(site, playbook="exchange-munge-key"))
        if _BACKUP in names:
            screen.say("  Backups made before can be restored no more; `clusterctl backup` makes a new one.")
        return error

    return converge.run(options, work=Work(begin, finish, rest="bootstrap"))


def _known(name: str, names: list[str]) -> None:
    if name not in names:
        near = schema.did_you_mean(name, names) or "there are: " + ", ".join(names)
        raise InputError([Problem(None, "NAME", f'no secret "{shown(name)}"', near)])
