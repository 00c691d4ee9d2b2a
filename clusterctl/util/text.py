"""Format text for people: host ranges, times, counts, versions, suggestions."""

import difflib
import re
from collections.abc import Collection, Iterable

MAX_TEXT = 128


def fold(names: Collection[str]) -> str:
    """Return host names as Slurm writes them: `gpu01 gpu02 gpu03 gpu07 head1` is `gpu[01-03,07], head1`; in order.

    Two names of a kind are not folded.
    """
    groups: list[tuple[str, list[str]]] = []
    for name in names:
        stem = name.rstrip("0123456789")
        number = name[len(stem) :]
        if groups and number and groups[-1][0] == stem and len(groups[-1][1][0]) == len(number):
            groups[-1][1].append(number)
        else:
            groups.append((stem, [number]))
    return ", ".join(
        f"{stem}[{_ranges(numbers)}]" if len(numbers) > 2 else ", ".join(stem + number for number in numbers)
        for stem, numbers in groups
    )


def _ranges(numbers: list[str]) -> str:
    """Return numbers of one width as ranges; a range of two numbers has a dash too, as Slurm prints it."""
    runs: list[tuple[str, str]] = []
    for number in numbers:
        if runs and int(number) == int(runs[-1][1]) + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(first if first == last else f"{first}-{last}" for first, last in runs)


def duration(seconds: float) -> str:
    """Return a time for people: `0.4 s`, `12 s`, `1 min 05 s`, `2 h 03 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def roughly(seconds: float) -> str:
    """Return a time in one unit, for use before `ago`: `12 s`, `90 min`, `3 days`; negative times are `0 s`."""
    whole = max(0, round(seconds))
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if whole >= 2 * size:
            return f"{whole // size} {unit}"
    return f"{whole} s"


def plural(count: int, noun: str) -> str:
    """Return `1 node`, `2 nodes`, `3 directories`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known name, or the only one that ends with `name`; else an empty text."""
    names = [*known]
    near = difflib.get_close_matches(name[:100], names, n=1, cutoff=0.7)
    ending = [one for one in names if one.endswith(f"_{name}")]  # `timezone` for `cluster_timezone`
    if not near and len(ending) == 1:
        near = ending
    return f"did you mean {near[0]}?" if near else ""


def upstream(version: str) -> str:
    """Return the upstream part of a package's version: `1:24.11.5-4+deb13u1` is 24.11.5."""
    return re.sub(r"^\d+:|-[^-]*$", "", version)


def escape_controls(text: str) -> str:
    """Return `text` on one line, with control and invisible characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable(text: str, limit: int = MAX_TEXT) -> str:
    """Return `text` without control and invisible characters (escapes, line breaks, bidi marks), cut to `limit`."""
    # Cut before the check too: checking every character of a ten-megabyte text is slow.
    start = text[: 4 * limit]
    return (start if start.isprintable() else "".join(c for c in start if c.isprintable())).strip()[:limit]


def strip_controls(text: str, keep: str = "\t") -> str:
    """Return `text` of any length without control and invisible characters, except those in `keep`."""
    return text if text.isprintable() else "".join(c for c in text if c.isprintable() or c in keep)
