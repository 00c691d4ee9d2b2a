"""Put hosts into the text of an inventory and take them out, as a careful person would: only those lines change.

The text is parsed for positions alone, by the parser that reads inventories, and then spliced: a YAML library that
wrote it anew would lose blanks, line ends and the places of comments. Both texts are read again afterwards, and what
differs by more than what was asked is never returned: what cannot be edited safely raises InputError.
"""

import bisect
import contextlib
import difflib
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from clusterctl import hostrange, schema, yaml_text
from clusterctl.document import shown
from clusterctl.errors import InputError, Problem, printable
from clusterctl.yaml_text import BY_HAND, STR, Node, Pair, is_plain

_WORKERS = "slurm_workers"
_ADDRESS = "ansible_host"

_MERGE = "<<"

# YAML 1.1 ends a line at these too, editors do not.
_ODD_BREAK = re.compile("\r(?!\n)|[\x85\u2028\u2029]")
_COLON = re.compile(r"[ \t]*:")
_JOINT = re.compile(r"([ \t]*:)([ \t]*)")
_RULED = re.compile(r"#+\s*[-=*~#]{3,}|.*[-=*~#]{3,}\s*$")
_OUT = re.compile(r"""#+(\s*)["']?[a-z0-9\[][\w\[\]:.-]*["']?\s*:\s*(\{.*\}\s*)?(#.*)?$""")
"""A host that somebody has commented out: it is no comment on the next one."""
_PER_POSITION = re.compile(r"\{[{%#]|\[\w+:\w+(:\w+)?\]")


def add(text: str, group: str, hosts: Mapping[str, str | None]) -> str:
    """Return `text` with `hosts` in `group`: each name with its address, or None for a host without variables.

    The group is that of the workers or one below it, and is made where the inventory does not have it. Hosts go where
    their names belong if those there are in natural order, else to the end. Raises InputError for a bad name or
    address, for a host that the group has already, and for a text that cannot be edited safely.
    """
    _judge(group, hosts)
    if not hosts:
        return text
    draft = _Draft(text)
    path = draft.path(group)
    if double := sorted(draft.below(path[:-1]).intersection(hosts)):
        raise InputError([Problem(None, group, f'the host "{double[0]}" is in the group already')])
    draft.add(path, dict(hosts))
    result = draft.result()
    _require(_added(draft, _Draft(result), path, hosts))
    return result


def remove(text: str, names: Collection[str]) -> str:
    """Return `text` without these hosts, in whichever groups they stand, and without the comments that are theirs.

    A host's comments are that on its own line and those directly above it, unless they head several hosts. A range is
    split around what goes. Raises InputError for a host that is nowhere, and for a text that cannot be edited safely.
    """
    names = frozenset(names)
    draft = _Draft(text)
    known = {name for group in draft.groups.values() for _, expanded in group.members for name in expanded}
    if unknown := sorted(names - known):
        problems = [Problem(None, "", f'no host "{shown(name)}"', schema.did_you_mean(name, known)) for name in unknown]
        raise InputError(problems)
    for group in draft.groups.values():
        if any(not names.isdisjoint(expanded) for _, expanded in group.members):
            draft.cut(group, names)
    result = draft.result()
    _require(_removed(draft, _Draft(result), names))
    return result


def diff(old: str, new: str, name: str) -> str:
    """Return what changes in the file `name` as a unified diff to show, nothing where nothing does."""
    lines = []
    for line in difflib.unified_diff(_lines(old), _lines(new), name, name):
        body = line.rstrip("\r\n")
        lines.append("\t".join(printable(part) for part in body.split("\t")))
        if body == line:
            lines.append("\\ No newline at end of file")
    return "".join(f"{line}\n" for line in lines)


def _lines(text: str) -> list[str]:
    return re.findall("[^\n]*\n|[^\n]+", text)


def _judge(group: str, hosts: Mapping[str, str | None]) -> None:
    problems = []
    if not re.fullmatch("[a-z][a-z0-9_]{0,62}", group):
        problems.append(Problem(None, shown(group), "bad group name", f"expected {_WORKERS} or a group below it"))
    for name, address in hosts.items():
        if not hostrange.is_host_name(name):
            expected = "expected a short name of lower-case letters, digits and hyphens"
            problems.append(Problem(None, shown(name), "bad host name", expected))
        if address is not None and not (schema.is_ip(address) or schema.is_domain(address)):
            message = f'bad address, got "{shown(address)}", expected an IP address or a host name'
            problems.append(Problem(None, shown(name), message))
    if problems:
        raise InputError(problems)


