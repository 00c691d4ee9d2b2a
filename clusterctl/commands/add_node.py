"""`add-node`: write nodes to the inventory and bootstrap them, the head and monitoring."""

from collections.abc import Collection, Sequence

from clusterctl.inventory.model import Inventory
from clusterctl.run import engine, membership
from clusterctl.run.context import Options
from clusterctl.run.entry import ENTRY
from clusterctl.run.membership import ConfirmChange, WriteInventory
from clusterctl.run.phases import Phase, Run
from clusterctl.run.plays import Play
from clusterctl.util.errors import Finding, InputError, PreflightError, Problem
from clusterctl.util.text import did_you_mean, fold, plural, printable
from clusterctl.workspace import edits, home


def add_node(options: Options, addresses: Sequence[str], group: str | None) -> int:
    """Add nodes to the cluster and return the exit code. Nodes that are already in the inventory are configured again.

    Raises InputError for invalid names and addresses.
    """
    present = home.load(options.inventory)
    names = list(dict.fromkeys(options.nodes))
    group = group or _default_group(present)
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
        are, them = ("is", "it") if len(members) == 1 else ("are", "them")
        screen.say(f"{fold(members)} {are} already in the inventory; the run configures {them} again.")
    try:
        return engine.execute(membership.limited(options, change.inventory, names, screen), phases, change.inventory)
    except PreflightError as error:
        # The error may suggest --skip-unreachable, which does not add a node that does not respond. Drop that hint.
        if any(isinstance(problem, Finding) and problem.node in new for problem in error.problems):
            raise PreflightError(error.problems) from None
        raise


class RequireNewNodes(Phase):
    """Raise PreflightError if --skip-unreachable skipped a new node: it would stay in the inventory unconfigured."""

    title = "Check that the new nodes respond"
    changes_nodes = announced = False

    def __init__(self, new: Collection[str]) -> None:
        self.new = new

    def run(self, run: Run) -> None:
        found = "was skipped for the reason above and cannot be added"
        found += "; --skip-unreachable applies to nodes that are already in the cluster"
        skipped = [name for name in self.new if name in run.site.skipped]
        if skipped:
            raise PreflightError([Finding(name, "node", found, "remove it from the command") for name in skipped])

    def plan(self, run: Run) -> None:
        self.run(run)


def flags(addresses: Sequence[str], group: str | None) -> tuple[str, ...]:
    """Return the flags that only add-node has, as typed."""
    given = [word for address in addresses for word in ("--address", address)]
    return (*given, *(["--group", group] if group else []))


def _default_group(present: Inventory) -> str:
    """Return the workers of the only scheduler. Raises InputError for an inventory with several."""
    workers = [kind.workers for kind in present.schedulers]
    if len(workers) > 1:
        message = f"is required, expected {' or '.join(workers)}, or a group below one of them"
        raise InputError([Problem(None, "--group", message)])
    return workers[0]


def _new(present: Inventory, names: Sequence[str], addresses: Sequence[str], group: str) -> dict[str, str | None]:
    """Return the nodes that are not in the inventory, with their addresses. Raises InputError for invalid input."""
    if len(addresses) not in (0, len(names)):
        message = f"got {plural(len(addresses), 'address')} for {plural(len(names), 'node')}"
        raise InputError([Problem(None, "--address", message, "give one per node, in the order of the nodes, or none")])
    wanted: dict[str, str | None] = dict(zip(names, addresses, strict=True)) if addresses else dict.fromkeys(names)
    known = {host.name: host for host in present.hosts}
    problems = []
    workers = [kind.workers for kind in present.schedulers]
    if group not in workers and group not in present.groups:
        message = f'no group "{printable(group, 64)}" below {" or ".join(workers)}'
        problems.append(Problem(None, "--group", message, did_you_mean(group, present.groups)))
    for name in (name for name in names if name in known):
        if not known[name].is_worker:
            problems.append(Problem(known[name].position, name, "is in the inventory but is not a worker"))
        elif wanted[name] not in (None, known[name].address):
            requested = printable(str(wanted[name]), 64)
            message = f"has the address {known[name].address} in the inventory, got {requested}"
            problems.append(Problem(known[name].position, name, message, "omit --address, or correct the inventory"))
    if problems:
        raise InputError(problems)
    return {name: address for name, address in wanted.items() if name not in known}
