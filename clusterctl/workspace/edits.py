"""A change of the inventory, checked as a whole before anything is written."""

import difflib
import io
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.inventory import edit
from clusterctl.inventory import model as inventory
from clusterctl.inventory.model import Inventory
from clusterctl.inventory.reading import listing
from clusterctl.util import files
from clusterctl.util.errors import InputError, Position, Problem
from clusterctl.util.text import escape_controls
from clusterctl.workspace import home


@dataclass(frozen=True)
class Change:
    """A new text for the inventory, and what it says; `gone` are files that go with it."""

    path: Path
    old: str
    new: str
    inventory: Inventory
    gone: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return self.new != self.old

    def diff(self) -> str:
        """Return what changes, as `diff -u` writes it."""
        removed = (diff(path.read_text(), "", str(path), "/dev/null") for path in self.gone)
        return diff(self.old, self.new, self.path.name) + "".join(removed)

    def save(self, directory: Path) -> Inventory:
        """Write the new text, whole or not at all, with the same mode, and return the inventory that it makes.

        `directory` is the cluster's, or the copy of it that a plan has. InputError where it cannot be written.
        """
        path = directory / self.path.name
        with files.writing(path):
            mode = path.stat().st_mode & 0o777
            files.write_atomically(path, self.new.encode(), replace=True)
            path.chmod(mode)
            files.discard(directory / gone.relative_to(self.inventory.directory) for gone in self.gone)
        return replace(self.inventory, path=path, directory=directory)


def adding(present: Inventory, path: Path, group: str, new: dict[str, str | None]) -> Change:
    """Return the change that adds hosts, by name with their addresses, to a group of workers. Raises InputError."""
    text = path.read_text()
    return changed(path, edit.add(text, group, new)) if new else Change(path, text, text, present)


def removing(before: Inventory, path: Path, names: Sequence[str]) -> Change:
    """Return the change that removes hosts, with their own files of host_vars/. Raises InputError."""
    return changed(path, edit.remove(path.read_text(), names), own_files(before, names))


def changed(path: Path, new: str, gone: Sequence[Path] = ()) -> Change:
    """Check the cluster's directory as it would be with this text; raises InputError with every problem of it."""
    directory = path.parent.resolve()
    old = path.read_text()
    with tempfile.TemporaryDirectory(prefix="clusterctl-edit-") as place:
        copy = Path(place).resolve()
        # With the files that variables name; pipes, which none may be, would make it wait.
        shutil.copytree(directory, copy, ignore=_unread, ignore_dangling_symlinks=True, dirs_exist_ok=True)
        (copy / path.name).write_text(new)
        files.discard(copy / file.relative_to(directory) for file in gone)
        try:
            found = inventory.load(copy / path.name)
        except InputError as error:
            raise InputError([_elsewhere(problem, copy, directory) for problem in error.problems]) from None
    return Change(path, old, new, replace(found, path=path, directory=directory), tuple(gone))


def own_files(before: Inventory, names: Sequence[str]) -> list[Path]:
    """Return the files of host_vars/ that are these nodes' own; InputError where they are behind a link."""
    above = before.directory / "host_vars"
    places = [above / name for name in names]
    single = [place.with_name(place.name + suffix) for place in places for suffix in (".yml", ".yaml")]
    inside = [path for place in places if place.is_dir() for path in listing(place)]
    found = [path for path in (*single, *inside) if path.is_file()]
    if led := [path for path in (above, *places) if path.is_symlink() and any(path in file.parents for file in found)]:
        hint = "what it leads to may be another's: put the files themselves there"
        raise InputError([Problem(None, str(path), "is a link, expected a directory", hint) for path in led])
    return found


def diff(old: str, new: str, name: str, after: str = "") -> str:
    """Return what changes in the file `name`, then called `after`, as a unified diff to show, nothing where none."""
    lines = []
    before, now = (list(io.StringIO(text, newline="\n")) for text in (old, new))
    for line in difflib.unified_diff(before, now, name, after or name):
        body = line.rstrip("\r\n")
        lines.append("\t".join(escape_controls(part) for part in body.split("\t")))
        if body == line:
            lines.append("\\ No newline at end of file")
    return "".join(f"{line}\n" for line in lines)


def _unread(directory: str, names: list[str]) -> list[str]:
    """Name what no inventory refers to: the runs, git's own, and what is neither file nor directory."""
    paths = {name: Path(directory, name) for name in names}
    return [n for n, path in paths.items() if n in (home.STATE, ".git") or not (path.is_file() or path.is_dir())]


def _elsewhere(problem: object, copy: Path, directory: Path) -> object:
    """Return a problem of the copy as one of the directory that it is a copy of."""
    if not isinstance(problem, Problem):
        return problem
    position = problem.position
    if position:
        path = Path(str(position.path).replace(str(copy), str(directory), 1))
        position = Position(path, position.line, position.column)
    words = (text.replace(str(copy), str(directory)) for text in (problem.key, problem.message, problem.hint))
    return Problem(position, *words)
