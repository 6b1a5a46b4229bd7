"""The version argument: ``--at`` and similar, a number or a time."""

from __future__ import annotations

import datetime
import re
from typing import Annotated

import typer

from tidegate.base.text import brief
from tidegate.errors import ConfigError
from tidegate.options.durations import duration_us
from tidegate.reader.gate import Gate
from tidegate.reader.snapshot import Snapshot
from tidegate.sinks.rules.version_ref import VersionRef

NumberOrTime = int | datetime.datetime
MOST_DIGITS = 15
AGO = " ago"
TIME_OF_DAY = re.compile(r"\d\d:\d\d")


def number_or_time(text: str) -> NumberOrTime:
    """Parse a version's number, or a time: UTC where it names no zone.

    A time of day is the last such moment.

    >>> number_or_time("41")
    41
    >>> number_or_time("2026-11-21 10:00Z").isoformat(), number_or_time("2026-11-21").isoformat()
    ('2026-11-21T10:00:00+00:00', '2026-11-21T00:00:00+00:00')
    """
    if text.isdecimal() and len(text) <= MOST_DIGITS:
        return int(text)
    moment = time_in(text, datetime.datetime.now(datetime.timezone.utc))
    if moment is None:
        raise typer.BadParameter(
            f"{brief(text)} is no version: it must be a whole number, or a time such as 2026-11-21T10:00:00Z,"
            " 10:15 or '2h ago'"
        )
    return moment


def time_in(text: str, now: datetime.datetime) -> datetime.datetime | None:
    """Parse a time: a date and time, a time of day, or a duration before ``now``; None: it is neither.

    >>> noon = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.timezone.utc)
    >>> [time_in(text, noon).isoformat()[5:16] for text in ("10:15", "15:00", "15:00+05:30", "2h ago")]
    ['11-21T10:15', '11-20T15:00', '11-21T15:00', '11-21T10:00']
    """
    if text.endswith(AGO):
        try:
            return now - datetime.timedelta(microseconds=duration_us("the time", text.removesuffix(AGO)))
        except ConfigError:
            return None
    text = f"{text[:-1]}+00:00" if text[-1:] in "Zz" else text
    try:
        if TIME_OF_DAY.match(text) is None:
            return _in_utc_unless_zoned(datetime.datetime.fromisoformat(text))
        clock = datetime.time.fromisoformat(text)
        zone = clock.tzinfo or datetime.timezone.utc
        moment = datetime.datetime.combine(now.astimezone(zone).date(), clock, zone)
    except ValueError:
        return None
    return moment if moment <= now else moment - datetime.timedelta(days=1)


def _in_utc_unless_zoned(moment: datetime.datetime) -> datetime.datetime:
    return moment if moment.utcoffset() is not None else moment.replace(tzinfo=datetime.timezone.utc)


def reference(text: str) -> VersionRef:
    """Parse ``VERSION:UUID:DIGEST``."""
    try:
        return VersionRef.parse(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


def one_or_more(text: str) -> NumberOrTime:
    """Parse as ``number_or_time``, and refuse version 0."""
    version = number_or_time(text)
    if version == 0:
        raise typer.BadParameter("0 is no version: the first one is 1")
    return version


At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="VERSION",
        parser=one_or_more,
        help="Read at this version instead of the newest: its number, or a time (UTC unless it has"
        " a zone) for the newest that was decided by then.",
    ),
]
"""A parsed ``NumberOrTime``, despite its type: typer calls the parser."""


def snapshot_at(gate: Gate, at: object) -> Snapshot:
    """Open the version that ``--at`` names; the newest for None."""
    if isinstance(at, datetime.datetime):
        return gate.snapshot(as_of=at)
    return gate.snapshot(version=at)  # type: ignore[arg-type]


def version_at(gate: Gate, at: object) -> int | None:
    """Return its number. It may be retired before a read uses it."""
    if not isinstance(at, datetime.datetime):
        return at  # type: ignore[return-value]
    with gate.snapshot(as_of=at) as snapshot:
        return snapshot.version
