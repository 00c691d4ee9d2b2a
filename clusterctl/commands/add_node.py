"""`add-node`: write nodes to the inventory, and bootstrap them and the nodes that list all nodes, such as heads."""

from collections.abc import Sequence

from clusterctl.inventory.model import Inventory
from clusterctl.run import engine, membership
from clusterctl.run.context import Options
from clusterctl.run.entry import ENTRY
from clusterctl.run.membership import ConfirmChange, RequireResponse, WriteInventory
from clusterctl.run.plays import Play
from clusterctl.util.errors import InputError, PreflightError, Problem
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
        RequireResponse(new, "cannot be added"),
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
        raise membership.without_hint(error, new) from None


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
