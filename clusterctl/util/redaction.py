"""Take secret values out of text, in every form in which they tend to leak."""

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
_SHORTEST = 4  # shorter values would blank out ordinary words
_SHORTEST_ENCODED = 8
_LONG = 32  # of a form as long as this a piece is taken for the whole
_PIECE, _STRIDE = 12, 4  # so a piece of fifteen characters is never overlooked


class Redactor:
    """Knows a set of values; `redact` is cheap enough for every line of a run."""

    def __init__(self, values: Iterable[str]) -> None:
        """Prepare for `values`; those under four characters are left alone."""
        forms = {form for value in values if len(value) >= _SHORTEST for form in _forms(value)}
        self._short = sorted((form for form in forms if len(form) < _LONG), key=len, reverse=True)
        self._long = sorted((form for form in forms if len(form) >= _LONG), key=len, reverse=True)
        self._pieces = {form[at : at + _PIECE] for form in self._long for at in range(len(form) - _PIECE + 1)}

    def redact(self, text: str) -> str:
        """Return `text` with each value replaced: raw, base64, hex, URL-encoded, shell-, JSON- or HTML-quoted.

        A long value is found in pieces too: a line or a message may have been cut, or wrapped, in its midst.
        """
        pieces = self._pieces
        cut = any(text[at : at + _PIECE] in pieces for at in range(0, len(text), _STRIDE))
        # Whole ones first: a short form may have a piece in common with a long one, and its rest would stay.
        for form in (*self._long, *self._short) if cut else self._short:
            text = text.replace(form, MARK)
        return self._without_pieces(text) if cut else text

    def _without_pieces(self, text: str) -> str:
        kept, done, end = [], 0, -1  # what stays, how far that goes, and where the pieces in sight end
        for at in range(len(text) - _PIECE + 1):
            if text[at : at + _PIECE] in self._pieces:
                if at > end:
                    kept += [text[done:at], MARK]
                done = end = at + _PIECE
        return "".join([*kept, text[done:]])


def throughout(data: Any, redact: Callable[[str], str]) -> Any:
    """Return data of JSON, or a dataclass of such, with each text redacted. (In JSON itself that could cut an escape.)

    Short keys stay, less what a terminal could take for a command: a password may be one of the words by which data
    are known.
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
    yield json.dumps(value)[1:-1]
    yield repr(value)[1:-1]
    yield ascii(value)[1:-1]
    yield repr(value.encode())[2:-1]
    yield html.escape(value)
    for data in _decoded(value):
        if len(data) >= _SHORTEST_ENCODED:
            # What a program shows of a file with the bytes themselves.
            yield strip_controls(data.decode(errors="replace"))
            yield repr(data)[2:-1]
    for data in {value.encode(), *_decoded(value)}:
        if len(data) >= _SHORTEST_ENCODED:
            yield data.hex()
            yield data.hex().upper()
            yield from _base64_cores(data)


def _decoded(value: str) -> Iterator[bytes]:
    """Yield the bytes that a generated value stands for: they may be printed in another encoding."""
    for decode in (base64.b64decode, base64.urlsafe_b64decode, bytes.fromhex):
        try:
            yield decode(value)
        except (ValueError, binascii.Error):
            continue


def _base64_cores(data: bytes) -> Iterator[str]:
    """Yield what base64 of any text that contains `data` must contain, for the three ways in which bytes align."""
    for offset in range(3):
        start, end = -(-offset * 8 // 6), (offset + len(data)) * 8 // 6
        core = base64.b64encode(bytes(offset) + data)[start:end].decode()
        yield core
        yield core.translate(str.maketrans("+/", "-_"))
