"""A period of time, in whole seconds since 1970 and days of UTC: no daylight saving time can shift it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from clusterctl.util.errors import InputError, Problem
from clusterctl.util.text import printable

DAY = 86400
_MAX_DAYS = 366
_UNITS = {"m": 60, "h": 3600, "d": DAY, "w": 7 * DAY}
_EXPECTED = "a duration such as 7d or 24h, or a time such as 2026-11-01 or 2026-11-01T08:00 (UTC)"


@dataclass(frozen=True)
class Period:
    """The time from `since` until before `until`."""

    since: int
    until: int

    @property
    def seconds(self) -> int:
        return self.until - self.since

    @property
    def hours(self) -> float:
        return self.seconds / 3600

    @property
    def day(self) -> str:
        """The day in which it begins, such as 2026-11-01."""
        return f"{datetime.fromtimestamp(self.since, UTC):%Y-%m-%d}"

    def days(self) -> Iterator["Period"]:
        """Yield the parts of the period by day."""
        start = self.since
        while start < self.until:
            end = min(start - start % DAY + DAY, self.until)
            yield Period(start, end)
            start = end

    def overlap(self, start: int, end: int) -> int:
        """Return how many seconds of the period are from `start` until before `end`."""
        return max(0, min(end, self.until) - max(start, self.since))

    def __str__(self) -> str:
        first, last = (datetime.fromtimestamp(time, UTC) for time in (self.since, self.until))
        return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC"


def parse(since: str, until: str | None, now: int) -> Period:
    """Return the period that --since and --until describe; a duration counts back from the end. Raises InputError."""
    end = now if until is None else _time("--until", until, now)
    start = _time("--since", since, end)
    if end > now:
        raise InputError([Problem(None, "--until", f"{printable(str(until))} is in the future")])
    if start >= end:
        raise InputError([Problem(None, "--since", f"the period is empty: {Period(start, end)}")])
    if end - start > _MAX_DAYS * DAY:
        raise InputError([Problem(None, "--since", f"the period is too long, expected at most {_MAX_DAYS} days")])
    return Period(start, end)


def _time(option: str, text: str, end: int) -> int:
    if found := re.fullmatch(r"(\d{1,6})([mhdw])", text, re.ASCII):
        return max(0, end - int(found[1]) * _UNITS[found[2]])
    try:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?)?", text, re.ASCII):
            raise ValueError(text)
        return max(0, int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()))
    except ValueError:
        raise InputError([Problem(None, option, f'got "{printable(text)}", expected {_EXPECTED}')]) from None
