"""Shell completion of nodes, secrets, runs, roles, pages and labs, from local files; contacts no node.

Unreadable files complete nothing, because a shell prints an error into the line that is being typed.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import typer


def _matching(find: Callable[[], Iterable[str]], prefix: str, given: object = ()) -> list[str]:
    """Return the names with a prefix, without those in `given`; none if they cannot be read."""
    used = given if isinstance(given, list | tuple) else ()
    try:
        return [name for name in find() if name.startswith(prefix) and name not in used]
    except Exception:
        return []


def _inventory(context: typer.Context) -> Path:
    """Return the file of the inventory in the arguments."""
    from clusterctl.workspace import home

    # While the value of an option is typed, click does not parse the words before it and leaves them in `args`.
    given = context.params.get("inventory") or context.args[0]
    return home.inventory_file(Path(given))


def workers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a worker's name."""
    from clusterctl.workspace import home

    def find() -> Iterable[str]:
        return [host.name for host in home.load(_inventory(ctx)).workers]

    return _matching(find, incomplete, ctx.params.get("nodes"))


def hosts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a host's name."""
    from clusterctl.workspace import home

    return _matching(
        lambda: [host.name for host in home.load(_inventory(ctx)).hosts], incomplete, ctx.params.get("nodes")
    )


def limit(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the last host or group of a comma-separated list."""
    from clusterctl.workspace import home

    before, comma, last = incomplete.rpartition(",")

    def find() -> Iterable[str]:
        inventory = home.load(_inventory(ctx))
        return [*(host.name for host in inventory.hosts), *(name for name in inventory.groups if name != "all")]

    return [f"{before}{comma}{name}" for name in _matching(find, last, before.split(","))]


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a group of workers."""
    from clusterctl.workspace import home

    def find() -> Iterable[str]:
        inventory = home.load(_inventory(ctx))
        workers = [{host.name for host in inventory.in_group(kind.workers)} for kind in inventory.schedulers]
        groups = [(name, {*members}) for name, members in inventory.groups.items() if name != "all"]
        return [name for name, members in groups if any(members <= hosts for hosts in workers)]

    return _matching(find, incomplete)


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a run's name."""
    from clusterctl.run import runs

    return _matching(lambda: ["last", *runs.names(_inventory(ctx).parent)], incomplete)


def secrets(incomplete: str) -> list[str]:
    """Complete a secret's name."""
    from clusterctl.workspace import secrets

    return _matching(lambda: secrets.names(), incomplete)


def people(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a user of the inventory."""
    from clusterctl.workspace import home

    def find() -> Iterable[str]:
        variables = home.load(_inventory(ctx)).head.variables
        return [str(user["name"]) for user in variables.get("users_accounts", ())]

    return _matching(find, incomplete)


def rotatable(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a secret that can be replaced."""
    from clusterctl.workspace import secrets

    return _matching(lambda: ["all", *secrets.rotatable()], incomplete, ctx.params.get("names"))


def settable(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a secret that a person sets."""
    from clusterctl.workspace import secrets

    return _matching(secrets.settable, incomplete)


def roles(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a role that has packages."""
    from clusterctl.commands import upgrade

    return _matching(lambda: sorted(upgrade.roles()), incomplete, ctx.params.get("only"))


def addresses(incomplete: str) -> list[str]:
    """Complete a page of a cluster."""
    from clusterctl.inventory import pages as declared

    return _matching(lambda: [page.name for page in declared.load_all()], incomplete)


def pages(incomplete: str) -> list[str]:
    """Complete a page of the documentation."""
    from clusterctl.commands import docs

    return _matching(docs.pages_by_name, incomplete)


def labs(incomplete: str) -> list[str]:
    """Complete a lab's name."""
    from clusterctl.lab import lab

    return _matching(lab.names, incomplete)


def lab_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a node of a lab."""
    from clusterctl.lab.lab import Lab

    def find() -> Iterable[str]:
        lab = Lab(ctx.params.get("name") or "lab")
        settings = lab.settings()
        return [node.name for node in settings.nodes()] if settings else []

    return _matching(find, incomplete)


def faults(incomplete: str) -> list[str]:
    """Complete a fault."""
    from clusterctl.lab import fault

    return _matching(lambda: fault.FAULTS, incomplete)
