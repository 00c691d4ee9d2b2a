"""Read an inventory and its group_vars/ and host_vars/ into drafts of groups and hosts, with positions.

This module checks each name and value. consistency.py checks all of them together.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.inventory import document, hostrange
from clusterctl.inventory.document import Key, Node, shown
from clusterctl.inventory.schedulers import LOGIN
from clusterctl.inventory.schema import Schema
from clusterctl.util import files
from clusterctl.util.errors import Position, Problem
from clusterctl.util.text import did_you_mean

MAX_PROBLEMS = 100
MAX_MEMBERSHIPS = 10 * hostrange.MAX_HOSTS

_SUFFIXES = (".yml", ".yaml")
_BAD_SUFFIX = "bad file name, expected one that ends in .yml or .yaml"


def listing(directory: Path) -> list[Path]:
    """Return the entries of a directory that Ansible reads: no hidden files and editors' copies. Raises UnfitError."""
    entries = files.listing(directory)
    return [entry for entry in entries if not entry.name.startswith(".") and not entry.name.endswith("~")]


class TooMuchError(Exception):
    """There are too many entries or problems to continue; they are in `Reading.problems`."""


@dataclass
class GroupDraft:
    """A group in the files; `inline` and `files` are its variables from the inventory and from group_vars/."""

    name: str
    lineage: tuple[str, ...] = ()
    """The groups of a member: this group and its parents, without `all`."""
    included: list[str] = field(default_factory=list)
    """The groups that include this one as members."""
    inline: dict[str, Node] = field(default_factory=dict)
    files: dict[str, Node] = field(default_factory=dict)


@dataclass
class HostDraft:
    """A host in the files; `merged` has all its variables, including those of groups."""

    name: str
    position: Position
    groups: set[str] = field(default_factory=set)
    inline: dict[str, Node] = field(default_factory=dict)
    files: dict[str, Node] = field(default_factory=dict)
    merged: dict[str, Node] = field(default_factory=dict)

    def get(self, variable: str, default: Any) -> Any:
        """Return a scalar variable's value."""
        return self.merged[variable].value if variable in self.merged else default

    def place(self, variable: str) -> Position:
        """Return the position of a variable, or of the host."""
        return self.merged[variable].position if variable in self.merged else self.position


_SCOPES: Mapping[str, tuple[type, str]] = {
    "ansible_host": (HostDraft, "on a host"),
    "cluster_host_key": (HostDraft, "on a host"),
    "cluster_address": (HostDraft, "on a host"),
    "cluster_name": (GroupDraft, "in all.vars"),
}
"""Variables that are valid in one place only."""


