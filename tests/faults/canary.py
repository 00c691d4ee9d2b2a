"""Canaries: secrets that a search finds in any form, whole or in part: each repeats a mark that nothing else has.

A value is a unit of twelve bytes over and over: the mark, and a tag that tells which secret it is. So every piece of
two units holds the mark, and base64 of it, in each of its three alignments, holds one of three words. Nothing here is
shared with clusterctl/util/redaction.py, which it is to judge.
"""

import base64
import hashlib
import html
import json
import secrets as random
import shlex
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, quote_plus

import bcrypt
import yaml

_MARK, _TAG = 9, 3  # together a multiple of three: base64 of a repeated unit repeats itself too

FORMS: Mapping[str, Callable[[bytes], bytes]] = {
    "raw": lambda data: data,
    "base64": base64.b64encode,
    "base64, one byte on": lambda data: base64.b64encode(b"x" + data),
    "base64, two bytes on": lambda data: base64.b64encode(b"xy" + data),
    "base64, in lines": base64.encodebytes,
    "base64 for URLs": base64.urlsafe_b64encode,
    "base64 of base64": lambda data: base64.b64encode(b"password: " + base64.b64encode(data)),
    "hex": lambda data: data.hex().encode(),
    "upper hex": lambda data: data.hex().upper().encode(),
    "URL": lambda data: quote(data, safe="").encode(),
    "form": lambda data: quote_plus(data).encode(),
    "shell": lambda data: shlex.quote(data.decode()).encode(),
    "JSON": lambda data: json.dumps({"msg": data.decode()}).encode(),
    "JSON of JSON": lambda data: json.dumps(json.dumps([data.decode()])).encode(),
    "HTML": lambda data: html.escape(data.decode()).encode(),
    "a part": lambda data: data[5:37],
}
"""How a value may look where it leaks."""


def _words(data: bytes) -> list[bytes]:
    """What base64 of any text that holds `data` holds, for the three ways in which bytes align."""
    found = []
    for offset in range(3):
        start, end = -(-8 * offset // 6), 8 * (offset + len(data)) // 6
        found.append(base64.b64encode(bytes(offset) + data)[start:end])
    return found


def _mark() -> str:
    """A random mark whose base64 has letters and digits alone, so that URL and shell leave it as it is."""
    while True:
        mark = "".join(random.choice(string.ascii_letters + string.digits) for _ in range(_MARK))
        if all(word.isalnum() for word in _words(mark.encode())):
            return mark


@dataclass(frozen=True)
class Canaries:
    """One for each secret that the roles declare, for the password of the vault `label`, and for that of sudo."""

    label: str
    mark: str = field(default_factory=_mark)
    values: dict[str, str] = field(default_factory=dict)
    password: str = ""
    sudo_password: str = ""

    @classmethod
    def hatch(cls, label: str, declared: Mapping[str, Mapping[str, Any]]) -> "Canaries":
        made = cls(label)
        tags = {name: f"{number:03}" for number, name in enumerate(sorted(declared))}
        for name, spec in declared.items():
            if "bytes" in spec:  # not one that only a person can set
                made.values[name] = _encode(made.repeat(tags[name], spec["bytes"]), spec["encoding"])
        for name, spec in declared.items():
            if "bcrypt_of" in spec:  # the salt stands in the hash as it is
                salt = b"$2b$10$" + made.repeat(tags[name], 21) + b"u"
                made.values[name] = bcrypt.hashpw(made.values[spec["bcrypt_of"]].encode(), salt).decode()
        awkward = "'\"$ &%\\"  # what URL, shell, JSON and HTML write otherwise
        units = [made.repeat(tag, _MARK + _TAG).decode() for tag in ("vlt", "sdo")]
        return cls(label, made.mark, made.values, *(f"{unit}{awkward}{unit}{unit}" for unit in units))

    def repeat(self, tag: str, length: int) -> bytes:
        unit = f"{self.mark}{tag}".encode()
        return (unit * (length // len(unit) + 1))[:length]

    def all(self) -> dict[str, str]:
        return {**self.values, "vault password": self.password, "sudo password": self.sudo_password}

    def needles(self) -> dict[str, bytes]:
        """What to search for: the mark, its base64 up to three times over, and hex of it and of its base64."""
        found = {"raw": self.mark.encode()}
        for _ in range(3):
            found |= {
                f"{name} > base64+{offset}": word
                for name, data in found.items()
                for offset, word in enumerate(_words(data))
            }
        plain = {name: data for name, data in found.items() if name.count(">") < 2}
        found |= {f"{name} > hex": data.hex().encode() for name, data in plain.items()}
        return found | {f"{name} > HEX": data.hex().upper().encode() for name, data in plain.items()} | self.derived()

    def derived(self) -> dict[str, bytes]:
        """The passwords of users of the logs' store. They follow from a secret and have no mark (role logging)."""
        seed = self.values["logging_shipper_seed"]
        return {
            f"password of {user}": hashlib.sha512(f"{seed} {user}".encode()).hexdigest()[:48].encode()
            for user in ("head1", "gpu01", "gpu02")
        }

    def document(self) -> str:
        """The secrets as they stand in the vault."""
        return yaml.safe_dump(self.values)


def _encode(data: bytes, encoding: str) -> str:
    if encoding == "base64":
        return base64.b64encode(data).decode()
    if encoding == "hex":
        return data.hex()
    assert encoding == "urlsafe", f"a secret of an encoding that this test does not know: {encoding}"
    # The mark is to be seen in the value itself, so this is text that looks like the encoding of as many bytes.
    length = len(base64.urlsafe_b64encode(data).rstrip(b"="))
    return (data * 2)[: length - 1].decode() + "A"
