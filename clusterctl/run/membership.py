"""What the verbs have in common that change who belongs to the cluster.

Only the nodes in question, the head and monitoring are contacted, so the cost does not grow with the cluster, and jobs
elsewhere go on. There are two exceptions: a Slurm that learns of nodes by a restart alone, and, where nodes come, an
inventory without `cluster_networks`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from clusterctl.inventory.model import Inventory
from clusterctl.run import context
from clusterctl.run.context import Options
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.slurm import versions
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import Interrupted, Problem
from clusterctl.util.text import did_you_mean, printable
from clusterctl.workspace import hardware
from clusterctl.workspace.edits import Change

BY_RESTART = (
    "The head's Slurm learns of nodes only by a restart of its daemons on every worker: all {} hosts are contacted. "
    "Running jobs go on."
)
_BY_FIREWALLS = (
    "Without cluster_networks every node's firewall lists the others' addresses: all {} hosts are contacted. "
    "Running jobs go on."
)


class ConfirmChange(Phase):
    """Show how the inventory would change, and ask."""

    title = "Confirm the change of the inventory"
    changes_nodes = announced = False

    def __init__(self, change: Change, question: str, *, first: bool = False) -> None:
        self.change, self.question, self.first = change, question, first
        """`first`: by hand the change is made before all else, for new nodes have to be in the inventory."""

    def should_run(self, run: Run) -> bool:
        return bool(self.change)

    def run(self, run: Run) -> None:
        self.plan(run)
        if not context.agree(run.screen, self.question, run.options.yes):
            raise Interrupted(f"{self.change.path} is as it was, and no node was changed.")

    def plan(self, run: Run) -> None:
        for line in self.change.diff().splitlines():
            style = {"+": "green", "-": "red", "@": "dim"}.get(line[:1], "")
            run.screen.say((f"  {line}", style))

    def describe(self, run: Run) -> Iterator[Step]:
        if self.first:
            yield f"change {self.change.path.parent}:\n{self.change.diff()}"


class WriteInventory(Phase):
    """Write the changed inventory."""

    title = "Write the inventory"
    changes_nodes = announced = False

    def __init__(self, change: Change) -> None:
        self.change = change

    def should_run(self, run: Run) -> bool:
        return bool(self.change)

    def run(self, run: Run) -> None:
        run.site = replace(run.site, inventory=self.change.save(run.site.inventory.directory))

    def plan(self, run: Run) -> None:
        self.run(run)


def unknown(names: Sequence[str], known: Sequence[str], what: str = "worker") -> list[Problem]:
    """Return a problem for each name, with the nearest that is known."""
    return [Problem(None, "NODE", f'no {what} "{printable(name, 64)}"', did_you_mean(name, known)) for name in names]


def limited(options: Options, after: Inventory, names: Sequence[str], screen: Screen) -> Options:
    """Limit a run to these nodes and to the hosts that must know of them, which can be all."""
    if learns_by_restart(after):
        reason = BY_RESTART
    elif not after.variables.get("cluster_networks"):
        reason = _BY_FIREWALLS
    else:
        return replace(options, limit=",".join([*names, *after.informed]))
    screen.say(reason.format(len(after.hosts)))
    return replace(options, limit=None)


def learns_by_restart(after: Inventory) -> bool:
    """Return whether the head's Slurm is older than 23.11: a changed list of nodes needs new daemons everywhere.

    Source: https://slurm.schedmd.com/faq.html#add_nodes and the release notes of 23.11.
    """
    path = hardware.path_of(after.directory, after.head.name)
    release = versions.of_node(after.head, hardware.load(path)) if path.exists() else None
    return release is not None and release < "23.11"
