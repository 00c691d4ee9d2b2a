"""Check a cluster's directory, the inventory and the files beside it, before any node is contacted."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from clusterctl.inventory import model as inventory
from clusterctl.inventory.model import Inventory
from clusterctl.util import files
from clusterctl.util.errors import InputError, Position, Problem
from clusterctl.workspace import hardware, secrets

KNOWN_HOSTS = "known_hosts"
MAX_KNOWN_HOSTS = 1 << 24  # bytes; a host needs about 1500
STATE = ".clusterctl"


def inventory_file(given: Path) -> Path:
    """Return the inventory's file; in a directory it is `inventory.yaml`."""
    # Path's methods raise for a path that is invalid or not accessible.
    return (given / "inventory.yaml" if os.path.isdir(given) else given).absolute()  # noqa: PTH112


def load(path: Path) -> Inventory:
    """Return the inventory in `path`. Raises InputError with every problem in it and in the files of its directory."""
    found: list[Inventory] = []
    problems: list[object] = []

    def collect(check: Callable[[], object]) -> None:
        try:
            check()
        except InputError as error:
            problems.extend(error.problems)

    collect(lambda: found.append(inventory.load(path)))
    directory = path.parent
    if os.path.isdir(directory):  # noqa: PTH112
        collect(lambda: hardware.load_all(directory))
        problems.extend(not_its_own(directory))
        collect(lambda: known_hosts(directory / KNOWN_HOSTS))
        collect(lambda: secrets.check(directory, found[0].cluster_name if found else None))
    if problems:
        raise InputError(problems)
    return found[0]


def known_hosts(path: Path) -> list[str]:
    """Return the lines of a cluster's known_hosts, none if it does not exist.

    Raises InputError if it is not a file, or has a certificate authority: the authority's key could impersonate every
    node to Ansible's ssh.
    """
    try:
        lines = files.read(path, MAX_KNOWN_HOSTS, path.parent).decode(errors="replace").splitlines()
    except files.MissingError:
        return []
    except files.UnfitError as error:
        raise InputError([Problem(None, str(path), str(error))]) from None
    message, hint = "@cert-authority is not allowed, expected host keys of nodes", "delete this line"
    if problems := [
        Problem(Position(path, number, 1), "", message, hint)
        for number, line in enumerate(lines, 1)
        if line.lstrip().lower().startswith("@cert-authority")
    ]:
        raise InputError(problems)
    return lines


def not_its_own(directory: Path) -> Iterator[Problem]:
    """Yield links and other files in place of the cluster's state, which could lead out of its directory."""
    ignored = directory / ".gitignore"  # the head keeps a copy of it
    if ignored.is_symlink():
        yield Problem(None, str(ignored), "is a link, expected a regular file")
    own = (
        directory / STATE,
        *(directory / STATE / name for name in ("runs", "backups", "leaving")),
        directory / hardware.DIRECTORY,
    )
    for path in own:
        if os.path.islink(path) or (os.path.exists(path) and not os.path.isdir(path)):  # noqa: PTH110, PTH112, PTH114
            yield Problem(None, str(path), "is a link or a file, expected a directory")
    kept = directory / STATE / "leaving"
    if os.path.islink(kept) or not os.path.isdir(kept):  # noqa: PTH112, PTH114
        return
    try:
        for entry in files.listing(kept):
            # Ansible uses an inventory in that directory and would load files beside it as variables.
            named = entry.suffix == ".json" or entry.name in ("inventory.yaml", KNOWN_HOSTS)
            if not (named or entry.name.startswith(".")) or entry.is_symlink() or not entry.is_file():
                yield Problem(None, str(entry), "is not a file of clusterctl", "delete it")
    except files.UnfitError as error:
        yield Problem(None, str(kept), str(error))