def _natural(name: str) -> list[str | int]:
    return [int(part) if part.isdigit() else part for part in re.split("([0-9]+)", name)]


# --- editing --------------------------------------------------------------------------------------------------------


@dataclass
class _Group:
    """A group as the inventory has it: the path to its hosts, the pair of its hosts and what it stands for."""

    path: tuple[str, ...]
    hosts: Pair | None = None
    members: list[tuple[Pair, tuple[str, ...]]] = field(default_factory=list)


class _Draft:
    """A text being edited: its tree, its groups, and the changes collected so far."""

    def __init__(self, text: str) -> None:
        self.mark = "\ufeff" if text.startswith("\ufeff") else ""
        text = text.removeprefix(self.mark)
        if odd := _ODD_BREAK.search(text):
            _refuse(text.count("\n", 0, odd.start()) + 1, f"got a line that ends in {odd[0]!a}")
        # Lines are moved whole; the line end that a last one lacks is taken away again.
        self.ended = text.endswith("\n")
        self.text = text if self.ended else text + ("\r\n" if "\r\n" in text else "\n")
        self.starts = [0, *(at.end() for at in re.finditer("\n", self.text))]
        self.root = yaml_text.parse(self.text)
        self.changes: list[tuple[int, int, str]] = []
        self.layouts: dict[Node, str] = {}
        self.joints: dict[Node, tuple[str, int | None]] = {}
        self.groups: dict[str, _Group] = {}
        top = self.inner(self.root).get("all")
        if top is None:
            raise InputError([Problem(None, "the inventory", 'has no key "all"', BY_HAND)])
        self.group(("all",), top)

    def group(self, path: tuple[str, ...], at: Pair) -> None:
        name = path[-1]
        if name in self.groups:
            self.refuse(at.key, f'the group "{shown(name)}" stands here a second time')
        parts = self.inner(at.value)
        group = self.groups[name] = _Group((*path, "hosts"), parts.get("hosts"))
        for pair in self.inner(group.hosts.value).values() if group.hosts else ():
            try:
                group.members.append((pair, hostrange.expand(pair.key.text)))
            except ValueError as error:
                self.refuse(pair.key, str(error))
        if "children" in parts:
            for child, pair in self.inner(parts["children"].value).items():
                self.group((*path, "children", child), pair)

    def inner(self, node: Node) -> dict[str, Pair]:
        """Return what groups and hosts are read from; refuse what may mean something else than it seems to."""
        if node.kind == "alias":
            self.refuse(node, f"got an alias (*{shown(node.text)})")
        if node.note[1] or not (node.kind == "mapping" or node.empty):
            self.refuse(node, f"got a {node.note[1] or node.kind}, expected a mapping")
        found: dict[str, Pair] = {}
        for pair in node.pairs:
            if pair.key.text == _MERGE or pair.key.kind != "scalar" or pair.key.tag != STR:
                self.refuse(pair.key, f"got a {'merge' if pair.key.text == _MERGE else 'key'} that is no plain name")
            if pair.key.text in found:
                self.refuse(pair.key, f'the key "{shown(pair.key.text)}" stands here a second time')
            found[pair.key.text] = pair
        return found

    def refuse(self, node: Node, what: str) -> NoReturn:
        _refuse(self.line(node.start) + 1, what)

    def path(self, group: str) -> tuple[str, ...]:
        """Return the way to a group's hosts, whether or not it is there yet."""
        if group in self.groups:
            path = self.groups[group].path
            if len(path) < 4 or not path[2].endswith("_workers"):
                raise InputError([Problem(None, group, f"is no group of workers, expected {_WORKERS} or one below it")])
            return path
        workers = ("all", "children", group if group.endswith("_workers") else _WORKERS)
        return (*workers, "hosts") if group == workers[-1] else (*workers, "children", group, "hosts")

    def below(self, path: tuple[str, ...]) -> set[str]:
        """Return the hosts of a group and of those below it."""
        groups = [group for group in self.groups.values() if group.path[: len(path)] == path]
        return {name for group in groups for _, expanded in group.members for name in expanded}

    def result(self) -> str:
        """Return the text with all changes made."""
        pieces, done = [], 0
        for start, end, new in sorted(self.changes, key=lambda change: change[:2]):
            if start < done:
                _refuse(self.line(start) + 1, "two changes would meet here")
            pieces += [self.text[done:start], new]
            done = end
        text = "".join((*pieces, self.text[done:]))
        return self.mark + (text if self.ended else re.sub(r"\r?\n\Z", "", text))

    def change(self, start: int, end: int, new: str) -> None:
        self.changes.append((start, end, new))

    # --- places ---

    def line(self, offset: int) -> int:
        return bisect.bisect_right(self.starts, offset) - 1

    def column(self, node: Node) -> int:
        return node.start - self.starts[self.line(node.start)]

    def on(self, line: int) -> str:
        """Return a line with its end; nothing before the first one and after the last one."""
        return self.text[self.starts[line] : self.starts[line + 1]] if 0 <= line < len(self.starts) - 1 else ""

    def blank(self, line: int) -> bool:
        return self.on(line).isspace()

    def comment(self, line: int) -> int | None:
        """Return the column of the comment that a line consists of."""
        text = self.on(line)
        return text.index("#") if text.lstrip().startswith("#") else None

    def line_end(self, line: int) -> str:
        return "\r\n" if self.on(line).endswith("\r\n") else "\n"

    def joint(self, pair: Pair) -> str | None:
        """Return what stands between a key and its value on the same line, such as `: `."""
        text = self.text[pair.key.end : pair.value.start]
        return text if pair.end == pair.value.end > pair.value.start and _JOINT.fullmatch(text) else None

    def last(self, mapping: Node, index: int) -> int:
        """Return the last line of a pair: comments that stand deeper than its key are part of it."""
        pair = mapping.pairs[index]
        last = line = self.line(pair.end - 1)
        while self.blank(line + 1) or self.comment(line + 1) is not None:
            line += 1
            if (self.comment(line) or 0) > self.column(pair.key):
                last = line
        return last

    def first(self, mapping: Node, index: int, floor: int, also: Collection[str] = ()) -> int:
        """Return the first line of a pair with the comments above it that are its own, below the line `floor`.

        With `also`, those that name one of these hosts are its own in any case.
        """
        key = mapping.pairs[index].key
        line = first = self.line(key.start)
        while first - 1 > floor and self.comment(first - 1) == self.column(key):
            first -= 1
            if out := _OUT.match(self.on(first).strip()):
                first += 1
                while first < line and len(_inside(self.on(first))) > len(out[1]):
                    first += 1
                break
        comments = [self.on(number).strip() for number in range(first, line)]
        heads = comments and self.heads(mapping, index, first, floor, comments)
        return line if heads and not _mentions(comments, also) else first

    def heads(self, mapping: Node, index: int, first: int, floor: int, comments: Sequence[str]) -> bool:
        """Tell whether the comments above a pair are about those after it too.

        They are where they look like a heading, or begin one of the paragraphs in which the hosts stand.
        """
        pairs = mapping.pairs
        names = [pairs[index].key.text]
        with contextlib.suppress(ValueError):  # the key of a group may be no host
            names += hostrange.expand(names[0])
        if _mentions(comments, names):
            return False
        if any(_RULED.match(comment) for comment in comments):
            return True
        inside = range(self.line(pairs[0].key.start), self.line(pairs[-1].end - 1))
        begins = self.blank(first - 1) or (first - 1 == floor and any(map(self.blank, inside)))
        more = index + 1 < len(pairs) and self.last(mapping, index) + 1 == self.line(pairs[index + 1].key.start)
        return begins and more

    def layout(self, mapping: Node) -> str:
        """Return how a mapping that is not empty is written: `block`, `lines` (in braces, one on each) or `inline`."""
        if mapping not in self.layouts:
            self.layouts[mapping] = self._layout(mapping)
        return self.layouts[mapping]

    def _layout(self, mapping: Node) -> str:
        pairs = mapping.pairs
        alone = [not self.text[self.starts[self.line(pair.key.start)] : pair.key.start].strip(" ") for pair in pairs]
        if not mapping.flow:
            if not all(alone):
                self.refuse(mapping, "got a key that does not stand at the beginning of its line")
            return "block"
        close = mapping.end - 1
        alone.append(not self.text[self.starts[self.line(close)] : close].strip(" "))
        ends = [re.compile(r"[ \t]*,?[ \t]*(#.*)?\r?\n").match(self.text, pair.end) for pair in pairs]
        if all(alone) and all(ends) and self.line(mapping.start) < self.line(pairs[0].key.start):
            return "lines"
        gaps = zip((mapping.start, *(pair.end for pair in pairs)), (*(p.key.start for p in pairs), close), strict=True)
        if any("#" in self.text[start:end] for start, end in gaps):
            self.refuse(mapping, "got comments between the braces")
        return "inline"

    def require_plain(self, mapping: Node) -> None:
        """Refuse to touch a mapping of hosts in which something stands for something else."""
        for node in mapping.walk():
            if node.kind == "alias" or node.note != (None, None) or (node.kind == "scalar" and node.text == _MERGE):
                self.refuse(node, "got an anchor, an alias, a tag or a merge key among the hosts")

    # --- adding ---

    def add(self, path: tuple[str, ...], hosts: dict[str, str | None]) -> None:
        """Add hosts to the mapping at `path`; what there is not of the path is made."""
        way: list[Pair] = []
        node = self.root
        while len(way) < len(path) and path[len(way)] in (inner := self.inner(node)):
            way.append(inner[path[len(way)]])
            node = way[-1].value
        rest = path[len(way) :]
        if node.note != (None, None):
            self.refuse(node, "got an anchor")
        if rest or node.empty:
            hosts = {name: hosts[name] for name in sorted(hosts, key=_natural)}
            if node.empty:
                self.fill(way[-2].value if len(way) > 1 else self.root, way[-1], rest, hosts)
            else:
                self.open(node, rest, hosts)
            return
        self.require_plain(node)
        known = [_natural(hostrange.expand(pair.key.text)[0]) for pair in node.pairs]
        ordered = known == sorted(known)
        places: dict[int, list[str]] = {}
        for name in sorted(hosts, key=_natural) if ordered else hosts:
            after = bisect.bisect(known, _natural(name)) if ordered else len(known)
            places.setdefault(after, []).append(name)
        for index, names in places.items():
            near = node.pairs[min(index, len(known) - 1)] if index == 0 else node.pairs[index - 1]
            new = _New(self, node, near.key.start)
            self.insert(node, index, [new.host(name, hosts[name], node.flow) for name in names], names)

    def insert(self, mapping: Node, index: int, new: Sequence[str], names: Collection[str] = ()) -> None:
        """Put pairs into a mapping that has some; `names` are those of the new hosts."""
        layout, pairs = self.layout(mapping), mapping.pairs
        if layout == "inline":
            comma = next((gap for gap in self.gaps(mapping, index) if re.fullmatch(r",[ \t]*", gap)), ", ")
            at = pairs[index - 1].end if index else pairs[0].key.start
            self.change(at, at, "".join(comma + text if index else text + comma for text in new))
            return
        if index:
            line = self.last(mapping, index - 1) + 1
            near = line - 1
        else:
            near = self.line(pairs[0].key.start)
            line = self.first(mapping, 0, self.line(self.before(mapping)), names)
        commas = [""] * len(new)
        if layout == "lines":
            commas = [","] * len(new)
            if index == len(pairs) and not re.compile(r"[ \t]*,").match(self.text, pairs[-1].end):
                self.change(pairs[-1].end, pairs[-1].end, ",")
                commas[-1] = ""
        indent = " " * self.column(pairs[0].key)
        lines = [line for text, comma in zip(new, commas, strict=True) for line in (text + comma).split("\n")]
        end = self.line_end(near)
        self.change(self.starts[line], self.starts[line], "".join(f"{indent}{text}{end}" for text in lines))

    def gaps(self, mapping: Node, index: int) -> Iterator[str]:
        """Yield what stands between the pairs of a mapping, what is at `index` first."""
        pairs = mapping.pairs
        between = [self.text[one.end : two.key.start] for one, two in itertools.pairwise(pairs)]
        yield from between[max(index - 1, 0) : index + 1]
        yield from between

    def before(self, mapping: Node) -> int:
        """Return where that ends which stands before a mapping's first pair: its own key, or its brace."""
        if mapping.flow:
            return mapping.start
        return max((node.end - 1 for node in self.root.walk() if node.end <= mapping.start), default=0)

    def open(self, mapping: Node, rest: tuple[str, ...], hosts: Mapping[str, str | None]) -> None:
        """Put the first key of `rest`, with all that is to be below it, into a mapping that does not have it."""
        key, *more = rest
        keys = [pair.key.text for pair in mapping.pairs]
        index = len(keys)
        head = f"{key.removesuffix('_workers')}_head"
        if key == "hosts" and "children" in keys:
            index = keys.index("children")
        elif key.endswith("_workers") and head in keys:
            index = keys.index(head) + 1
        new = _New(self, None, mapping.pairs[index - 1].end if index else mapping.start)
        written = new.quoted(key)
        if mapping.flow or (more == ["hosts"] and new.siblings_flow(mapping)):
            text = written + new.joint_in(mapping, written) + new.braces(more, hosts)
        else:
            text = "\n".join(new.lines(written + ":", more, hosts))
        self.insert(mapping, index, [text])

    def fill(self, parent: Node, pair: Pair, rest: tuple[str, ...], hosts: Mapping[str, str | None]) -> None:
        """Give a key that has nothing, or `{}`, what is to be below it."""
        value, new = pair.value, _New(self, None, pair.key.start)
        written = self.text[value.start : value.end]
        if self.line(value.end) != self.line(pair.key.start) or "#" in written:
            self.refuse(value, "got an empty mapping on several lines")
        colon = _COLON.match(self.text, pair.key.end)
        if parent.flow or (rest == ("hosts",) and new.siblings_flow(parent)):
            at = (value.start, value.end) if written else (pair.end, pair.end)
            before = "" if written or self.text[at[0] - 1] == " " else " " if colon else ": "
            self.change(*at, before + new.braces(rest, hosts))
            return
        if self.layout(parent) != "block" or not colon:
            self.refuse(value, "got no mapping")
        start = self.starts[self.line(pair.key.start)]
        first, *below = new.lines(self.text[start : colon.end()].strip(), rest, hosts)
        indent, line = " " * self.column(pair.key), self.line(pair.key.start)
        self.change(start, max(value.end, colon.end()) if written else colon.end(), indent + first)
        end = self.line_end(line)
        self.change(self.starts[line + 1], self.starts[line + 1], "".join(f"{indent}{text}{end}" for text in below))

    # --- removing ---

    def cut(self, group: _Group, names: frozenset[str]) -> None:
        """Take hosts out of a group's own mapping."""
        hosts = group.hosts
        if hosts is None:
            return
        mapping = hosts.value
        self.require_plain(mapping)
        if mapping.note != (None, None):
            self.refuse(mapping, "got an anchor")
        rest = [hostrange.without(pair.key.text, names) for pair, _ in group.members]
        for (pair, expanded), patterns in zip(group.members, rest, strict=True):
            if patterns and not names.isdisjoint(expanded):
                for node in pair.value.walk():
                    if node.kind == "scalar" and _PER_POSITION.search(node.text):
                        self.refuse(pair.key, "this range has a variable that depends on the position in it")
        layout = self.layout(mapping)
        inside = self.text[mapping.start : mapping.end]
        if mapping.flow and not any(rest) and (layout == "inline" or "#" not in inside):
            self.change(mapping.start, mapping.end, "{}")
        elif layout == "inline":
            self.cut_inline(mapping, rest)
        else:
            self.cut_lines(hosts, rest, layout)

    def key(self, pair: Pair, pattern: str) -> str:
        quotes = pair.key.quotes
        return _written(pattern, quotes) if quotes or "[" not in pattern else pattern

    def cut_inline(self, mapping: Node, rest: Sequence[tuple[str, ...]]) -> None:
        pairs, index = mapping.pairs, 0
        while index < len(pairs):
            pair, begin = pairs[index], index
            if rest[index]:
                if rest[index] != (pair.key.text,):
                    tail = self.text[pair.key.end : pair.end]
                    comma = next((gap for gap in self.gaps(mapping, index) if re.fullmatch(r",[ \t]*", gap)), ", ")
                    new = comma.join(self.key(pair, pattern) + tail for pattern in rest[index])
                    self.change(pair.key.start, pair.end, new)
                index += 1
                continue
            if not any(rest[index:]):
                self.change(pairs[begin - 1].end, pairs[-1].end, "")
                return
            line = self.line(pair.key.start)
            while not rest[index] and self.line(pairs[index].key.start) == line:
                index += 1
            # One comma goes with them: that before them, unless they begin a line.
            if begin and self.line(pairs[begin - 1].end) == line:
                self.change(pairs[begin - 1].end, pairs[index - 1].end, "")
            else:
                self.change(pair.key.start, pairs[index].key.start, "")

    def cut_lines(self, hosts: Pair, rest: Sequence[tuple[str, ...]], layout: str) -> None:
        mapping, pairs = hosts.value, hosts.value.pairs
        gone: set[int] = set()
        floor = top = self.line(mapping.start if mapping.flow else hosts.key.end)
        kept = [index for index, patterns in enumerate(rest) if patterns]
        comma = re.compile(r"[ \t]*,").match(self.text, pairs[-1].end)
        if layout == "lines" and not comma and kept and kept[-1] < len(pairs) - 1:
            left = re.compile(r"[ \t]*,").match(self.text, pairs[kept[-1]].end)
            if left:
                self.change(pairs[kept[-1]].end, left.end(), "")
        for index, (pair, patterns) in enumerate(zip(pairs, rest, strict=True)):
            last = self.last(mapping, index)
            if not patterns:
                gone.update(range(self.first(mapping, index, floor), last + 1))
            elif patterns != (pair.key.text,):
                self.split(pair, patterns, last, layout == "lines")
            floor = last
        gone.update(self.loose_blanks(gone, top, self.line(pairs[-1].end - 1), bool(kept)))
        for line in gone:
            self.change(self.starts[line], self.starts[line + 1], "")
        if not kept and not mapping.flow and (colon := _COLON.match(self.text, hosts.key.end)):
            self.change(colon.end(), colon.end(), " {}")

    def split(self, pair: Pair, patterns: Sequence[str], last: int, commas: bool) -> None:
        """Write a range as several, each with all that the one had."""
        first, *more = patterns
        start, after = self.starts[self.line(pair.key.start)], self.starts[last + 1]
        tail = self.text[pair.key.end : after]
        if commas and more and not re.compile(r"[ \t]*,").match(self.text, pair.end):
            self.change(pair.end, pair.end, ",")
            at = pair.end - pair.key.end
            tails = [f"{tail[:at]},{tail[at:]}"] * (len(more) - 1) + [tail]
        else:
            tails = [tail] * len(more)
        self.change(pair.key.start, pair.key.end, self.key(pair, first))
        indent = self.text[start : pair.key.start]
        copies = [indent + self.key(pair, text) + rest for text, rest in zip(more, tails, strict=True)]
        self.change(after, after, "".join(copies))

    def loose_blanks(self, gone: Collection[int], top: int, last: int, kept: bool) -> set[int]:
        """Return the blank lines that would stand twice, or before and after nothing, once these lines are gone."""
        if not kept:
            return {line for line in range(top + 1, last) if self.blank(line)}
        loose: set[int] = set()
        for line in sorted(gone):
            before, after = line - 1, line + 1
            if before in gone:
                continue
            while after in gone:
                after += 1
            if self.blank(after) and (self.blank(before) or before == top):
                while self.blank(after):
                    loose.add(after)
                    after += 1
            elif after > last:
                while self.blank(before):
                    loose.add(before)
                    before -= 1
        return loose


