"""Add hosts to the text of an inventory and remove them, with as few changed lines as possible.

ruamel.yaml rewrites the changed block. Each input line has its number as a comment. A line that is written the same
with and without the change keeps its text. Blank lines and comments are not given to ruamel.yaml and also stay.
"""

import bisect
import copy
import io
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, ScalarString

from clusterctl.inventory import addresses, document, hostrange, rules
from clusterctl.inventory.document import shown
from clusterctl.inventory.schedulers import KINDS, SLURM
from clusterctl.util import yaml_text
from clusterctl.util.errors import InputError, Problem
from clusterctl.util.text import did_you_mean

_WORKERS = SLURM.workers
_ADDRESS = "ansible_host"
_NOTHING: tuple[Any, ...] = (None, {}, "~", "null", "Null", "NULL")
_resolver: Any = yaml.resolver.Resolver()
_OUT = re.compile(r"""#+\s*["']?[a-z0-9\[][\w\[\]:.-]*["']?\s*:\s*(\{.*\}\s*)?(#.*)?$""")
"""A host that is commented out: it is not a comment on the next host."""


def add(text: str, group: str, hosts: Mapping[str, str | None]) -> str:
    """Return `text` with `hosts` in `group`: each name with its address, or None for a host without variables.

    The group is one of workers or below it, and is made if missing. Hosts are inserted by name if the existing ones are
    in natural order, else at the end. Raises InputError for a bad name or address, for a host that is already in the
    group, and for a text that cannot be edited safely.
    """
    _check(group, hosts)
    if not hosts:
        return text
    old = _Draft(text)
    path = old.path(group)
    below = {name for at, members in old.members.items() if at[: len(path) - 1] == path[:-1] for name, _ in members}
    if double := sorted(below.intersection(hosts)):
        raise InputError([Problem(None, group, f'the host "{double[0]}" is already in the group')])
    new = _Draft(result := old.changed(path, lambda tree, way: _put(tree, way, hosts), hosts))
    after, before = new.members.get(path, []), old.members.get(path, [])
    given = {name: {_ADDRESS: address} if address else None for name, address in hosts.items()}
    _require({name: value for name, value in after if name in hosts} == given)
    _require([member for member in after if member[0] not in hosts] == before)
    _require(new.members == old.members | {path: after} and new.other == old.other)
    return result


def remove(text: str, names: Collection[str]) -> str:
    """Return `text` without these hosts in any group, and without their comments.

    A host's comments are on its own line, or above it if they have its name or follow the previous host. A range is
    split around removed hosts. Raises InputError for an unknown host, and for a text that cannot be edited safely.
    """
    old = new = _Draft(text)
    known = {name for members in old.members.values() for name, _ in members}
    if unknown := sorted(set(names) - known):
        problems = [Problem(None, "", f'no host "{shown(name)}"', did_you_mean(name, known)) for name in unknown]
        raise InputError(problems)
    expected = {at: [member for member in members if member[0] not in names] for at, members in old.members.items()}
    for path, left in expected.items():
        if left != old.members[path]:
            new = _Draft(text := new.changed(path, lambda tree, way: _take(tree, way, names), names))
    _require(new.members == {at: left for at, left in expected.items() if left} and new.other == old.other)
    return text


def _check(group: str, hosts: Mapping[str, str | None]) -> None:
    problems = []
    if not re.fullmatch("[a-z][a-z0-9_]{0,62}", group):
        problems.append(Problem(None, shown(group), "bad group name", f"expected {_WORKERS} or a group below it"))
    for name, address in hosts.items():
        if not hostrange.is_host_name(name):
            expected = "expected a short name of lower-case letters, digits and hyphens"
            problems.append(Problem(None, shown(name), "bad host name", expected))
        if address is not None and not (addresses.is_ip(address) or rules.is_domain(address)):
            message = f'bad address, got "{shown(address)}", expected an IP address or a host name'
            problems.append(Problem(None, shown(name), message))
    if problems:
        raise InputError(problems)


def _refuse(what: str, line: int | None = None) -> NoReturn:
    where = "the inventory" if line is None else f"the inventory, line {line + 1}"
    raise InputError([Problem(None, where, what, "edit the inventory by hand")])


def _require(condition: bool) -> None:
    if not condition:
        _refuse("cannot be edited safely")


