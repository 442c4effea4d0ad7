"""`--since` and its sisters: every form of the grammar, what is refused, zones and the ends of the calendar."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopstats import when
from loopstats.errors import UsageError


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp()) * 1_000_000


AS_OF = us("2026-03-31T10:20:30+00:00")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90min", "2026-03-31T08:50:30+00:00"),
        ("24h", "2026-03-30T10:20:30+00:00"),
        ("7d", "2026-03-24T10:20:30+00:00"),
        ("4w", "2026-03-03T10:20:30+00:00"),
        ("1mo", "2026-02-28T10:20:30+00:00"),
        ("6mo", "2025-09-30T10:20:30+00:00"),
        ("1y", "2025-03-31T10:20:30+00:00"),
        ("2026-01-31", "2026-01-31T00:00:00+00:00"),
        ("2026-01-31T09:30:00+02:00", "2026-01-31T07:30:00+00:00"),
        ("2026-01-31 09:30Z", "2026-01-31T09:30:00+00:00"),
        ("2026-01-31t09:30:00z", "2026-01-31T09:30:00+00:00"),
        ("2026-01-31T09:30:00-0730", "2026-01-31T17:00:00+00:00"),
        ("today", "2026-03-31T00:00:00+00:00"),
        ("yesterday", "2026-03-30T00:00:00+00:00"),
        (" 7d ", "2026-03-24T10:20:30+00:00"),
    ],
)
def test_each_form(text: str, expected: str) -> None:
    assert when.moment(text, AS_OF, UTC) == us(expected)


def test_all_is_no_bound() -> None:
    assert when.moment("all", AS_OF, UTC) is None


def test_leap_day_goes_back_to_the_last_of_february() -> None:
    assert when.moment("1y", us("2024-02-29T12:00:00+00:00"), UTC) == us("2023-02-28T12:00:00+00:00")


@pytest.mark.parametrize(
    "text",
    [
        "3x",
        "m",
        "",
        "7",
        "d",
        "-7d",
        "+7d",
        "0d",
        "1.5h",
        "7 d",
        "7D",
        "7days",
        "tomorrow",
        "2026-02-30",
        "2026-13-01",
        "26-01-01",
        "2026-1-1",
        "2026-01-31T25:00Z",
        "2026-01-31T09Z",
        "9999y",
        "999999mo",
        "٧d",
        "7d\x00",
        "2026-01-31T09:30:00+99:99",
        "0000-01-01",
    ],
)
def test_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as error:
        when.moment(text, AS_OF, UTC)
    assert "--since" in str(error.value)
    assert "7d" in str(error.value)
    assert "\n" not in str(error.value)


def test_bare_m_is_refused_and_both_readings_are_named() -> None:
    with pytest.raises(UsageError, match="write 3min or 3mo"):
        when.moment("3m", AS_OF, UTC)


def test_a_time_without_offset_is_refused() -> None:
    with pytest.raises(UsageError, match="needs its offset"):
        when.moment("2026-01-31T09:30:00", AS_OF, UTC)


def test_zone_decides_where_a_day_begins() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert when.moment("2026-01-31", AS_OF, berlin) == us("2026-01-30T23:00:00+00:00")
    assert when.moment("2026-07-31", AS_OF, berlin) == us("2026-07-30T22:00:00+00:00")
    late = us("2026-03-31T23:30:00+00:00")
    assert when.moment("today", late, berlin) == us("2026-03-31T22:00:00+00:00")
    assert when.moment("today", late, UTC) == us("2026-03-31T00:00:00+00:00")


def test_days_are_24_hours_over_the_change_of_the_clock() -> None:
    after = us("2026-03-30T12:00:00+02:00")
    assert when.moment("2d", after, ZoneInfo("Europe/Berlin")) == after - 48 * 3_600_000_000
    assert when.moment("1mo", after, ZoneInfo("Europe/Berlin")) == us("2026-02-28T12:00:00+01:00")


@pytest.mark.parametrize("name", ["Mars/Base", "../etc/passwd", "", "/etc/passwd", "Europe", "a\x00b"])
def test_unknown_zone(name: str) -> None:
    with pytest.raises(UsageError, match="--tz"):
        when.zone_of(name)


def test_resolve_is_relative_to_the_as_of() -> None:
    interval = when.resolve("7d", "yesterday", "2026-03-31", "UTC", us("2027-01-01T00:00:00+00:00"))
    assert interval.as_of_us == us("2026-03-31T00:00:00+00:00")
    assert interval.since_us == us("2026-03-24T00:00:00+00:00")
    assert interval.until_us == us("2026-03-30T00:00:00+00:00")
    assert interval.to_json() == {"since": "2026-03-24T00:00:00Z", "until": "2026-03-30T00:00:00Z"}
    assert str(interval) == "as of 2026-03-31T00:00:00Z, [2026-03-24T00:00:00Z, 2026-03-30T00:00:00Z), dates in UTC"


def test_resolve_without_a_window() -> None:
    interval = when.resolve("all", None, None, "UTC", AS_OF)
    assert not interval.is_bounded
    assert interval.to_json() is None
    assert "all time" in str(interval)


@pytest.mark.parametrize(
    ("since", "until", "as_of"),
    [
        ("2026-04-01", None, None),
        ("yesterday", "yesterday", None),
        ("1d", "7d", None),
        ("2026-01-02", None, "2026-01-01"),
    ],
)
def test_empty_interval_is_refused(since: str, until: str | None, as_of: str | None) -> None:
    with pytest.raises(UsageError, match="not before"):
        when.resolve(since, until, as_of, "UTC", AS_OF)


def test_as_of_all_is_refused() -> None:
    with pytest.raises(UsageError, match="no instant"):
        when.resolve(None, None, "all", "UTC", AS_OF)


@given(st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999))
def test_iso_round_trips(instant: int) -> None:
    text = when.iso(instant)
    assert text.endswith("Z")
    assert when.moment(text, AS_OF, UTC) == instant


@given(st.text(max_size=40))
def test_any_text_is_an_instant_or_a_usage_error(text: str) -> None:
    try:
        result = when.moment(text, AS_OF, UTC)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert result is None or isinstance(result, int)
