"""Public keys of package sources: fetched from their publishers, trusted only by fingerprint."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import tempfile
from pathlib import Path

from ansible.module_utils.node_state.tools import NodeError, write

_ARMOR = re.compile(
    r"\s*-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[A-Za-z]+:[ -~]*\r?\n)*\r?\n"
    r"((?:[A-Za-z0-9+/]+={0,2}\r?\n)+)(?:=[A-Za-z0-9+/]{4}\r?\n)?-----END PGP PUBLIC KEY BLOCK-----\s*"
)
_PRIMARY = 6  # the tag of a primary key
_PARTS = (2, 13, 14, 17)  # tags of its parts: signatures, user ids, subkeys, attributes


def packets(data):
    """Yield tag and body of each packet (RFC 9580). Raises ValueError for a truncated packet or a missing length."""
    at = 0
    while at < len(data):
        head, begin = data[at], data[at + 1 : at + 6].ljust(5, b"\0")
        if head & 0x40:
            tag, first = head & 0x3F, begin[0]
            octets, size = 1, first
            if first >= 192:
                octets, size = 2, ((first - 192) << 8) + begin[1] + 192
            if first >= 224:
                octets, size = 5, int.from_bytes(begin[1:], "big") if first == 255 else len(data)
        else:
            tag, octets = head >> 2 & 0x0F, 1 << (head & 3)
            size = int.from_bytes(begin[:octets], "big") if octets <= 4 else len(data)
        at += 1 + octets
        body = data[at : at + size]
        if not head & 0x80 or len(body) != size:
            raise ValueError("no packet")
        yield tag, body
        at += size


def fingerprint(armored):
    """Return the fingerprint of a text with exactly one key of version 4; empty for any other text.

    A package manager would also trust a second key in it.
    """
    found = _ARMOR.fullmatch(armored)
    try:
        parts = list(packets(base64.b64decode("".join(found[1].split()), validate=True))) if found else []
    except ValueError:
        return ""
    tag, body = parts[0] if parts else (0, b"")
    if tag != _PRIMARY or body[:1] != b"\4" or any(tag not in _PARTS for tag, _ in parts[1:]):
        return ""
    packet = b"\x99" + len(body).to_bytes(2, "big") + body
    return hashlib.sha1(packet).hexdigest().upper()  # noqa: S324 - defined by the format


def with_key(item, manager, check):
    """Return a file of a package source with its content; a key is fetched and its fingerprint checked.

    An existing key is not fetched again (but see `renewed`). In check mode no key is fetched, and its content is empty.
    """
    if "fingerprint" not in item:
        return item
    path, wanted = Path(item["name"]), item["fingerprint"]
    text = path.read_text(errors="replace") if path.is_file() else ""
    if fingerprint(text) != wanted:
        text = "" if check else fetched(item["url"], wanted, manager)
    return {"name": item["name"], "data": base64.b64encode(text.encode()).decode()}


def renewed(told, manager, folder="/etc/apt/sources.list.d"):
    """Fetch the keys of those package sources again that apt reports; return whether a key changed.

    Its owner may have extended it or added a subkey; its fingerprint does not change. If fetching fails, it is kept.
    """
    changed = False
    for source in sorted(Path(folder).glob("*.sources")):
        text = source.read_text(errors="replace")
        key = re.search(r"(?m)^# Key: (\S+) ([0-9A-F]{40})$", text)
        uri, path = (re.search(rf"(?m)^{field}: (\S+)$", text) for field in ("URIs", "Signed-By"))
        if key and uri and path and uri[1].rstrip("/") in told:
            with contextlib.suppress(NodeError):
                new = fetched(key[1], key[2], manager)
                if new != Path(path[1]).read_text(errors="replace"):
                    write(path[1], new.encode(), mode=0o644)
                    changed = True
    return changed


def fetched(url, wanted, manager):
    """Return the key at a URL. Raises NodeError for another fingerprint."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "key")
        manager.download(url, str(file))
        text = file.read_text(errors="replace")
    found = fingerprint(text)
    if found != wanted:
        problem = f"got a key with the fingerprint {found}" if found else "got no single key"
        raise NodeError(f"{url}: {problem}, expected {wanted}; nothing is installed from there")
    return text.strip() + "\n"
