"""Change the inventory; the whole change is checked before anything is written."""

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
    """A new text of the inventory, and its parsed form; `gone` are files to delete with it."""

    path: Path
    old: str
    new: str
    inventory: Inventory
    gone: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return self.new != self.old

    def diff(self) -> str:
        """Return the change in the format of `diff -u`."""
        removed = (diff(path.read_text(), "", str(path), "/dev/null") for path in self.gone)
        return diff(self.old, self.new, self.path.name) + "".join(removed)

    def save(self, directory: Path) -> Inventory:
        """Write the new text atomically, with the same mode, and return the new inventory.

        `directory` is the cluster's, or a plan's copy of it. Raises InputError if it cannot be written.
        """
        path = directory / self.path.name
        with files.writing(path):
            mode = path.stat().st_mode & 0o777
            files.write_atomically(path, self.new.encode(), replace=True)
            path.chmod(mode)
            files.discard(directory / gone.relative_to(self.inventory.directory) for gone in self.gone)
        return replace(self.inventory, path=path, directory=directory)


def adding(present: Inventory, path: Path, group: str, new: dict[str, str | None]) -> Change:
    """Return the change that adds hosts (name: address) to a group of workers. Raises InputError."""
    text = path.read_text()
    return changed(path, edit.add(text, group, new)) if new else Change(path, text, text, present)


def removing(before: Inventory, path: Path, names: Sequence[str]) -> Change:
    """Return the change that removes hosts and their files in host_vars/. Raises InputError."""
    return changed(path, edit.remove(path.read_text(), names), own_files(before, names))


def changed(path: Path, new: str, gone: Sequence[Path] = ()) -> Change:
    """Check the cluster's directory with this text. Raises InputError with every problem."""
    directory = path.parent.resolve()
    old = path.read_text()
    with tempfile.TemporaryDirectory(prefix="clusterctl-edit-") as place:
        copy = Path(place).resolve()
        # Variables may refer to files, so copy them. Not pipes: reading one would block.
        shutil.copytree(directory, copy, ignore=_unread, ignore_dangling_symlinks=True, dirs_exist_ok=True)
        (copy / path.name).write_text(new)
        files.discard(copy / file.relative_to(directory) for file in gone)
        try:
            found = inventory.load(copy / path.name)
        except InputError as error:
            raise InputError([_elsewhere(problem, copy, directory) for problem in error.problems]) from None
    return Change(path, old, new, replace(found, path=path, directory=directory), tuple(gone))


def own_files(before: Inventory, names: Sequence[str]) -> list[Path]:
    """Return these nodes' files in host_vars/. Raises InputError if they are behind a link."""
    above = before.directory / "host_vars"
    places = [above / name for name in names]
    single = [place.with_name(place.name + suffix) for place in places for suffix in (".yml", ".yaml")]
    inside = [path for place in places if place.is_dir() for path in listing(place)]
    found = [path for path in (*single, *inside) if path.is_file()]
    if led := [path for path in (above, *places) if path.is_symlink() and any(path in file.parents for file in found)]:
        hint = "its target may be in use elsewhere: replace the link with the files"
        raise InputError([Problem(None, str(path), "is a link, expected a directory", hint) for path in led])
    return found


def diff(old: str, new: str, name: str, after: str = "") -> str:
    """Return a printable unified diff of the file `name`, renamed to `after`; empty if nothing changes."""
    lines = []
    before, now = (list(io.StringIO(text, newline="\n")) for text in (old, new))
    for line in difflib.unified_diff(before, now, name, after or name):
        body = line.rstrip("\r\n")
        lines.append("\t".join(escape_controls(part) for part in body.split("\t")))
        if body == line:
            lines.append("\\ No newline at end of file")
    return "".join(f"{line}\n" for line in lines)


def _unread(directory: str, names: list[str]) -> list[str]:
    """Return entries that no inventory refers to: runs, .git, and anything but files and directories."""
    paths = {name: Path(directory, name) for name in names}
    return [n for n, path in paths.items() if n in (home.STATE, ".git") or not (path.is_file() or path.is_dir())]


def _elsewhere(problem: object, copy: Path, directory: Path) -> object:
    """Return a problem in the copy with the paths of the original directory."""
    if not isinstance(problem, Problem):
        return problem
    position = problem.position
    if position:
        path = Path(str(position.path).replace(str(copy), str(directory), 1))
        position = Position(path, position.line, position.column)
    words = (text.replace(str(copy), str(directory)) for text in (problem.key, problem.message, problem.hint))
    return Problem(position, *words)
