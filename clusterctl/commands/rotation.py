"""`secret`: print a secret of the cluster or its authority's certificate, or replace secrets on all nodes.

A bootstrap brings new secrets to the nodes. The munge key needs more, because daemons of Slurm with different keys
refuse each other's messages: it is staged on all nodes in a second file, and all nodes exchange the two files at the
same time (roles/munge/tasks/exchange.yml).
"""

from collections.abc import Callable
from dataclasses import replace

from clusterctl.ansible.outcome import Ledger
from clusterctl.inventory.document import shown
from clusterctl.run import converge
from clusterctl.run.converge import Options, Site, Work
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import ClusterctlError, InputError, Interrupted, Problem, WorkersFailed
from clusterctl.util.text import did_you_mean
from clusterctl.workspace import certificates, secrets

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

    Nothing is changed until all nodes that are reached have the new munge key in its second file. An unknown name is an
    InputError, and no node is contacted.
    """
    rotatable = secrets.rotatable()
    for name in options.flags:
        _known(name, [*rotatable, _ALL])
    names = rotatable if _ALL in options.flags else list(options.flags)
    adopted = False

    def begin(site: Site, screen: Screen) -> Site:
        if _BACKUP in names:
            screen.say(
                "  Earlier backups can no longer be restored after this; make a new one with `clusterctl backup`."
            )
        secrets.propose(site.inventory.directory, names)
        return site

    def finish(
        site: Site, ledger: Ledger, screen: Screen, play: Callable[[Site], ClusterctlError | None]
    ) -> ClusterctlError | None:
        nonlocal adopted
        if _MUNGE in names:
            error = play(replace(site, playbook="stage-munge-key"))
            if error and (not isinstance(error, WorkersFailed) or ledger.lost()):
                return error
        secrets.adopt(site.inventory.directory)
        adopted = True
        error = play(replace(site, playbook="exchange-munge-key" if _MUNGE in names else "bootstrap"))
        if _MUNGE in names and isinstance(error, Interrupted):
            then = "If the exchange of the munge key is already scheduled, the nodes complete it within two minutes."
            return Interrupted(f"{error} {then}")
        return error

    # Once the new secrets are the cluster's, a bootstrap brings them to the nodes that do not have them yet.
    work = Work(begin, finish, plays=False, goes_on=lambda: "bootstrap" if adopted else "")
    return converge.run(options, work=work)


def _known(name: str, names: list[str]) -> None:
    if name not in names:
        near = did_you_mean(name, names) or "there are: " + ", ".join(names)
        raise InputError([Problem(None, "NAME", f'no secret "{shown(name)}"', near)])
