"""Decode untrusted data: each field of a dataclass has a reader that checks its value.

A field is written `cpus: Annotated[int, number(1, 65536)]`. A reader gets a value from parsed JSON and its path for
messages; it returns the checked value or raises `Malformed`. Unknown keys are dropped.
"""

import re
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from ipaddress import ip_address, ip_interface
from typing import Any, TypeVar, cast, get_type_hints

from clusterctl.util.text import printable

Reader = Callable[[object, str], Any]
T = TypeVar("T")


class Malformed(ValueError):  # noqa: N818 - describes a value
    """A value is not valid; the text has its path, the value and what was expected."""


def _malformed(path: str, got: object, expected: str) -> Malformed:
    return Malformed(f"{path}: got {printable(repr(got), 60)}, expected {expected}")


def decode(cls: type[T], data: object, path: str = "") -> T:
    """Build the dataclass `cls` from a JSON object through its fields' readers; unknown keys are dropped."""
    if not isinstance(data, Mapping):
        raise _malformed(path or "the document", data, "an object")
    prefix = f"{path}." if path else ""
    return cls(**{name: read(data.get(name), prefix + name) for name, read in _readers(cast(Hashable, cls)).items()})


@cache
def _readers(cls: type[Any]) -> dict[str, Reader]:
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(cls, include_extras=True).items()}


def text(pattern: str = ".*", expected: str = "text") -> Reader:
    """Read printable text of at most MAX_TEXT characters that matches `pattern` in full."""
    compiled = re.compile(pattern, re.ASCII)

    def read(value: object, path: str) -> str:
        if not isinstance(value, str):
            raise _malformed(path, value, expected)
        shown = printable(value)
        if not compiled.fullmatch(shown):
            raise _malformed(path, value, expected)
        return shown

    return read


def number(low: int, high: int) -> Reader:
    """Read a whole number from `low` to `high`."""

    def read(value: object, path: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _malformed(path, value, f"a whole number from {low} to {high}")
        return value

    return read


def seconds(value: object, path: str) -> float:
    """Read a time in seconds since 1970; finite, not negative, before the year 10000."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 253402300800:
        raise _malformed(path, value, "seconds since 1970")
    return float(value)


def amount(value: object, path: str) -> float:
    """Read a number that is finite and not negative."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e300:
        raise _malformed(path, value, "a number from 0")
    return float(value)


def flag(value: object, path: str) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise _malformed(path, value, "true or false")
    return value


def optional(reader: Reader) -> Reader:
    """Read None, or a value with `reader`."""
    return lambda value, path: None if value is None else reader(value, path)


def sequence(reader: Reader, limit: int) -> Reader:
    """Read a list of at most `limit` items, as a tuple."""

    def read(value: object, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > limit:
            raise _malformed(path, value, f"a list of at most {limit} items")
        return tuple(reader(item, f"{path}[{index}]") for index, item in enumerate(value))

    return read


def mapping(key: Reader, reader: Reader, limit: int) -> Reader:
    """Read an object of at most `limit` entries."""

    def read(value: object, path: str) -> dict[Any, Any]:
        if not isinstance(value, dict) or len(value) > limit:
            raise _malformed(path, value, f"an object of at most {limit} entries")
        return {key(k, path): reader(v, f"{path}.{printable(str(k), 32)}") for k, v in value.items()}

    return read


def nested(cls: type[Any]) -> Reader:
    """Read an object as the dataclass `cls`."""
    return lambda value, path: decode(cls, value, path)


def ranges(low: int, high: int) -> Reader:
    """Read whole numbers from `low` to `high` in the kernel's list format, for example 0-15,32."""
    listed = text(r"\d+(-\d+)?(,\d+(-\d+)?)*", "numbers and ranges such as 0-15,32")

    def read(value: object, path: str) -> str:
        shown: str = listed(value, path)
        for part in shown.split(","):
            first, _, last = part.partition("-")
            if not low <= int(first) <= int(last or first) <= high:
                raise _malformed(path, value, f"ranges from {low} to {high}, the smaller number first")
        return shown

    return read


_ZONE = re.compile("%[^/]*", re.DOTALL)


def address(value: object, path: str) -> str:
    """Read an IPv4 or IPv6 address (a zone like %eth0 is dropped)."""
    try:
        return str(ip_address(_ZONE.sub("", str(value), count=1)))
    except ValueError:
        raise _malformed(path, value, "an IP address") from None


def interface(value: object, path: str) -> str:
    """Read an address with its prefix length, such as 10.0.0.11/24 (a zone is dropped)."""
    try:
        return str(ip_interface(_ZONE.sub("", str(value), count=1)))
    except ValueError:
        raise _malformed(path, value, "an IP address with prefix length") from None
