"""Expand the ranges of host names in an inventory: `gpu[01:04]`, `rack[a:c]-[1:9:2]`."""

import itertools
import re
from collections.abc import Collection, Sequence

from clusterctl.inventory import addresses, rules
from clusterctl.inventory.document import shown

MAX_HOSTS = 5000

_RESERVED = ("all", "localhost", "ungrouped", "default")  # special for Ansible or in slurm.conf
_RANGE = re.compile(r"\[([0-9]{1,6}|[a-z]):([0-9]{1,6}|[a-z])(?::([0-9]{1,6}))?\]")


def expand(pattern: str) -> tuple[str, ...]:
    """Return the names of a pattern, expanded as Ansible does; a plain name expands to itself.

    Raises ValueError with the problem of the pattern or of the first bad name.
    """
    pieces = _RANGE.split(pattern)
    literals = pieces[::4]
    if bad := next((text for text in literals if set(text) & set("[]")), None):
        raise ValueError(f'bad range, got "{shown(bad)}", expected one such as [01:04], [a:f] or [0:10:2]')
    ranges = [_range(*pieces[index : index + 3]) for index in range(1, len(pieces), 4)]
    count = 1
    for values in ranges:
        count *= len(values)
    if count > MAX_HOSTS:
        raise ValueError(f"too many hosts, expected at most {MAX_HOSTS}")
    names = []
    for choice in itertools.product(*ranges):
        name = "".join(itertools.chain(*itertools.zip_longest(literals, choice, fillvalue="")))
        if not is_host_name(name):
            expected = "a short name of lower-case letters, digits and hyphens"
            raise ValueError(f'bad host name, got "{shown(name)}", expected {expected}')
        names.append(name)
    return tuple(names)


def without(pattern: str, names: Collection[str]) -> tuple[str, ...]:
    """Return patterns for the hosts of `pattern` that are not in `names`, in the same order.

    Raises ValueError as `expand` does.
    """
    expand(pattern)
    pieces = _RANGE.split(pattern)
    literals = pieces[::4]
    ranges = [_range(*pieces[index : index + 3]) for index in range(1, len(pieces), 4)]

    def written(at: int, run: Sequence[str]) -> str:
        first, last, step = pieces[4 * at + 1 : 4 * at + 4]
        if len(run) < len(ranges[at]):
            if len(run) == 1:
                return run[0]
            first, last = run[0], run[-1]
        return f"[{first}:{last}:{step}]" if step else f"[{first}:{last}]"

    def left(at: int, before: str) -> tuple[str, ...]:
        """Return patterns for the text after `before`, from literal number `at` on."""
        prefix = before + literals[at]
        if at == len(ranges):
            return () if prefix in names else (literals[at],)
        runs: list[tuple[list[str], tuple[str, ...]]] = []
        for value in ranges[at]:
            after = left(at + 1, prefix + value)
            # A range before several patterns would change the order.
            if runs and len(after) == 1 and runs[-1][1] == after:
                runs[-1][0].append(value)
            else:
                runs.append(([value], after))
        return tuple(literals[at] + written(at, run) + text for run, after in runs for text in after)

    return left(0, "")


def is_host_name(name: str) -> bool:
    """Return whether a name is valid for a host: one DNS label, because it is used in Slurm and in DNS."""
    return rules.is_label(name) and name not in _RESERVED


def hint(pattern: str) -> str:
    """Return a suggestion for a pattern that `expand` refuses."""
    lower = pattern.lower()
    if addresses.is_ip(pattern):
        return f"name the host and give its address: gpu01: {{ansible_host: {pattern}}}"
    if "." in pattern and rules.is_domain(pattern) and is_host_name(lower.split(".")[0]):
        return f"write {lower.split('.')[0]}: {{ansible_host: {pattern}}}"
    return f"write {lower}" if lower != pattern and is_host_name(_RANGE.sub("0", lower)) else ""


def _range(first: str, last: str, step: str | None) -> Sequence[str]:
    def refuse(expected: str) -> ValueError:
        return ValueError(f'bad range, got "[{first}:{last}]", expected {expected}')

    if first.isdigit() != last.isdigit():
        raise refuse("two numbers or two letters")
    padded = first.startswith("0") and len(first) > 1
    if padded and len(first) != len(last):
        raise refuse("two numbers of the same length")
    begin, end = (int(first), int(last)) if first.isdigit() else (ord(first), ord(last))
    if end < begin or (step and int(step) < 1):
        raise refuse("the smaller one first and a step above 0")
    values = range(begin, end + 1, int(step or 1))[: MAX_HOSTS + 1]
    return [str(value).zfill(len(first) if padded else 0) if first.isdigit() else chr(value) for value in values]