# --- the tree -------------------------------------------------------------------------------------------------------


def _put(node: Any, way: tuple[str, ...], hosts: Mapping[str, str | None]) -> None:
    """Add hosts to the mapping at `way`, which is made if missing."""
    for key in way:
        inner = node.get(key)
        if inner in _NOTHING:
            inner = CommentedMap()
            held = [value for value in node.values() if isinstance(value, CommentedMap) and value]
            if held and held[-1].fa.flow_style():
                inner.fa.set_flow_style()
            at = list(node).index("children") if key == "hosts" and "children" in node else len(node)
            if key in node:
                node[key] = inner
            else:
                node.insert(at, key, inner)
        node = inner

    def natural(name: str) -> list[str | int]:
        return [int(part) if part.isdigit() else part for part in re.split("([0-9]+)", hostrange.expand(name)[0])]

    entries = list(node.items())
    known = [natural(name) for name, _ in entries]
    ordered = known == sorted(known)
    for name in sorted(hosts, key=natural) if ordered else hosts:
        at = bisect.bisect(known, natural(name)) if ordered else len(entries)
        known.insert(at, natural(name))
        near = entries[:at][::-1] + entries[at:]
        key = _scalar(name, next((key for key, _ in near if _is_text(key)), None))
        entries.insert(at, (key, _variables(hosts[name], [value for _, value in near])))
    for key, value in entries:
        node.pop(key, None)
        node[key] = value


def _variables(address: str | None, near: list[Any]) -> Any:
    """Return the value of a new host in the style of the nearest host."""
    new = CommentedMap()
    like = next((value for value in near if isinstance(value, CommentedMap) and value), None)
    if address is None or like is None or like.fa.flow_style():
        new.fa.set_flow_style()
    if address is None:
        return next((value for value in near if value in _NOTHING and value != {}), new)
    new[_ADDRESS] = _scalar(address, like.get(_ADDRESS) if like else None)
    return new


def _take(node: Any, way: tuple[str, ...], names: Collection[str]) -> None:
    """Remove hosts from the mapping at `way`."""
    for key in way:
        node = node[key]
    for key in list(node):
        rest = hostrange.without(key, names)
        if rest == (key,):
            continue
        value, number, at = node[key], node.ca.items.get(key), list(node).index(key)
        if rest and re.search(r"\[\w+:\w+(:\w+)?\]", repr(value)):
            _refuse(f'the range "{shown(key)}" has a variable that depends on the position in the range')
        del node[key]
        for index, pattern in enumerate(rest):
            written = pattern if "[" in pattern and not isinstance(key, ScalarString) else _scalar(pattern, key)
            node.insert(at + index, written, copy.deepcopy(value))
            if number:
                node.ca.items[pattern] = number
    if not node:
        node.fa.set_flow_style()


def _is_text(text: str) -> bool:
    """Return whether YAML reads unquoted `text` as the same text."""
    simple = re.fullmatch("[A-Za-z0-9_][A-Za-z0-9_.-]*", text) is not None
    return simple and _resolver.resolve(yaml.ScalarNode, text, (True, False)) == "tag:yaml.org,2002:str"


def _scalar(text: str, like: Any) -> str:
    """Return `text` quoted like `like`, or in double quotes if YAML would read it as another value."""
    kind = type(like) if isinstance(like, ScalarString) else str if _is_text(text) else DoubleQuotedScalarString
    return kind(text)


# --- the text -------------------------------------------------------------------------------------------------------