class _New:
    """Writes what is new like what is near: the hosts of the same mapping, else those of others."""

    def __init__(self, draft: _Draft, own: Node | None, near: int) -> None:
        self.draft = draft
        self.own = own
        others = [group.hosts for group in draft.groups.values() if group.hosts and group.hosts.value.pairs]
        # What stands before is nearer than what comes after.
        others.sort(key=lambda pair: (pair.key.start > near, abs(pair.key.start - near)))
        self.other = others[0] if others else None
        self.models = sorted(own.pairs if own else (), key=lambda pair: abs(pair.key.start - near))
        self.models += [pair for hosts in others if hosts.value is not own for pair in hosts.value.pairs]
        top = draft.inner(draft.root)["all"]
        self.quotes = top.key.quotes
        like = next((pair.key for pair in self.models if is_plain(pair.key.text)), top.key)
        self.host_quotes = like.quotes
        self.step = 2
        if not top.value.flow and top.value.pairs:
            self.step = draft.column(top.value.pairs[0].key) - draft.column(top.key)

    def quoted(self, key: str) -> str:
        return _written(key, self.quotes)

    def siblings_flow(self, mapping: Node) -> bool:
        """Tell whether the mappings that a mapping holds are in braces, by the last one."""
        inner = [pair.value for pair in mapping.pairs if pair.value.pairs]
        return bool(inner) and inner[-1].flow

    def joint_in(self, mapping: Node, key: str) -> str:
        """Return what goes between a new key and its value, in line with the other values where these are."""
        if mapping not in self.draft.joints:
            self.draft.joints[mapping] = self.last_joint(mapping)
        joint, column = self.draft.joints[mapping]
        if column is not None:
            return ":" + " " * max(1, column - len(key) - 1)
        # Without a blank it is a value only after a quoted key.
        return ":" if joint == ":" and key[0] in "'\"" else ": "

    def last_joint(self, mapping: Node) -> tuple[str, int | None]:
        """Return what stands between the last key and its value, and how far from their keys all values stand."""
        draft = self.draft
        joints = [(pair, joint) for pair in mapping.pairs if (joint := draft.joint(pair)) is not None]
        if not joints:
            return ": ", None
        columns = {draft.column(pair.value) - draft.column(pair.key) for pair, _ in joints}
        lined_up = len(columns) == 1 and any(len(joint) > 2 for _, joint in joints)
        return joints[-1][1], columns.pop() if lined_up and draft.layout(mapping) != "inline" else None

    def host(self, name: str, address: str | None, flow: bool) -> str:
        """Return a host as it is to stand in a mapping; lines below its first are indented from it."""
        draft = self.draft
        key = _written(name, self.host_quotes)
        joint = self.joint_in(self.own, key) if self.own else ": "
        if address is None:
            bare = next((pair for pair in self.models if pair.value.empty), None)
            if bare is None:
                return f"{key}{joint}{{}}"
            value = draft.text[bare.value.start : bare.value.end]
            if not value and not flow:
                return f"{key}:"
            return f"{key}{joint}{value if value and _is_one_line(value) else '{}'}"
        model = self.model(flow)
        if model is None:
            return f"{key}{joint}{{{_written(_ADDRESS, self.quotes)}: {_written(address, self.quotes)}}}"
        pair, inner = model
        inner_joint = draft.joint(inner) or ": "
        variable = _written(_ADDRESS, inner.key.quotes)
        like = inner.key.text == _ADDRESS and is_plain(inner.value.text)
        given = _written(address, inner.value.quotes if like else None)
        if not pair.value.flow:
            step = draft.column(pair.value.pairs[0].key) - draft.column(pair.key)
            return f"{key}:\n{' ' * step}{variable}: {given}"
        if inner_joint == ":" and variable == _ADDRESS:
            inner_joint = ": "
        pads = [
            draft.text[pair.value.start + 1 : pair.value.pairs[0].key.start],
            draft.text[pair.value.pairs[-1].end : pair.value.end - 1],
        ]
        left, right = pads if all(re.fullmatch(" *", pad) for pad in pads) else ("", "")
        return f"{key}{joint}{{{left}{variable}{inner_joint}{given}{right}}}"

    def model(self, flow: bool) -> tuple[Pair, Pair] | None:
        """Return a host to take after and its address, or another variable of it; in braces one that is in some."""
        held = [pair for pair in self.models if pair.value.pairs and (pair.value.flow or not flow)]
        near = [pair for pair in held if self.own and self.own.start <= pair.key.start < self.own.end] or held
        for pair in near:
            for inner in pair.value.pairs:
                if inner.key.text == _ADDRESS and inner.value.kind == "scalar":
                    return pair, inner
        return (near[0], near[0].value.pairs[0]) if near else None

    def braces(self, keys: Sequence[str], hosts: Mapping[str, str | None]) -> str:
        """Return the value that has the hosts below these keys, on one line."""
        text = "{" + ", ".join(self.host(name, address, True) for name, address in hosts.items()) + "}"
        for key in reversed(keys):
            text = f"{{{self.quoted(key)}: {text}}}"
        return text

    def lines(self, first: str, keys: Sequence[str], hosts: Mapping[str, str | None]) -> list[str]:
        """Return the lines that begin with `first`, a key and its colon, and have the hosts below further keys."""
        lines, indent = [first], ""
        for key in keys:
            indent += " " * self.step
            lines.append(f"{indent}{self.quoted(key)}:")
        other = self.other
        if other and other.value.flow:
            lines[-1] += " " + self.braces((), hosts)
            return lines
        step = self.draft.column(other.value.pairs[0].key) - self.draft.column(other.key) if other else self.step
        indent += " " * step
        for name, address in hosts.items():
            lines += [indent + line for line in self.host(name, address, False).split("\n")]
        return lines


