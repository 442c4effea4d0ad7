"""The words of `--since`, `--until`, `--as-of` and `--tz`, turned into instants.

A room of its own because every reading command takes them, a wrong reading would silently move every number, and the
clock and the zone are arguments here: the functions are pure. All instants are UTC microseconds; an interval is
half-open, [since, until). A date names its first instant in the zone, at both ends.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from loopstats.errors import UsageError

GRAMMAR = "90min, 24h, 7d, 4w, 6mo, 1y, 2026-01-31, 2026-01-31T09:30:00+02:00, today, yesterday or all"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_SPAN = re.compile(r"([0-9]{1,6})(min|h|d|w|mo|y)")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(Z|z|[+-][0-9]{2}:?[0-9]{2})?"
)
_FIXED = {
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}


@dataclass(frozen=True)
class Interval:
    """What a reading command looks at: `as_of_us` is what was known, None at an end is no bound."""

    as_of_us: int
    since_us: int | None
    until_us: int | None
    tz: str

    @property
    def is_bounded(self) -> bool:
        """A window was asked for."""
        return self.since_us is not None or self.until_us is not None

    def to_json(self) -> dict[str, str | None] | None:
        """The envelope's `interval`; null where no window was asked for."""
        if not self.is_bounded:
            return None
        return {"since": _iso_or_none(self.since_us), "until": _iso_or_none(self.until_us)}

    def __str__(self) -> str:
        since, until = _iso_or_none(self.since_us), _iso_or_none(self.until_us)
        bounds = f"[{since or 'the beginning'}, {until or 'as of'})" if self.is_bounded else "all time"
        return f"as of {iso(self.as_of_us)}, {bounds}, dates in {self.tz}"


def resolve(since: str | None, until: str | None, as_of: str | None, tz: str, now_us: int) -> Interval:
    """The interval that the options mean at the clock `now_us`.

    `as_of` is relative to the clock, `since` and `until` are relative to the as-of. UsageError where a text is not
    understood or the interval is empty.
    """
    zone = zone_of(tz)
    as_of_us = now_us if as_of is None else moment(as_of, now_us, zone, "--as-of")
    if as_of_us is None:
        raise UsageError("--as-of: 'all' is no instant; use e.g. 2026-01-31, yesterday or 24h")
    since_us = None if since is None else moment(since, as_of_us, zone, "--since")
    until_us = None if until is None else moment(until, as_of_us, zone, "--until")
    if since_us is not None and since_us >= (as_of_us if until_us is None else until_us):
        end = "--as-of" if until_us is None else "--until"
        raise UsageError(
            f"--since {since} is {iso(since_us)}, not before {end} {_iso_or_none(until_us) or iso(as_of_us)}"
        )
    return Interval(as_of_us, since_us, until_us, tz)


def moment(text: str, as_of_us: int, zone: tzinfo, option: str = "--since") -> int | None:
    """The instant that `text` names, seen from `as_of_us`; None for `all`.

    min, h, d and w are fixed lengths; mo and y go back in the calendar of `zone` and end at the month's last day
    where the day does not exist.
    """
    word = text.strip()
    try:
        here = (EPOCH + timedelta(microseconds=as_of_us)).astimezone(zone)
        if word == "all":
            return None
        if word in ("today", "yesterday"):
            return _midnight(here.date() - timedelta(days=word == "yesterday"), zone)
        if (span := _SPAN.fullmatch(word)) and int(span[1]):
            return as_of_us - _microseconds(_FIXED[span[2]] * int(span[1])) if span[2] in _FIXED else _back(here, span)
        if day := _DATE.fullmatch(word):
            return _midnight(date(int(day[1]), int(day[2]), int(day[3])), zone)
        if stamp := _INSTANT.fullmatch(word):
            if stamp[1] is None:
                raise UsageError(f"{option} {text!r}: a time needs its offset, e.g. {word}Z or {word}+02:00")
            return _microseconds(datetime.fromisoformat(word.upper()) - EPOCH)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{option} {text!r}: {error}; use e.g. {GRAMMAR}") from error
    if re.fullmatch(r"[0-9]+m", word):
        raise UsageError(f"{option} {text!r}: 'm' may be minutes or months; write {word}in or {word}o")
    raise UsageError(f"{option} {text!r}: not understood; use e.g. {GRAMMAR}")


def zone_of(name: str) -> tzinfo:
    """The time zone called `name`; UsageError where there is none."""
    if name.upper() in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise UsageError(
            f"--tz {name!r}: no such time zone; use e.g. UTC, Europe/Berlin or America/New_York"
        ) from error


def iso(us: int) -> str:
    """An instant as ISO 8601 UTC with Z; the fraction only where there is one."""
    try:
        return (EPOCH + timedelta(microseconds=us)).isoformat().replace("+00:00", "Z")
    except OverflowError as error:
        raise UsageError(f"{us}: outside the years 1 to 9999") from error


def _iso_or_none(us: int | None) -> str | None:
    return None if us is None else iso(us)


def _microseconds(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def _midnight(day: date, zone: tzinfo) -> int:
    return _microseconds(datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC) - EPOCH)


def _back(here: datetime, span: re.Match[str]) -> int:
    months = here.year * 12 + here.month - 1 - int(span[1]) * (12 if span[2] == "y" else 1)
    year, month = divmod(months, 12)
    if year < 1:
        raise ValueError("before the year 1")
    day = min(here.day, calendar.monthrange(year, month + 1)[1])
    moved = here.replace(year=year, month=month + 1, day=day)
    return _microseconds(moved.astimezone(UTC) - EPOCH)
