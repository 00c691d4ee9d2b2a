"""`add-node`: write nodes into the inventory, and bootstrap them, the head and monitoring."""

from collections.abc import Collection, Sequence

from clusterctl.inventory.model import WORKERS, Inventory
from clusterctl.run import engine, membership
from clusterctl.run.context import Options
from clusterctl.run.entry import ENTRY
from clusterctl.run.membership import ConfirmChange, WriteInventory
from clusterctl.run.phases import Phase, Run
from clusterctl.run.plays import Play
from clusterctl.util.errors import Finding, InputError, PreflightError, Problem
from clusterctl.util.text import did_you_mean, fold, plural, printable
from clusterctl.workspace import edits, home


def add_node(options: Options, addresses: Sequence[str], group: str) -> int:
    """Add nodes to the cluster; those that the inventory has already are set up again. Return the exit code.

    Raises InputError for names and addresses that cannot be meant.
    """
    present = home.load(options.inventory)
    names = list(dict.fromkeys(options.nodes))
    new = _new(present, names, addresses, group)
    change = edits.adding(present, options.inventory, group, new)
    phases = [
        ConfirmChange(change, "Write this into the inventory?", first=True),
        *ENTRY,
        RequireNewNodes(new),
        WriteInventory(change),
        Play("add-node", f"Configure {fold(names)}"),
    ]
    screen = options.screen()
    if members := [name for name in names if name not in new]:
        they = "is in the inventory already; it is" if len(members) == 1 else "are in the inventory already; they are"
        screen.say(f"{fold(members)} {they} set up again.")
    try:
        return engine.execute(membership.limited(options, change.inventory, names, screen), phases, change.inventory)
    except PreflightError as error:
        # --skip-unreachable, which it may suggest, adds no node that does not answer.
        if any(isinstance(problem, Finding) and problem.node in new for problem in error.problems):
            raise PreflightError(error.problems) from None
        raise


class RequireNewNodes(Phase):
    """Refuse to add nodes that --skip-unreachable has left out: the inventory would keep them. PreflightError."""

    title = "Require answers of the new nodes"
    changes_nodes = announced = False

    def __init__(self, new: Collection[str]) -> None:
        self.new = new

    def run(self, run: Run) -> None:
        found = "is left out for the reason above, so it is not added"
        found += "; --skip-unreachable is for the cluster's other nodes"
        left = [name for name in self.new if name in run.site.skipped]
        if left:
            raise PreflightError([Finding(name, "node", found, "leave it out of the command") for name in left])

    def plan(self, run: Run) -> None:
        self.run(run)


def flags(addresses: Sequence[str], group: str) -> tuple[str, ...]:
    """Return add-node's own flags as they are typed."""
    given = [word for address in addresses for word in ("--address", address)]
    return (*given, *(["--group", group] if group != WORKERS else []))


def _new(present: Inventory, names: Sequence[str], addresses: Sequence[str], group: str) -> dict[str, str | None]:
    """Return the nodes that the inventory lacks, with their addresses; InputError for what cannot be meant."""
    if len(addresses) not in (0, len(names)):
        told = f"{plural(len(addresses), 'address')} for {plural(len(names), 'node')}"
        raise InputError([Problem(None, "--address", told, "give one for each node, in their order, or none")])
    wanted: dict[str, str | None] = dict(zip(names, addresses, strict=True)) if addresses else dict.fromkeys(names)
    known = {host.name: host for host in present.hosts}
    problems = []
    if group != WORKERS and group not in present.groups:
        told = f'no group "{printable(group, 64)}" below {WORKERS}'
        problems.append(Problem(None, "--group", told, did_you_mean(group, present.groups)))
    for name in (name for name in names if name in known):
        if not known[name].is_worker:
            problems.append(Problem(known[name].position, name, "is in the inventory, and no worker"))
        elif wanted[name] not in (None, known[name].address):
            told = f"is in the inventory with the address {known[name].address}, not {printable(str(wanted[name]), 64)}"
            problems.append(Problem(known[name].position, name, told, "leave --address out, or correct it there"))
    if problems:
        raise InputError(problems)
    return {name: address for name, address in wanted.items() if name not in known}