class _AsWritten(VersionedResolver):
    """Reads all scalars as text, so that `True`, `0x1F` and dates are written unchanged."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        return super().resolve(kind, value, (False, True) if value else implicit)


class _Draft:
    """The text of an inventory with its parsed content and the positions on its lines."""

    def __init__(self, text: str) -> None:
        self.mark = "\ufeff" if text.startswith("\ufeff") else ""
        self.end = "\r\n" if "\r\n" in text else "\n"
        self.final = self.end if text.endswith("\n") else ""
        body = text.removeprefix(self.mark).replace("\r\n", "\n").removesuffix("\n")
        # YAML has more line breaks than editors have.
        if re.search("[\r\x85\u2028\u2029\ud800-\udfff]", body) or self.whole(body) != text:
            _refuse("got mixed line endings, or bytes that are not text")
        problems: list[Problem] = []
        root = document.parse(body, Path("the inventory"), problems.append)
        if root is None or problems:
            raise InputError(problems)
        self.root = root
        self.lines = body.split("\n")
        self.first: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        for token in yaml.scan(body, Loader=yaml_text.LOADER):
            if token.start_mark.index < token.end_mark.index:
                self.first.setdefault(token.start_mark.line, token.start_mark.column)
                self.ends[token.end_mark.line] = token.end_mark.column
        self.paths: dict[str, tuple[str, ...]] = {}
        self.members: dict[tuple[str, ...], list[tuple[str, Any]]] = {}
        self.other: dict[tuple[str, ...], Any] = {(): root.plain()}
        if "all" not in self.other[()]:
            _refuse('has no key "all"')
        try:
            self.group(("all",), self.other[()].pop("all"))
        except ValueError as error:
            _refuse(str(error))
        except (AttributeError, TypeError):
            _refuse("a group, its hosts or its children are not a mapping")

    def whole(self, body: str) -> str:
        return self.mark + body.replace("\n", self.end) + self.final

    def group(self, path: tuple[str, ...], value: dict[str, Any] | None) -> None:
        """Record a group's hosts with their variables, its other keys, and the groups below it."""
        if len(path) > 3 and not path[2].endswith("_workers"):  # only a reference to members that are defined elsewhere
            self.other[path] = value
            return
        self.paths[path[-1]] = (*path, "hosts")
        other = (value or {}).copy()
        hosts = (other.pop("hosts", None) or {}).items()
        if members := [(name, value or None) for pattern, value in hosts for name in hostrange.expand(pattern)]:
            self.members[*path, "hosts"] = members
        for child, inner in (other.pop("children", None) or {}).items():
            self.group((*path, "children", child), inner)
        if other:
            self.other[path] = other

    def path(self, group: str) -> tuple[str, ...]:
        """Return the path to a group's hosts, also if it does not exist yet."""
        present = [kind.workers for kind in KINDS if kind.workers in self.paths] or [_WORKERS]
        workers = ("all", "children", group if group.endswith("_workers") else present[0])
        made = (*workers, "hosts") if group == workers[-1] else (*workers, "children", group, "hosts")
        path = self.paths.get(group, made)
        if len(path) < 4 or not path[2].endswith("_workers"):
            message = f"is not a group of workers, expected {' or '.join(present)} or a group below it"
            raise InputError([Problem(None, group, message)])
        return path

    def changed(self, path: tuple[str, ...], edit: Callable[..., None], names: Collection[str]) -> str:
        """Return the text after `edit` of the smallest block that contains `path`."""
        node: Any = self.root
        depth, start, column = 0, 0, -1
        for above, key in enumerate(path):
            at = next((at.position for at in node.value or () if at == key), None)
            if at is None:
                break
            if self.first[at.line - 1] == at.column - 1:
                depth, start, column = above, at.line - 1, at.column - 1
            node = node.value[key]
        end = next((row for row in sorted(self.first) if row > start and self.first[row] <= column), len(self.lines))
        content = [(self.lines[row][: self.ends[row]], row) for row in range(start, end) if row in self.ends]
        rows = [row for _, row in content]
        try:
            tree = _yaml().load("\n".join(f"{text}  #{row}" for text, row in content))
            before = _written(tree)
            if column < 0 or not self.first.keys() >= set(rows) or _squeezed(before) != _squeezed(content):
                raise YAMLError
            edit(tree, path[depth:])
            return self.patched(rows, before, _written(tree), names)
        except YAMLError:
            _refuse("has a layout that an edit would not keep", start)

    def patched(self, rows: list[int], before: list[Any], after: list[Any], names: Collection[str]) -> str:
        """Return the text with the differences between `before` and `after`, whose lines have their row or None."""
        was = {row: text for text, row in before}
        deeper = [self.first[row] - self.first[rows[0]] for row in rows[1:2]] or filter(None, self.first.values())
        step = min(deeper, default=2)
        lines, new, seen, at = dict(enumerate(self.lines)), dict[int, list[str]](), set[int](), rows[0]
        columns: dict[int, int] = {}
        for text, row in after:
            indent = _indent(text)
            columns = {known: column for known, column in columns.items() if known <= indent}
            if row is not None:
                columns[indent] = self.first[row]
            elif indent not in columns:
                beside = [
                    self.first[row] for text, row in before[bisect.bisect(rows, at) :][:1] if _indent(text) == indent
                ]
                columns[indent] = beside[0] if beside else columns[max(columns)] + (indent - max(columns)) // 2 * step
            line = " " * columns[indent] + text.strip()
            line += self.lines[row][self.ends[row] :] if row is not None else ""
            if row is None or row in seen:
                new.setdefault(at, []).append(line)
            else:
                seen.add(at := row)
                lines[row] = lines[row] if text == was[row] else line
        for row, added in new.items():
            place = self.place(rows, row, _indent(added[0]), names) - 1
            lines[place] = "\n".join([lines[place], *added])
        for number in self.gone(rows, [row for row in rows if row not in seen], names):
            del lines[number]
        return self.whole("\n".join(lines.values()))

    # --- comments and blank lines ---

    def comment(self, line: int) -> int:
        """Return the column of a line's comment, -1 if the line is not only a comment."""
        text = self.lines[line] if line < len(self.lines) and line not in self.ends else ""
        return _indent(text) if text.lstrip().startswith("#") else -1

    def blank(self, line: int) -> bool:
        return line < len(self.lines) and not self.lines[line].strip()

    def place(self, rows: list[int], row: int, column: int, names: Collection[str]) -> int:
        """Return the line before which to insert text that follows a row and starts at `column`."""
        following = min((line for line in rows if line > row), default=row)
        if self.first[following] == column > self.first[row]:
            return self.above(following, {*names, *_words(self.lines[following].split(": ")[0])})
        return row + 1 if self.first[row] < column else self.below(row, column)

    def below(self, row: int, column: int) -> int:
        """Return the line after a row and after the comments below it that are indented deeper than `column`."""
        after = line = row + 1
        while self.blank(line) or self.comment(line) >= 0:
            line += 1
            after = line if self.comment(line - 1) > column else after
        return after

    def above(self, row: int, names: Collection[str]) -> int:
        """Return the first line of a host with the comments above it, unless these are also about other hosts."""
        line = row
        while self.comment(line - 1) == self.first[row]:
            line -= 1
        comments = [text.strip() for text in self.lines[line:row]]
        if any(not _words(text).isdisjoint(names) for text in comments):
            return line
        heading = self.blank(line - 1) or self.first.get(line - 1, self.first[row]) < self.first[row]
        return row if heading or any(map(_OUT.match, comments)) else line

    def gone(self, rows: list[int], cut: list[int], names: Collection[str]) -> set[int]:
        """Return the lines to delete with the rows `cut`: their comments, and blank lines that would be doubled."""
        column = min((self.first[row] for row in cut), default=0)
        gone: set[int] = set()
        for row in cut:
            inner = rows[bisect.bisect_left(rows, row) - 1] + 1
            above = self.above(row, names) if self.first[row] == column else inner
            gone.update(range(above, self.below(row, column)))
        for line in sorted(gone):
            before, after = line, line
            while before in gone:
                before -= 1
            while after in gone:
                after += 1
            if after > rows[-1] and self.blank(before):
                gone.add(before)
            parent = self.first.get(before, column) < column
            if after <= rows[-1] and self.blank(after) and (parent or self.blank(before)):
                gone.add(after)
        return gone


def _words(text: str) -> set[str]:
    return set(re.split(r"[^a-z0-9\[\]:-]+|:$|:\s", text)) - {""}


def _squeezed(lines: list[Any]) -> list[Any]:
    return [("".join(text.split()), row) for text, row in lines]


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _yaml() -> Any:
    yml = YAML(pure=True)
    yml.Resolver = _AsWritten
    yml.preserve_quotes = True
    yml.width = 2**31
    return yml


def _written(tree: Any) -> list[tuple[str, int | None]]:
    """Return the lines of a tree, each with the number in its comment."""
    stream = io.StringIO()
    _yaml().dump(tree, stream)
    lines = stream.getvalue().removesuffix("\n").split("\n")
    matches = [re.fullmatch(r"(.*?)\s*#(\d+)", line) for line in lines]
    return [(at[1], int(at[2])) if at else (line, None) for line, at in zip(lines, matches, strict=True)]
