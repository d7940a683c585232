"""Durations and timestamps: conversions from and to text, and their parts."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any, Final

from bayplan.cel.errors import EvaluationError
from bayplan.cel.library.declare import Declaration
from bayplan.cel.values import INT_MAX, INT_MIN, Duration, Timestamp

_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,
    "\u03bcs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_RFC3339: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_OFFSET: Final = re.compile(r"([+-]?)(\d\d):(\d\d)", re.ASCII)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def parse_duration(text: str) -> Duration:
    """``1h30m``, ``-1.5s``, ``0``; EvaluationError for anything else."""
    sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    total, at = 0, 0
    while at < len(rest) and rest != "0":
        part = _PART.match(rest, at)
        if part is None or not (part[1] or part[2]):
            raise EvaluationError(f'time: invalid duration "{text}"')
        unit, fraction = _UNITS[part[3]], part[2] or ""
        total += int(part[1] or "0") * unit + int(fraction or "0") * unit // 10 ** len(fraction)
        at = part.end()
    if not rest or not INT_MIN <= sign * total <= INT_MAX:
        raise EvaluationError(f'time: invalid duration "{text}"')
    return Duration(sign * total)


def duration_text(ns: int) -> str:
    """Seconds with as many decimals as needed: ``3600s``, ``1.5s``."""
    whole, fraction = divmod(abs(ns), 10**9)
    decimals = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"{'-' if ns < 0 else ''}{whole}{decimals}s"


def parse_timestamp(text: str) -> Timestamp:
    """A moment in RFC 3339 form."""
    match = _RFC3339.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        moment = datetime.datetime(*(int(match[i]) for i in range(1, 7)), tzinfo=datetime.UTC)  # type: ignore[misc,arg-type]
    except ValueError:
        raise EvaluationError(f'parsing time "{text}" as an RFC 3339 time failed') from None
    seconds = _seconds(moment)
    if match[8] != "Z":
        seconds -= _offset(match[8])
    fraction = (match[7] or "0")[:9]
    return Timestamp(seconds * 10**9 + int(fraction.ljust(9, "0")))


def _seconds(moment: datetime.datetime) -> int:
    span = moment - _EPOCH
    return span.days * 86400 + span.seconds


def _offset(text: str) -> int:
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise EvaluationError(f'unknown time zone "{text}"')
    return (-1 if match[1] == "-" else 1) * (int(match[2]) * 3600 + int(match[3]) * 60)


def _moment(moment: Timestamp, zone: str = "UTC") -> datetime.datetime:
    utc = _EPOCH + datetime.timedelta(seconds=moment.ns // 10**9)
    if zone in ("UTC", ""):
        return utc
    if ":" in zone:
        return utc.astimezone(datetime.timezone(datetime.timedelta(seconds=_offset(zone))))
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return utc.astimezone(ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError):
        raise EvaluationError(f'unknown time zone "{zone}"') from None


def timestamp_text(ns: int) -> str:
    """RFC 3339 in UTC, with decimals only where there are some."""
    fraction = f".{ns % 10**9:09d}".rstrip("0") if ns % 10**9 else ""
    return f"{_moment(Timestamp(ns)).strftime('%Y-%m-%dT%H:%M:%S').rjust(19, '0')}{fraction}Z"


def timestamp_of_seconds(value: int) -> Timestamp:
    if not -62135596800 <= value < 253402300800:
        raise EvaluationError("timestamp overflow")
    return Timestamp(value * 10**9)


_PARTS: Final[dict[str, tuple[str, Callable[[datetime.datetime], int]]]] = {
    "getFullYear": ("timestamp_to_year", lambda t: t.year),
    "getMonth": ("timestamp_to_month", lambda t: t.month - 1),
    "getDayOfYear": ("timestamp_to_day_of_year", lambda t: t.timetuple().tm_yday - 1),
    "getDayOfMonth": ("timestamp_to_day_of_month", lambda t: t.day - 1),
    "getDate": ("timestamp_to_day_of_month_1_based", lambda t: t.day),
    "getDayOfWeek": ("timestamp_to_day_of_week", lambda t: t.isoweekday() % 7),
    "getHours": ("timestamp_to_hours", lambda t: t.hour),
    "getMinutes": ("timestamp_to_minutes", lambda t: t.minute),
    "getSeconds": ("timestamp_to_seconds", lambda t: t.second),
}


def _part(part: Callable[[datetime.datetime], int]) -> Callable[..., int]:
    return lambda moment, zone="UTC": part(_moment(moment, zone))


def _milliseconds(moment: Timestamp, zone: str = "UTC") -> int:
    _moment(moment, zone)
    return moment.ns % 10**9 // 10**6


def _total(unit: int) -> Callable[[Duration], int]:
    return lambda span: abs(span.ns) // unit * (-1 if span.ns < 0 else 1)


def _same(value: Any) -> Any:
    return value


DECLARATIONS: Final[list[Declaration]] = [
    ("duration(duration) -> duration = duration_to_duration", _same),
    ("duration(int) -> duration = int64_to_duration", Duration),
    ("duration(string) -> duration = string_to_duration", parse_duration),
    ("timestamp(timestamp) -> timestamp = timestamp_to_timestamp", _same),
    ("timestamp(int) -> timestamp = int64_to_timestamp", timestamp_of_seconds),
    ("timestamp(string) -> timestamp = string_to_timestamp", parse_timestamp),
    ("duration::getHours() -> int = duration_to_hours", _total(3600 * 10**9)),
    ("duration::getMinutes() -> int = duration_to_minutes", _total(60 * 10**9)),
    ("duration::getSeconds() -> int = duration_to_seconds", _total(10**9)),
    ("duration::getMilliseconds() -> int = duration_to_milliseconds", _total(10**6)),
    ("timestamp::getMilliseconds() -> int = timestamp_to_milliseconds", _milliseconds),
    ("timestamp::getMilliseconds(string) -> int = timestamp_to_milliseconds_with_tz", _milliseconds),
]
for _name, (_id, _function) in _PARTS.items():
    DECLARATIONS.extend(
        [
            (f"timestamp::{_name}() -> int = {_id}", _part(_function)),
            (f"timestamp::{_name}(string) -> int = {_id}_with_tz", _part(_function)),
        ]
    )
