"""Read a YAML file as plain data with positions.

YAML 1.1 as PyYAML's safe loader and Ansible read it, without tags, anchors, aliases, merge keys, second documents,
duplicate keys, templates and control characters.
"""

import datetime
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clusterctl.util import files, yaml_text
from clusterctl.util.errors import Position, Problem
from clusterctl.util.text import escape_controls

Report = Callable[[Problem], None]
Scalar = str | int | float | bool | datetime.date | None

MAX_NODES = 60_000  # under a second to read
MAX_DEPTH = 20
_TOO_DEEP = f"nested too deep, expected at most {MAX_DEPTH} levels"
MAX_SHOWN = 10_000  # characters that are searched for passwords before a message shows them
_MAX_NUMBER = 40  # characters; Python takes quadratic time for long ones, and refuses to print them

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# A text that begins with this header is also a template for Ansible.
_JINJA = re.compile(r"\{[{%#]|^\s*#jinja2:")
_USERINFO = re.compile(r"//[^/\s]*@")
_INI = re.compile(r"^\[[\w:.-]+\][ \t]*(?:#.*)?$", re.MULTILINE)
_OTHER_FILES = (
    (b"\xff\xfe", "is UTF-16, expected UTF-8", "save it as UTF-8"),
    (b"\xfe\xff", "is UTF-16, expected UTF-8", "save it as UTF-8"),
    (b"$ANSIBLE_VAULT", "is encrypted, expected readable YAML", "secrets belong in the cluster's secrets.yml"),
)

_resolver: Any = yaml.resolver.Resolver()
_safe: Any = yaml.constructor.SafeConstructor()
_STR = "tag:yaml.org,2002:str"
_CONSTRUCTORS: dict[str, Callable[[Any], Scalar]] = {
    "tag:yaml.org,2002:bool": _safe.construct_yaml_bool,
    "tag:yaml.org,2002:float": _safe.construct_yaml_float,
    "tag:yaml.org,2002:int": _safe.construct_yaml_int,
    "tag:yaml.org,2002:null": _safe.construct_yaml_null,
    _STR: lambda node: str(node.value),
    "tag:yaml.org,2002:timestamp": _safe.construct_yaml_timestamp,
}


class Key(str):
    """A mapping's key with its position."""

    position: Position

    def __new__(cls, text: str, position: Position) -> "Key":
        """Return `text` as a key found at `position`."""
        key = super().__new__(cls, text)
        key.position = position
        return key


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its position: a scalar (with its text in the file), a list of nodes, or a dict of keys to nodes."""

    position: Position
    value: "Scalar | list[Node] | dict[Key, Node]"
    text: str = ""

    def plain(self) -> Any:
        """Return the value without positions."""
        if isinstance(self.value, dict):
            return {str(key): node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def describe(self) -> str:
        """Return a printable description of the value for a message."""
        match self.value:
            case dict():
                return "a mapping"
            case list():
                return "a list"
            case None:
                return "nothing"
            case str():
                return f'"{shown(self.value)}"'
        if str(self.value).lower() == self.text.lower():
            return shown(self.text)
        return f"{shown(self.text)}, which YAML reads as {shown(str(self.value)).lower()}"


def shown(text: str) -> str:
    """Return `text` on one line of at most 60 printable characters, without the user and password of a URL."""
    escaped = escape_controls(_USERINFO.sub("//[hidden]@", text[:MAX_SHOWN])[:61])
    return escaped if len(escaped) <= 60 else escaped[:57] + "..."


def read(path: Path, report: Report) -> Node | None:
    """Return the file's only document, or None if it cannot be read. Report every problem to `report`."""
    text = _text(path)
    if isinstance(text, Problem):
        report(text)
        return None
    return parse(text, path, report)