def _refuse(line: int, what: str) -> NoReturn:
    raise InputError([Problem(None, f"the inventory, line {line}", what, BY_HAND)])


def _mentions(comments: Sequence[str], names: Collection[str]) -> bool:
    words = {word for comment in comments for word in re.split(r"[^a-z0-9\[\]:-]+|:$|:\s", comment)}
    return not words.isdisjoint(names)


def _inside(comment: str) -> str:
    """Return the blanks with which a comment begins."""
    text = comment.strip().lstrip("#")
    return text[: len(text) - len(text.lstrip())]


def _is_one_line(text: str) -> bool:
    return "\n" not in text and "#" not in text


def _written(text: str, quotes: str | None) -> str:
    """Return `text` in these quotes, and in some if it would else be read as anything but this text."""
    quotes = quotes if quotes in ("'", '"') else "" if is_plain(text) else '"'
    return f"{quotes}{text}{quotes}"


# --- judging what came out ------------------------------------------------------------------------------------------

# A group or its children: name, what the parser knows of key and value besides, and what is below; "hosts" for hosts.
_Skeleton = tuple[tuple[str, Any, Any], ...]


def _skeleton(draft: _Draft, node: Node, level: str = "root") -> _Skeleton:
    """Return everything in the inventory but its hosts."""
    below = {"root": {"all": "group"}, "group": {"hosts": "hosts", "children": "children"}}.get(level, {})
    pairs = []
    for pair in node.pairs:
        inner = "group" if level == "children" else below.get(pair.key.text)
        value: Any = "hosts"
        if inner != "hosts":
            value = _skeleton(draft, pair.value, inner) if inner else pair.value.plain()
        pairs.append((pair.key.text, (pair.key.plain(), pair.value.note if inner else None), value))
    return tuple(pairs)


