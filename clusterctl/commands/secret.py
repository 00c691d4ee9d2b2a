"""`secret`: print a secret of the cluster or its authority's certificate, set one, or replace secrets on all nodes.

A bootstrap copies new secrets to the nodes. For the munge key that is not enough: Slurm daemons with different keys
refuse each other's messages. The new key is staged on all nodes in a second file. Then all nodes exchange the two files
at the same time (roles/munge/tasks/exchange.yml).
"""

import getpass
import sys

from clusterctl.inventory.document import shown
from clusterctl.inventory.schedulers import SLURM
from clusterctl.run import context, engine, lock
from clusterctl.run.context import Options
from clusterctl.run.entry import ENTRY
from clusterctl.run.membership import RequireResponse
from clusterctl.run.phases import Phase, Run
from clusterctl.run.plays import Play
from clusterctl.util import files
from clusterctl.util.errors import InputError, Interrupted, Problem, WorkersFailed
from clusterctl.util.text import did_you_mean
from clusterctl.workspace import certificates, home, secrets

_ALL = "all"
_MUNGE = "munge_key"
_BACKUP = "backup_key"
_SEED = "certificate_authority_seed"


def show(options: Options, name: str) -> str:
    """Return a secret. The InputError for an unknown name lists the secrets."""
    values = secrets.values(context.load(options).inventory.directory)
    _require_known(name, [name for name in values if not name.endswith(secrets.NEXT)])
    return values[name]


def authority(options: Options) -> str:
    """Return the certificate of the cluster's authority as PEM."""
    inventory = context.load(options).inventory
    known = secrets.values(inventory.directory)
    if _SEED not in known:
        raise InputError([Problem(None, secrets.FILE, f"has no {_SEED} yet", "bootstrap creates it")])
    return certificates.authority(known[_SEED], inventory.cluster_name)


def set_given(options: Options, name: str) -> None:
    """Read a secret of a service outside the cluster from standard input or a prompt, and store it.

    Raises InputError for an unknown name or a bad value.
    """
    _require_known(name, secrets.settable())
    site = context.load(options)
    directory = site.inventory.directory
    value = getpass.getpass(f"{name}: ") if sys.stdin.isatty() else sys.stdin.read(secrets.MAX_GIVEN + 2)
    with files.writing(site.state), lock.hold(site.state, "secret set"):
        secrets.ensure(directory, site.inventory.cluster_name)
        secrets.set_given(directory, name, value.removesuffix("\n"))
    screen = options.screen()
    screen.say(f"{name} is set. The next bootstrap uses it.")


def rotate(options: Options) -> int:
    """Replace the secrets listed in `options.flags` and bootstrap the cluster with the new ones; return the exit code.

    No secret changes until all reachable nodes have the new munge key in its second file.
    Raises InputError for an unknown name, before any node is contacted.
    """
    rotatable = secrets.rotatable()
    for name in options.flags:
        _require_known(name, [*rotatable, _ALL])
    names = rotatable if _ALL in options.flags else list(options.flags)
    inventory = home.load(options.inventory)
    munge = _MUNGE in names and SLURM in inventory.schedulers
    # The primary takes control when it starts. With another key, the back-up would not hear of it.
    why = "would later start with the old key beside the other head, so that both write the same queue"
    heads = [host.name for host in inventory.in_group(SLURM.head)]
    phases = [
        *ENTRY,
        *[RequireResponse(heads, why, "start it; if it never starts again, remove it from the inventory")] * munge,
        ProposeSecrets(names),
        *[StageMungeKey()] * munge,
        AdoptSecrets(),
        ExchangeMungeKey() if munge else Play("bootstrap", "Configure all nodes", patience=None),
    ]
    return engine.execute(options, phases)


class ProposeSecrets(Phase):
    """Generate the new secrets; the cluster does not use them yet."""

    title = "Generate the new secrets"
    changes_nodes = announced = False

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def run(self, run: Run) -> None:
        if _BACKUP in self.names:
            run.screen.say("  Existing backups cannot be restored after this. Make a new one: clusterctl backup")
        secrets.propose(run.site.inventory.directory, self.names)


class StageMungeKey(Play):
    """Copy the new munge key to all nodes, beside the one in use."""

    def __init__(self) -> None:
        super().__init__("stage-munge-key", "Stage the new munge key", patience=None)

    def run(self, run: Run) -> None:
        try:
            super().run(run)
        except WorkersFailed:
            if run.ledger.lost():
                raise  # skipped nodes are no reason to stop: a later bootstrap copies the key to them


class AdoptSecrets(Phase):
    """Put the new secrets into effect; from then on a bootstrap copies them to nodes that do not have them."""

    title = "Adopt the new secrets"

    def run(self, run: Run) -> None:
        secrets.adopt(run.site.inventory.directory)
        run.resume_with = "bootstrap"


class ExchangeMungeKey(Play):
    """Exchange the two keys on all nodes at the same time, and bootstrap."""

    def __init__(self) -> None:
        super().__init__("exchange-munge-key", "Exchange the munge key, and configure all nodes", patience=None)

    def run(self, run: Run) -> None:
        try:
            super().run(run)
        except Interrupted as error:
            note = "If the exchange of the munge key is already scheduled, the nodes complete it within two minutes."
            raise Interrupted(f"{error} {note}") from None


def _require_known(name: str, names: list[str]) -> None:
    if name not in names:
        near = did_you_mean(name, names) or "available: " + ", ".join(names)
        raise InputError([Problem(None, "NAME", f'no secret "{shown(name)}"', near)])
