"""A YAML text as a tree of what it says and where each thing stands, for those who edit the text.

`document` reads data; this keeps what editing needs besides: ends, quotes, braces, anchors, aliases (none is expanded).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from clusterctl import document
from clusterctl.errors import InputError, Problem

BY_HAND = "edit the inventory by hand"
STR = "tag:yaml.org,2002:str"
_NULL = "tag:yaml.org,2002:null"

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_resolver: Any = yaml.resolver.Resolver()


def parse(text: str) -> "Node":
    """Return the root of the text's one document; InputError where there is not one, or it is nested too deep."""
    return _Parser(text).root()


def is_plain(text: str) -> bool:
    """Tell whether `text` is read as this very text without quotes, anywhere."""
    simple = re.fullmatch("[A-Za-z0-9_][A-Za-z0-9_.-]*", text) is not None
    return simple and _resolver.resolve(yaml.ScalarNode, text, (True, False)) == STR


@dataclass(eq=False)
class Node:
    """A value in the text, from offset `start` to `end`: a scalar, an alias (both by `text`), a list or a mapping."""

    kind: str
    start: int
    end: int
    note: tuple[str | None, str | None]
    """Its anchor and its tag as written."""
    text: str = ""
    quotes: str | None = None
    flow: bool = False
    items: "list[Node]" = field(default_factory=list)
    pairs: "list[Pair]" = field(default_factory=list)

    @property
    def tag(self) -> str:
        """What a scalar is read as."""
        plain = self.quotes is None
        return self.note[1] or (str(_resolver.resolve(yaml.ScalarNode, self.text, (True, False))) if plain else STR)

    @property
    def empty(self) -> bool:
        """Whether this is nothing or a mapping of nothing, which mean the same in an inventory."""
        nothing = self.kind == "scalar" and self.tag == _NULL
        return self.note == (None, None) and (nothing or (self.kind == "mapping" and not self.pairs))

    def walk(self) -> "Iterator[Node]":
        yield self
        for item in self.items:
            yield from item.walk()
        for pair in self.pairs:
            yield from pair.key.walk()
            yield from pair.value.walk()

    def plain(self) -> Any:
        """Return all that the parser knows of the data here, in a form that compares."""
        if self.kind == "scalar":
            return (*self.note, None if self.tag == _NULL else (self.tag, self.text))
        if self.kind == "alias":
            return (self.kind, self.text)
        items = [item.plain() for item in self.items]
        return (self.kind, self.note, items, [(pair.key.plain(), pair.value.plain()) for pair in self.pairs])


@dataclass(eq=False)
class Pair:
    key: Node
    value: Node
    end: int
    """Where the last sign of it ends."""


class _Parser:
    """Builds the tree from the parser's events: these still know of aliases, and none is expanded."""

    def __init__(self, text: str) -> None:
        self.text = text

    def root(self) -> Node:
        try:
            events: Iterator[Any] = iter(list(yaml.parse(self.text, Loader=_Loader)))
        except (yaml.YAMLError, UnicodeError):
            raise InputError([Problem(None, "the inventory", "is not valid YAML", BY_HAND)]) from None
        roots = [self.node(next(events), events, 0) for event in events if isinstance(event, yaml.DocumentStartEvent)]
        if len(roots) != 1:
            raise InputError([Problem(None, "the inventory", f"got {len(roots)} documents, expected one", BY_HAND)])
        return roots[0]

    def node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        start, end = event.start_mark.index, event.end_mark.index
        if depth > document.MAX_DEPTH:
            raise InputError([Problem(None, "the inventory", "is nested too deep", BY_HAND)])
        if isinstance(event, yaml.AliasEvent):
            return Node("alias", start, end, (None, None), str(event.anchor))
        note = (event.anchor, event.tag)
        if isinstance(event, yaml.ScalarEvent):
            # A block scalar ends behind the blank lines after it.
            end = start + len(self.text[start:end].rstrip())
            return Node("scalar", start, end, note, event.value, None if event.implicit[0] else event.style)
        flow = bool(event.flow_style)
        if isinstance(event, yaml.SequenceStartEvent):
            node = Node("sequence", start, end, note, flow=flow)
            while not isinstance(event := next(events), yaml.SequenceEndEvent):
                node.items.append(self.node(event, events, depth + 1))
            last = node.items[-1].end if node.items else end
        else:
            node = Node("mapping", start, end, note, flow=flow)
            while not isinstance(event := next(events), yaml.MappingEndEvent):
                key = self.node(event, events, depth + 1)
                value = self.node(next(events), events, depth + 1)
                node.pairs.append(Pair(key, value, self.pair_end(key, value, flow)))
            last = node.pairs[-1].end if node.pairs else end
        # Where a block ends, the parser has already gone on to what comes next.
        node.end = event.end_mark.index if flow else last
        return node

    def pair_end(self, key: Node, value: Node, flow: bool) -> int:
        if value.end > value.start:
            return value.end
        # Within braces a colon is one only with a blank behind it.
        colon = re.compile(r"[ \t]*:[ \t]?" if flow else r"[ \t]*:").match(self.text, key.end)
        return colon.end() if colon else key.end