class Reading:
    """One pass over the files; collects groups, hosts and problems."""

    def __init__(self, path: Path, known: Schema) -> None:
        self.path = path
        self.known = known
        self.groups: dict[str, GroupDraft] = {"all": GroupDraft("all")}
        self.hosts: dict[str, HostDraft] = {}
        self.top = Position(path, 1, 1)
        self.named: list[tuple[Key, GroupDraft, str]] = []
        """Groups that another group includes as members: their names, that group, and the key for messages."""
        self.memberships = 0
        self.problems: list[Problem] = []
        self.understood = True
        """Whether all groups and hosts were read; if not, missing values cannot be checked."""

    def report(self, problem: Problem) -> None:
        """Record a problem, but only the first one of each key at each position."""
        if any(problem.position == known.position and problem.key == known.key for known in self.problems):
            return
        if len(self.problems) >= MAX_PROBLEMS:
            raise TooMuchError
        self.problems.append(problem)

    def refuse(self, at: Position, key: str, message: str, hint: str = "") -> None:
        self.report(Problem(at, key, message, hint))

    def sorted(self) -> list[Problem]:
        """Return the inventory's own problems first, then the other files', each by line."""

        def place(problem: Problem) -> tuple[bool, str, int, int]:
            at = problem.position
            if at is None:
                return (problem.key != str(self.path), problem.key, 0, 0)
            return (at.path != self.path, str(at.path), at.line, at.column)

        return sorted(self.problems, key=place)

    def misunderstood(self, at: Position, key: str, message: str, hint: str = "") -> None:
        self.understood = False
        self.refuse(at, key, message, hint)

    # --- files ---

    def read(self) -> None:
        """Read all files. Raises TooMuchError."""
        root = document.read(self.path, self.report)
        if self.path.suffix not in _SUFFIXES:  # Ansible would ignore the file
            self.report(Problem(None, str(self.path), _BAD_SUFFIX))
        self.understood = not self.problems
        if root is None:
            return
        for key, node in self.entries(root, ""):
            if key == "all":
                self.group(self.groups["all"], node, "all")
            elif key == "plugin":
                self.misunderstood(key.position, key, "is an inventory plugin, expected the hosts under all")
            else:
                below = key in self.known.groups
                hint = f"move it to all.children.{key}" if below else did_you_mean(key, ("all",))
                self.misunderstood(key.position, shown(key), f'unknown key "{shown(key)}", expected all', hint)
        self.include()
        self.vars_directory("group_vars", "group", self.groups)
        self.vars_directory("host_vars", "host", self.hosts)
        for host in self.hosts.values():
            host.merged = self.merge(host)
        self.top = root.position

    def vars_directory(self, name: str, kind: str, owners: Mapping[str, "GroupDraft | HostDraft"]) -> None:
        """Read NAME.yml, NAME.yaml or the files of NAME/ for each group or host; refuse files without an owner."""
        seen: dict[str, Path] = {}
        for entry in self.listing(self.path.parent / name):
            directory = os.path.isdir(entry)  # noqa: PTH112 - is_dir raises if it has no permission
            owner = entry.name if directory else entry.stem
            message, hint = "", ""
            if not directory and entry.suffix not in _SUFFIXES:
                message = _BAD_SUFFIX
            elif owner not in owners:
                message, hint = f'no {kind} "{shown(owner)}"', did_you_mean(owner, owners)
            elif owner in seen:
                message = f"a second file for {owner}, besides {seen[owner].name}"
            if message:
                self.report(Problem(None, str(entry), message, hint))
                continue
            seen[owner] = entry
            for file in self.listing(entry) if directory else (entry,):
                self.vars_file(file, owners[owner])

    def listing(self, directory: Path) -> list[Path]:
        """Return the entries of a directory; report a problem if it cannot be read."""
        try:
            return listing(directory)
        except files.UnfitError as error:
            self.report(Problem(None, str(directory), str(error)))
            return []

    def vars_file(self, file: Path, owner: "GroupDraft | HostDraft") -> None:
        if file.suffix not in _SUFFIXES:
            self.report(Problem(None, str(file), _BAD_SUFFIX))
            return
        root = document.read(file, self.report)
        if root is not None:
            self.variables(root, "", owner, owner.files)

    # --- groups, hosts, variables ---

    def entries(self, node: Node, key: str) -> Iterator[tuple[Key, Node]]:
        """Yield the entries of a mapping; a missing value is an empty mapping."""
        if isinstance(node.value, dict):
            yield from node.value.items()
        elif node.value is not None:
            hint = "write each host on its own line, followed by a colon" if key.endswith("hosts") else ""
            self.misunderstood(node.position, key, f"wrong type, got {node.describe()}, expected a mapping", hint)

    def group(self, group: GroupDraft, node: Node, key: str) -> None:
        for name, value in self.entries(node, key):
            path = f"{key}.{shown(name)}"
            if name == "hosts":
                self.group_hosts(group, value, path)
            elif name == "vars":
                self.variables(value, path, group, group.inline)
            elif name == "children":
                self.children(group, value, path)
            else:
                expected = ("hosts", "vars", "children")
                hint = did_you_mean(name, expected) or ("move it below children" if name in self.known.groups else "")
                message = f'unknown key "{shown(name)}", expected {", ".join(expected)}'
                self.misunderstood(name.position, path, message, hint)

    def children(self, parent: GroupDraft, node: Node, key: str) -> None:
        for name, value in self.entries(node, key):
            path = f"{key}.{shown(name)}"
            if not value.value and self.is_task(parent):
                self.named.append((name, parent, path))
            elif refusal := self.refusal(name, parent):
                self.misunderstood(name.position, path, *refusal)
            else:
                self.groups[name] = GroupDraft(name, (*parent.lineage, str(name)))
                self.group(self.groups[name], value, path)

    def is_task(self, group: GroupDraft) -> bool:
        """Return whether a group adds a role besides the scheduler's to its hosts."""
        return len(group.lineage) == 1 and not group.name.endswith(("_head", "_workers"))

    def has_members(self, group: GroupDraft) -> bool:
        """Return whether another group can include a group: one of a scheduler, below such a one, or login nodes."""
        return bool(group.lineage) and (group.name == LOGIN or not self.is_task(group))

    def include(self) -> None:
        """Add the hosts of included groups to the groups that include them."""
        for name, parent, path in self.named:
            group = self.groups.get(name)
            if group is None or not self.has_members(group):
                possible = [other for other, draft in self.groups.items() if self.has_members(draft)]
                what = f'"{shown(name)}" as members of {parent.name}, expected {", ".join(possible) or "a scheduler"}'
                self.misunderstood(name.position, path, what, did_you_mean(name, possible))
                continue
            group.included += parent.lineage
            for host in self.hosts.values():
                if group.name in host.groups:
                    host.groups.update(parent.lineage)

    def depth(self, name: str) -> int:
        """Return Ansible's depth of a group; variables of a deeper group have precedence."""
        group = self.groups[name]
        return 1 + max(map(self.depth, (*group.lineage[-2:-1], *group.included)), default=0)

    def refusal(self, name: str, parent: GroupDraft) -> tuple[str, str] | None:
        """Return why `name` is not valid here: roles' groups are below `all`, other groups below the workers."""
        known = self.known.groups
        if name in self.groups:
            return f'the group "{shown(name)}" a second time', "define a group once"
        if not parent.lineage:
            near = did_you_mean(name, known) or "known groups: " + ", ".join(known)
            return None if name in known else (f'unknown group "{shown(name)}"', near)
        if name in known:
            return f'"{name}" inside another group, expected it in all.children', "list its hosts there"
        if not parent.lineage[0].endswith("_workers"):
            return "a sub-group, which only workers can have", "list the hosts"
        if name == "ungrouped":
            return "a group name reserved by Ansible, expected another name", ""
        if not re.fullmatch("[a-z][a-z0-9_]{0,62}", name):
            expected = "a lower-case letter, then letters, digits or underscores"
            return f'bad group name, got "{shown(name)}", expected {expected}', ""
        return None

    def group_hosts(self, group: GroupDraft, node: Node, key: str) -> None:
        listed: set[str] = set()
        for pattern, value in self.entries(node, key):
            path = f"{key}.{shown(pattern)}"
            draft = HostDraft(pattern, pattern.position)
            self.variables(value, path, draft, draft.inline)
            try:
                names = hostrange.expand(pattern)
            except ValueError as error:
                self.misunderstood(pattern.position, path, str(error), hostrange.hint(pattern))
                continue
            self.memberships += len(names)
            if len(names) + len(self.hosts) > hostrange.MAX_HOSTS or self.memberships > MAX_MEMBERSHIPS:
                self.misunderstood(pattern.position, path, f"too many hosts, expected at most {hostrange.MAX_HOSTS}")
                raise TooMuchError
            if again := sorted(listed.intersection(names)):
                self.misunderstood(pattern.position, path, f'the host "{again[0]}" a second time in {group.name}')
            listed.update(names)
            for name in names:
                host = self.hosts.setdefault(name, HostDraft(name, pattern.position))
                host.groups.update(group.lineage)
                for variable, given in draft.inline.items():
                    first = host.inline.setdefault(variable, given)
                    if first.plain() != given.plain():
                        self.twice(given, f"{path}.{variable}", first)

    def variables(self, node: Node, key: str, owner: "GroupDraft | HostDraft", values: dict[str, Node]) -> None:
        for name, value in self.entries(node, key):
            path = f"{key}.{shown(name)}" if key else shown(name)
            self.known.check(name, value, path, name.position, self.report)
            scope, expected = _SCOPES.get(name, (object, ""))
            if not isinstance(owner, scope) or (scope is GroupDraft and owner.name != "all"):
                self.refuse(name.position, path, f"is in the wrong place, expected it {expected}")
            if first := owner.inline.get(name) or values.get(name):
                self.twice(value, path, first)
            values[str(name)] = value

    def twice(self, node: Node, key: str, first: Node) -> None:
        self.refuse(node.position, key, f"is set a second time, first at {first.position}", "keep only one of them")

    def merge(self, host: HostDraft) -> dict[str, Node]:
        own = [self.groups[name] for name in host.groups]
        groups = [self.groups["all"], *sorted(own, key=lambda group: (self.depth(group.name), group.name))]
        merged: dict[str, Node] = {}
        for values in (*(group.inline for group in groups), *(group.files for group in groups)):
            merged |= values
        return merged | host.inline | host.files