def _members(draft: _Draft) -> dict[tuple[str, ...], list[tuple[str, Any]]]:
    """Return the hosts of each group that has any, in order, with their variables."""
    return {
        group.path: [
            (name, None if pair.value.empty else pair.value.plain()) for pair, names in group.members for name in names
        ]
        for group in draft.groups.values()
        if group.members
    }


def _removed(old: _Draft, new: _Draft, names: Collection[str]) -> bool:
    expected = {
        path: left
        for path, members in _members(old).items()
        if (left := [member for member in members if member[0] not in names])
    }
    return _members(new) == expected and _skeleton(new, new.root) == _skeleton(old, old.root)


def _added(old: _Draft, new: _Draft, path: tuple[str, ...], hosts: Mapping[str, str | None]) -> bool:
    before, after = _members(old), _members(new)
    mine = after.pop(path, [])
    given = {
        name: None if address is None else _plain_mapping({_ADDRESS: (None, None, (STR, address))})
        for name, address in hosts.items()
    }
    asked = [member for member in mine if member[0] in hosts]
    others = [member for member in mine if member[0] not in hosts]
    if len(asked) != len(hosts) or dict(asked) != given or others != before.pop(path, []) or after != before:
        return False
    skeleton = _skeleton(old, old.root)
    depth = 0
    level: Any = skeleton
    while depth < len(path) and (below := [value for name, _, value in level if name == path[depth]]):
        level, depth = below[0], depth + 1
    if depth == len(path):
        return _skeleton(new, new.root) == skeleton
    value: Any = "hosts"
    for name in reversed(path[depth + 1 :]):
        value = ((name, ((None, None, (STR, name)), (None, None)), value),)
    made = (path[depth], ((None, None, (STR, path[depth])), (None, None)), value)
    return _without(_skeleton(new, new.root), path[: depth + 1], made) == skeleton


def _without(level: _Skeleton, path: tuple[str, ...], made: tuple[str, Any, Any]) -> _Skeleton:
    if len(path) == 1:
        return tuple(entry for entry in level if entry != made)
    return tuple(
        (name, note, _without(value, path[1:], made) if name == path[0] else value) for name, note, value in level
    )


def _plain_mapping(values: Mapping[str, Any]) -> Any:
    return ("mapping", (None, None), [], [((None, None, (STR, key)), value) for key, value in values.items()])


def _require(right: bool) -> None:
    if not right:
        raise InputError([Problem(None, "the inventory", "cannot be edited safely", BY_HAND)])
