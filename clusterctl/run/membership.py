"""Common parts of the verbs that add, remove or replace nodes.

A run contacts only the given nodes and those that list all nodes, such as heads. So its cost does not grow with the
cluster, and jobs on other nodes continue. There are two exceptions: a Slurm that reads its list of nodes only at a
restart, and, for new nodes, an inventory without `cluster_networks`.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from clusterctl.inventory.model import Inventory
from clusterctl.inventory.schedulers import SLURM
from clusterctl.run import context
from clusterctl.run.context import Options
from clusterctl.run.phases import Phase, Run, Step
from clusterctl.slurm import versions
from clusterctl.ui.screen import Screen
from clusterctl.util.errors import Finding, Interrupted, PreflightError, Problem
from clusterctl.util.text import did_you_mean, printable
from clusterctl.workspace.edits import Change

BY_RESTART = (
    "A Slurm before 23.11 reads its list of nodes only when its daemons start: "
    "contacting all {} hosts. Running jobs continue."
)
_BY_FIREWALLS = (
    "Without cluster_networks, every node's firewall lists the addresses of the other nodes: contacting all {} hosts. "
    "Running jobs continue."
)


class ConfirmChange(Phase):
    """Show the change of the inventory and ask for confirmation."""

    title = "Confirm the change of the inventory"
    changes_nodes = announced = False

    def __init__(self, change: Change, question: str, *, first: bool = False) -> None:
        self.change, self.question, self.first = change, question, first
        """`first`: list the change as the first manual step, because new nodes must be in the inventory."""

    def should_run(self, run: Run) -> bool:
        return bool(self.change)

    def run(self, run: Run) -> None:
        self.plan(run)
        if not context.agree(run.screen, self.question, run.options.yes):
            raise Interrupted(f"{self.change.path} was not changed, and no node was changed.")

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


class RequireResponse(Phase):
    """Raise PreflightError if --skip-unreachable skipped a node that the verb needs; `hint` says what to do then."""

    title = "Check that the nodes respond"
    changes_nodes = announced = False

    def __init__(self, names: Collection[str], why: str, hint: str = "remove it from the command") -> None:
        self.names, self.why, self.hint = names, why, hint

    def run(self, run: Run) -> None:
        found = (
            f"was skipped for the reason above and {self.why}; --skip-unreachable applies to the cluster's other nodes"
        )
        if skipped := [name for name in self.names if name in run.site.skipped]:
            raise PreflightError([Finding(name, "node", found, self.hint) for name in skipped])

    def plan(self, run: Run) -> None:
        self.run(run)


def without_hint(error: PreflightError, names: Collection[str]) -> PreflightError:
    """Return the error without its hint, which may be --skip-unreachable, if it is about a node that is needed."""
    about = {problem.node for problem in error.problems if isinstance(problem, Finding)}
    return error if about.isdisjoint(names) else PreflightError(error.problems)


def unknown(names: Sequence[str], known: Sequence[str], what: str = "worker") -> list[Problem]:
    """Return a problem for each name, with the nearest known name as its hint."""
    return [Problem(None, "NODE", f'no {what} "{printable(name, 64)}"', did_you_mean(name, known)) for name in names]


def limited(options: Options, after: Inventory, names: Sequence[str], screen: Screen) -> Options:
    """Limit a run to these nodes and to the hosts whose configuration lists them, which can be all hosts."""
    if any(after.host(name).scheduler is SLURM for name in names) and versions.learns_by_restart(after):
        reason = BY_RESTART
    elif not after.variables.get("cluster_networks"):
        reason = _BY_FIREWALLS
    else:
        return replace(options, limit=",".join([*names, *after.informed]))
    screen.say(reason.format(len(after.hosts)))
    return replace(options, limit=None)
