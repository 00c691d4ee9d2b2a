"""A cluster's home, its directory: the inventory and what lies beside it, judged before anybody is contacted."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from clusterctl.inventory import model as inventory
from clusterctl.inventory.model import Inventory
from clusterctl.util import files
from clusterctl.util.errors import InputError, Position, Problem
from clusterctl.workspace import hardware, secrets

KNOWN_HOSTS = "known_hosts"
MAX_KNOWN_HOSTS = 1 << 24  # bytes; a host has some 1500 of them
STATE = ".clusterctl"


def inventory_file(given: Path) -> Path:
    """Return the inventory's file; a directory stands for the `inventory.yaml` in it."""
    # Path's own methods raise for a path that no system call takes, or that may not be looked at.
    return (given / "inventory.yaml" if os.path.isdir(given) else given).absolute()  # noqa: PTH112


def load(path: Path) -> Inventory:
    """Return the inventory in `path`; InputError with every problem of it and of the files in its directory."""
    found: list[Inventory] = []
    problems: list[object] = []

    def judge(look: Callable[[], object]) -> None:
        try:
            look()
        except InputError as error:
            problems.extend(error.problems)

    judge(lambda: found.append(inventory.load(path)))
    directory = path.parent
    if os.path.isdir(directory):  # noqa: PTH112
        judge(lambda: hardware.load_all(directory))
        problems.extend(not_its_own(directory))
        judge(lambda: known_hosts(directory / KNOWN_HOSTS))
        judge(lambda: secrets.check(directory, found[0].cluster_name if found else None))
    if problems:
        raise InputError(problems)
    return found[0]


def known_hosts(path: Path) -> list[str]:
    """Return the lines of a cluster's known_hosts, none where it is not there yet.

    Raises InputError where it is no file, or names a certificate authority: whoever holds its key passes for every
    node to Ansible's ssh, and no line for a node shows it.
    """
    try:
        lines = files.read(path, MAX_KNOWN_HOSTS, path.parent).decode(errors="replace").splitlines()
    except files.MissingError:
        return []
    except files.UnfitError as error:
        raise InputError([Problem(None, str(path), str(error))]) from None
    message, hint = "@cert-authority is not allowed, expected the nodes' own host keys", "delete this line"
    if problems := [
        Problem(Position(path, number, 1), "", message, hint)
        for number, line in enumerate(lines, 1)
        if line.lstrip().lower().startswith("@cert-authority")
    ]:
        raise InputError(problems)
    return lines


def not_its_own(directory: Path) -> Iterator[Problem]:
    """Yield what stands in place of the cluster's own state and leads out of its directory."""
    ignored = directory / ".gitignore"  # the head keeps a copy of it
    if ignored.is_symlink():
        yield Problem(None, str(ignored), "is a link, expected a file of the cluster's own")
    own = (
        directory / STATE,
        *(directory / STATE / name for name in ("runs", "backups", "leaving")),
        directory / hardware.DIRECTORY,
    )
    for path in own:
        if os.path.islink(path) or (os.path.exists(path) and not os.path.isdir(path)):  # noqa: PTH110, PTH112, PTH114
            yield Problem(None, str(path), "is a link or a file, expected a directory of the cluster's own")
    kept = directory / STATE / "leaving"
    if os.path.islink(kept) or not os.path.isdir(kept):  # noqa: PTH112, PTH114
        return
    try:
        for entry in files.listing(kept):
            # Ansible plays an inventory of that directory, and would take in what lies beside it as its variables.
            named = entry.suffix == ".json" or entry.name in ("inventory.yaml", KNOWN_HOSTS)
            if not (named or entry.name.startswith(".")) or entry.is_symlink() or not entry.is_file():
                yield Problem(None, str(entry), "is no file of the cluster's own", "delete it")
    except files.UnfitError as error:
        yield Problem(None, str(kept), str(error))
