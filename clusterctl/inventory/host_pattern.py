"""Host patterns of plays: group names joined by `:` or `,`; `&name` must match as well, `!name` must not match.

Every reader of a play's `hosts` uses this module. Our playbooks use no wildcards, ranges or regular expressions there.
"""

import re
from collections.abc import Collection, Mapping, Sequence

Pattern = str | Sequence[str]


def parse(pattern: Pattern) -> list[tuple[str, str]]:
    """Return the operator ("", "&" or "!") and the name of each part, in order."""
    text = pattern if isinstance(pattern, str) else ":".join(pattern)
    parts = (part.strip() for part in re.split("[:,]", text))
    return [(part[0], part[1:]) if part[0] in "&!" else ("", part) for part in parts if part]


def select(pattern: Pattern, members: Mapping[str, Collection[str]]) -> set[str]:
    """Return the hosts that a pattern matches; `members` are the hosts of each group."""
    parts = parse(pattern)
    hosts = {host for operator, name in parts if not operator for host in members.get(name, ())}
    for operator, name in parts:
        if operator == "&":
            hosts &= set(members.get(name, ()))
        elif operator == "!":
            hosts -= set(members.get(name, ()))
    return hosts


def is_decided_by_run(pattern: Pattern) -> bool:
    """Return whether a pattern names a group that the run makes. They begin with `_`, unlike those of inventories."""
    return any(name.startswith("_") for _, name in parse(pattern))


def matches(pattern: Pattern, groups: Collection[str]) -> bool:
    """Return whether a pattern matches a host that is in these groups."""
    return bool(select(pattern, dict.fromkeys(groups, ("host",))))
