"""The cluster's known_hosts: the only host keys that clusterctl and Ansible's ssh accept."""

import base64
import fnmatch
import hmac
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry

from clusterctl.util import files
from clusterctl.util.errors import InputError, Problem
from clusterctl.workspace import home


@dataclass(frozen=True)
class HostKey:
    """The public key that a node presents: its fingerprint for comparison, and its line for known_hosts."""

    node: str
    name: str
    type: str
    fingerprint: str
    line: str


_Entry = tuple[int, bool, str]
"""A line with a key: its number, whether the key is revoked, and its text."""


@dataclass(frozen=True)
class _Entries:
    """The lines with keys by the name that they are for, and those with patterns or hashes of names."""

    by_name: Mapping[str, list[_Entry]]
    with_patterns: Sequence[tuple[list[str], _Entry]]


def keys(known_hosts: Path, name: str) -> tuple[list[paramiko.PKey], list[paramiko.PKey]]:
    """Return the accepted and the revoked keys of `name` in the file.

    Lines that OpenSSH ignores are ignored; home.known_hosts refuses certificate authorities.
    """
    accepted: list[paramiko.PKey] = []
    revoked: list[paramiko.PKey] = []
    known = _entries(known_hosts, _stamp(known_hosts))
    special = [entry for patterns, entry in known.with_patterns if _names(patterns, name)]
    for _, is_revoked, line in sorted([*known.by_name.get(name, ()), *special]):
        try:
            entry = HostKeyEntry.from_line(line)
        except Exception:  # noqa: S112 - paramiko raises a dozen unrelated types for an invalid key
            continue
        if entry and entry.key:
            (revoked if is_revoked else accepted).append(entry.key)
    return accepted, revoked


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what differs after each change of a file; empty if there is none."""
    try:
        known = path.stat()
    except OSError:
        return ()
    return known.st_dev, known.st_ino, known.st_size, known.st_mtime_ns, known.st_ctime_ns


@lru_cache(maxsize=4)
def _entries(known_hosts: Path, _stamp: tuple[int, ...]) -> _Entries:
    """Return the lines with keys. They are read once as long as the file is the same: each host needs them."""
    by_name, with_patterns = defaultdict[str, list[_Entry]](list), list[tuple[list[str], _Entry]]()
    for number, line in enumerate(home.known_hosts(known_hosts)):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", "@revoked"):
            continue
        names, entry = fields[0].split(","), (number, bool(marker), " ".join(fields[:3]))
        if any(set(name) & set("|!*?") for name in names):
            with_patterns.append((names, entry))
        else:
            for name in {name.lower() for name in names}:
                by_name[name].append(entry)
    return _Entries(by_name, with_patterns)


def add(known_hosts: Path, new: Sequence[HostKey]) -> None:
    """Add keys atomically, with mode 0600; a name that has an entry keeps it."""
    added = [key.line for key in new if not any(keys(known_hosts, key.name))]
    if added:
        _write(known_hosts, [*home.known_hosts(known_hosts), *dict.fromkeys(added)])


def add_beside(known_hosts: Path, names: Iterable[str], key: str) -> None:
    """Add a key beside the recorded ones of these names; `key` is its type and its text in base64."""
    kind, text = key.split()
    added = []
    for name in names:
        accepted, _ = keys(known_hosts, name)
        if (kind, text) not in [(known.get_name(), known.get_base64()) for known in accepted]:
            added.append(f"{name} {key}")
    if added:
        _write(known_hosts, [*home.known_hosts(known_hosts), *added])


def replace(known_hosts: Path, key: HostKey) -> None:
    """Replace all keys of a name with this key; other names on the same lines are kept."""
    kept = []
    for line in home.known_hosts(known_hosts):
        fields = line.split()
        names = fields[0].split(",") if len(fields) > 2 and not fields[0].startswith(("#", "@")) else []
        # Keep patterns: they were written by hand and match other nodes too.
        others = [name for name in names if set(name) & set("!*?") or not _names([name], key.name)]
        if others == names:
            kept.append(line)
        elif others:
            kept.append(" ".join([",".join(others), *fields[1:]]))
    _write(known_hosts, [*kept, key.line])


def lines(known_hosts: Path, name: str) -> list[str]:
    """Return the lines with this host's exact name, without patterns."""
    found = []
    for line in home.known_hosts(known_hosts):
        fields = line.split()
        names = fields[0].split(",") if len(fields) > 2 and not fields[0].startswith(("#", "@")) else []
        if any(not set(one) & set("!*?") and _names([one], name) for one in names):
            found.append(line)
    return found


def remove(known_hosts: Path, removed: Collection[str]) -> None:
    """Remove whole lines."""
    content = home.known_hosts(known_hosts)
    kept = [line for line in content if line not in removed]
    if kept != content:
        _write(known_hosts, kept)


def _write(known_hosts: Path, content: Sequence[str]) -> None:
    try:
        files.write_atomically(known_hosts, "".join(f"{line}\n" for line in content).encode(), replace=True)
    except OSError as error:
        raise InputError([Problem(None, str(known_hosts), f"cannot be written: {error.strerror}")]) from None


def _names(patterns: Iterable[str], name: str) -> bool:
    found = False
    for pattern in patterns:
        if pattern.startswith("|1|"):
            found |= _is_hash_of(pattern, name)
            continue
        if not set(pattern) & set("!*?"):
            found |= pattern.lower() == name
            continue
        # Only * and ? are special. A regular expression with many .* would need exponential time.
        if fnmatch.fnmatchcase(name, pattern.lstrip("!").lower().replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _is_hash_of(pattern: str, name: str) -> bool:
    """Return whether `|1|salt|hash` matches `name`; paramiko's function raises for a damaged entry."""
    try:
        salt, wanted = (base64.b64decode(part) for part in pattern.split("|")[2:])
    except ValueError:
        return False
    return hmac.digest(salt, name.encode(), "sha1") == wanted