def parse(text: str, path: Path, report: Report) -> Node | None:
    """Parse `text` as `read` does; `path` is the file in the problems."""
    try:
        return _Builder(path, report).build(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = Position(path, mark.line + 1, mark.column + 1) if mark else None
        report(_syntax(text, position, error))
    except yaml.YAMLError as error:
        report(Problem(None, str(path), f"not valid YAML: {shown(str(error))}"))
    except _TooMuchError as error:
        report(Problem(error.position, "", str(error)))
    return None


def _text(path: Path) -> str | Problem:
    """Return the text of a UTF-8 file of limited size, or the problem with it."""

    def refuse(message: str, hint: str = "") -> Problem:
        return Problem(None, str(path), message, hint)

    try:
        data = files.read(path)  # 500 hosts with ten variables each are a quarter of the limit
        if path.stat().st_mode & 0o111:
            return refuse("is executable, expected a plain text file", "it is data and never run: chmod -x")
    except (files.UnfitError, OSError) as error:
        return refuse(str(error))
    for magic, what, hint in _OTHER_FILES:
        if data.startswith(magic):
            return refuse(what, hint)
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if bad := _CONTROL.search(text):
        what = "holds a control character, got " + ascii(bad[0])[1:-1]
        if bad[0] >= "\udc80":
            what = f"is not UTF-8 text, got the byte \\x{ord(bad[0]) - 0xDC00:02x}"
        line, column = text.count("\n", 0, bad.start()) + 1, bad.start() - text.rfind("\n", 0, bad.start())
        return Problem(Position(path, line, column), "", what)
    return text


def _syntax(text: str, position: Position | None, error: yaml.MarkedYAMLError) -> Problem:
    if _INI.search(text):
        return Problem(position, "", "looks like an INI inventory, expected YAML", "see `clusterctl docs inventory`")
    line = text.splitlines()[position.line - 1] if position and position.line <= len(text.splitlines()) else ""
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent:
        return Problem(position, "", "a tab in the indentation, expected spaces")
    if "nesting depth" in (error.problem or ""):  # PyYAML 6.0.4 and newer have their own limit
        return Problem(position, "", _TOO_DEEP)
    parts = [shown(part) for part in (error.problem, error.context) if part]
    return Problem(position, "", f"not valid YAML: {', '.join(parts)}")


class _TooMuchError(Exception):
    def __init__(self, position: Position, what: str) -> None:
        super().__init__(what)
        self.position = position


class _Builder:
    """Builds nodes from the parser's events, which still have tags, anchors and documents."""

    def __init__(self, path: Path, report: Report) -> None:
        self.path = path
        self.report = report
        self.trail: list[str] = []
        self.count = 0

    def build(self, text: str) -> Node | None:
        loader = yaml_text.LOADER(text)
        try:
            events: Iterator[Any] = iter(loader.get_event, None)
            root: Node | None = None
            for event in events:
                if isinstance(event, yaml.DocumentStartEvent):
                    if root is not None:
                        self.refuse(self.at(event), "a second document, expected one")
                        return None
                    root = self.node(next(events), events, 0)
        finally:
            loader.dispose()
        if root is None or root.value is None:
            self.report(Problem(None, str(self.path), "is empty"))
            return None
        if not isinstance(root.value, dict):
            ini = _INI.search(text) is not None
            self.refuse(root.position, "looks like an INI inventory" if ini else root.describe(), "a mapping")
            return None
        return root

    def at(self, event: Any) -> Position:
        return Position(self.path, event.start_mark.line + 1, event.start_mark.column + 1)

    def refuse(self, position: Position, got: str, expected: str = "", hint: str = "") -> None:
        message = f"got {got}, expected {expected}" if expected else got
        self.report(Problem(position, ".".join(self.trail), message, hint))

    def node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        position = self.at(event)
        self.count += 1
        if depth > MAX_DEPTH:
            raise _TooMuchError(position, _TOO_DEEP)
        if self.count > MAX_NODES:
            raise _TooMuchError(position, f"too much in one file, expected at most {MAX_NODES} keys and values")
        if isinstance(event, yaml.AliasEvent):
            self.refuse(position, f"an alias (*{shown(str(event.anchor))})", "the value itself")
            return Node(position, None)
        if event.anchor is not None:
            self.refuse(position, f"an anchor (&{shown(str(event.anchor))})", "the value alone")
        if event.tag is not None:
            self.refuse(position, f"a YAML tag ({shown(event.tag)})", "plain data")
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event, position)
        if isinstance(event, yaml.SequenceStartEvent):
            return Node(position, self.sequence(events, depth))
        return Node(position, self.mapping(events, depth))

    def scalar(self, event: Any, position: Position) -> Node:
        text = event.value
        if _JINJA.search(text):
            self.refuse(position, f'a template ("{shown(text)}")', "a literal value")
        if bad := next((sign for sign in text if not sign.isprintable() and sign not in "\t\r\n"), ""):
            # Invisible characters: escapes, zero-width blanks, bidirectional marks.
            self.refuse(position, f"the character {ascii(bad)[1:-1]}", "printable text")
        if re.search(r"[\t\r\n]", text.removesuffix("\n")):
            # A value may become a line of a configuration file, and a line break would add another one.
            self.refuse(position, "a line break or tab inside a text", "one line")
        if not event.implicit[0]:
            return Node(position, text, text)
        tag = _resolver.resolve(yaml.ScalarNode, text, (True, False))
        try:
            if tag != _STR and len(text) > _MAX_NUMBER:
                raise ValueError
            return Node(position, _CONSTRUCTORS[tag](yaml.ScalarNode(tag, text)), text)
        except (KeyError, ValueError, OverflowError):
            self.refuse(position, f"{shown(text)}, which YAML cannot read as a value", "a quoted text")
            return Node(position, text, text)

    def sequence(self, events: Iterator[Any], depth: int) -> list[Node]:
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self.node(event, events, depth + 1))
        return items

    def mapping(self, events: Iterator[Any], depth: int) -> dict[Key, Node]:
        entries: dict[Key, Node] = {}
        places: dict[str, Position] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self.node(event, events, depth + 1)
            self.trail.append(shown(key.text))
            value = self.node(next(events), events, depth + 1)
            self.trail.pop()
            if not isinstance(key.value, str):
                self.refuse(key.position, f"{key.describe()} as a key", "a name", "quote it if it is intended")
            elif key.value in places:
                first = places[key.value].line
                self.refuse(key.position, f'the key "{shown(key.value)}" a second time (first on line {first})')
            else:
                places[key.value] = key.position
                entries[Key(key.value, key.position)] = value
        return entries
