"""The cluster's known_hosts: the only host keys that clusterctl and Ansible's ssh accept."""

import base64
import fnmatch
import hmac
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
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


def keys(known_hosts: Path, name: str) -> tuple[list[paramiko.PKey], list[paramiko.PKey]]:
    """Return the accepted and the revoked keys of `name` in the file.

    Lines that OpenSSH ignores are ignored; home.known_hosts refuses certificate authorities.
    """
    accepted: list[paramiko.PKey] = []
    revoked: list[paramiko.PKey] = []
    for line in home.known_hosts(known_hosts):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", "@revoked"):
            continue
        if not _names(fields[0].split(","), name):
            continue
        try:
            entry = HostKeyEntry.from_line(" ".join(fields[:3]))
        except Exception:  # noqa: S112 - paramiko raises a dozen unrelated types for an invalid key
            continue
        if entry and entry.key:
            (revoked if marker else accepted).append(entry.key)
    return accepted, revoked


def add(known_hosts: Path, new: Sequence[HostKey]) -> None:
    """Add keys atomically, with mode 0600; a name that has an entry keeps it."""
    added = [key.line for key in new if not any(keys(known_hosts, key.name))]
    if added:
        _write(known_hosts, [*home.known_hosts(known_hosts), *dict.fromkeys(added)])


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
