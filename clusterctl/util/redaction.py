"""Remove secret values from text, in all their usual encodings."""

import base64
import binascii
import html
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any
from urllib.parse import quote, quote_plus

from clusterctl.util.text import strip_controls

MARK = "[redacted]"
_SHORTEST = 4  # shorter values would redact ordinary words
_SHORTEST_ENCODED = 8
_LONG = 32  # in a form of this length or more, pieces are redacted too
_PIECE, _STRIDE = 12, 4  # so any piece of 15 characters or more is found


class Redactor:
    """Redacts a set of values; `redact` is fast enough for every line of a run."""

    def __init__(self, values: Iterable[str]) -> None:
        """Prepare for `values`; values under four characters are ignored."""
        forms = {form for value in values if len(value) >= _SHORTEST for form in _forms(value)}
        self._short = sorted((form for form in forms if len(form) < _LONG), key=len, reverse=True)
        self._long = sorted((form for form in forms if len(form) >= _LONG), key=len, reverse=True)
        self._pieces = {form[at : at + _PIECE] for form in self._long for at in range(len(form) - _PIECE + 1)}

    def redact(self, text: str) -> str:
        """Return `text` with each value replaced: raw, base64, hex, URL-encoded, shell-, JSON-, HTML- or Slurm-quoted.

        A long value is also found in pieces, because a line or message may be cut or wrapped inside it.
        """
        pieces = self._pieces
        cut = any(text[at : at + _PIECE] in pieces for at in range(0, len(text), _STRIDE))
        # Long forms first: a short form may be part of a long one, and the rest would stay.
        for form in (*self._long, *self._short) if cut else self._short:
            text = text.replace(form, MARK)
        return self._without_pieces(text) if cut else text

    def _without_pieces(self, text: str) -> str:
        kept, done, end = [], 0, -1  # the kept text, its end, and the end of the current piece
        for at in range(len(text) - _PIECE + 1):
            if text[at : at + _PIECE] in self._pieces:
                if at > end:
                    kept += [text[done:at], MARK]
                done = end = at + _PIECE
        return "".join([*kept, text[done:]])


def throughout(data: Any, redact: Callable[[str], str]) -> Any:
    """Return JSON data, or a dataclass of it, with each text redacted. In encoded JSON that could cut an escape.

    Short keys only lose control characters: a password may be the same word as a key.
    """
    match data:
        case str():
            return redact(data)
        case dict():
            return {
                redact(key) if len(key) >= _PIECE else strip_controls(key): throughout(value, redact)
                for key, value in data.items()
            }
        case list() | tuple():
            return type(data)(throughout(value, redact) for value in data)
    if is_dataclass(data) and not isinstance(data, type):
        return replace(data, **{field.name: throughout(getattr(data, field.name), redact) for field in fields(data)})
    return data


def _forms(value: str) -> Iterator[str]:
    yield value
    url = {quote(value), quote(value, safe=""), quote_plus(value)}
    yield from url
    yield from (re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), form) for form in url)
    yield shlex.quote(value).strip("'")
    yield value.replace("'", r"'\''")
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", value)
    yield re.sub(r'(["$`\\])', r"\\\1", value)
    yield re.sub(r"([#\\])", r"\\\1", value)  # a file of Slurm's
    yield json.dumps(value)[1:-1]
    yield repr(value)[1:-1]
    yield ascii(value)[1:-1]
    yield repr(value.encode())[2:-1]
    yield html.escape(value)
    for data in _decoded(value):
        if len(data) >= _SHORTEST_ENCODED:
            # The form in which a program prints a file with the raw bytes.
            yield strip_controls(data.decode(errors="replace"))
            yield repr(data)[2:-1]
    for data in {value.encode(), *_decoded(value)}:
        if len(data) >= _SHORTEST_ENCODED:
            yield data.hex()
            yield data.hex().upper()
            yield from _base64_cores(data)


def _decoded(value: str) -> Iterator[bytes]:
    """Yield the bytes that a generated value encodes: they may be printed in another encoding."""
    for decode in (base64.b64decode, base64.urlsafe_b64decode, bytes.fromhex):
        try:
            yield decode(value)
        except (ValueError, binascii.Error):
            continue


def _base64_cores(data: bytes) -> Iterator[str]:
    """Yield the part that base64 of any text with `data` in it contains, for the three alignments of bytes."""
    for offset in range(3):
        start, end = -(-offset * 8 // 6), (offset + len(data)) * 8 // 6
        core = base64.b64encode(bytes(offset) + data)[start:end].decode()
        yield core
        yield core.translate(str.maketrans("+/", "-_"))
