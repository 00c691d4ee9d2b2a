"""Periods of `usage`: what people type, days of UTC, parts that are the whole."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.util.errors import InputError
from clusterctl.util.period import DAY, Period, parse

NOW = int(datetime(2026, 11, 25, 14, 30, tzinfo=UTC).timestamp())


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        ("30d", None, Period(NOW - 30 * DAY, NOW)),
        ("24h", None, Period(NOW - DAY, NOW)),
        ("90m", None, Period(NOW - 5400, NOW)),
        ("2w", "7d", Period(NOW - 21 * DAY, NOW - 7 * DAY)),
        ("2026-11-01", None, Period(at("2026-11-01"), NOW)),
        ("7d", "2026-11-08", Period(at("2026-11-01"), at("2026-11-08"))),
        ("2026-11-01T08:00", "2026-11-01T08:00:30", Period(at("2026-11-01T08:00"), at("2026-11-01T08:00:30"))),
    ],
)
def test_parse__durations_and_dates__count_from_the_end(since: str, until: str | None, expected: Period) -> None:
    assert parse(since, until, NOW) == expected


@pytest.mark.parametrize(
    ("since", "until", "message"),
    [
        ("yesterday", None, '--since: got "yesterday", expected a duration such as 7d'),
        ("2026-13-01", None, '--since: got "2026-13-01", expected'),
        ("2026-11-01 08:00", None, "--since: got"),
        ("7\x1b[2Jd", None, '--since: got "7[2Jd", expected'),
        ("\u0667d", None, "--since: got"),
        ("7d", "2026-11-26", "--until: 2026-11-26 is in the future"),
        ("2026-11-20", "2026-11-20", "--since: the period is empty"),
        ("0d", None, "--since: the period is empty"),
        ("367d", None, "--since: the period is too long, expected at most 366 days"),
        ("999999w", None, "--since: the period is too long"),
    ],
)
def test_parse__what_is_no_period__is_refused(since: str, until: str | None, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(since, until, NOW)
    assert str(caught.value).startswith(message)


def test_days__of_a_period__begin_at_midnight_of_utc() -> None:
    """Berlin's clocks were set back on 2026-10-25: the day has 24 h all the same."""
    period = Period(at("2026-10-24T22:00"), at("2026-10-26T01:00"))
    days = [(part.day, part.seconds // 3600) for part in period.days()]
    assert days == [("2026-10-24", 2), ("2026-10-25", 24), ("2026-10-26", 1)]
    assert (str(period), period.hours) == ("2026-10-24 22:00 to 2026-10-26 01:00 UTC", 27.0)


@given(st.integers(0, 2**31), st.integers(1, 20 * DAY), st.integers(0, 2**31), st.integers(0, 40 * DAY))
def test_overlap__with_all_days__is_that_with_the_period(since: int, length: int, start: int, more: int) -> None:
    period = Period(since, since + length)
    parts = list(period.days())
    assert sum(part.seconds for part in parts) == length
    assert sum(part.overlap(start, start + more) for part in parts) == period.overlap(start, start + more)
