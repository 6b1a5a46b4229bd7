"""The version argument: ``--at`` and similar, a number or a time."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from tidegate.reader.gate import Gate
from tidegate.reader.snapshot import Snapshot

NumberOrTime = int | datetime.datetime


def number_or_time(text: str) -> NumberOrTime:
    """Parse a version's number, or a time: UTC where it names no zone.

    >>> number_or_time("41")
    41
    >>> number_or_time("2026-11-21 10:00Z").isoformat(), number_or_time("2026-11-21").isoformat()
    ('2026-11-21T10:00:00+00:00', '2026-11-21T00:00:00+00:00')
    """
    if text.isdecimal() and len(text) <= MOST_DIGITS:
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in "Zz" else text)
        return moment if moment.utcoffset() is not None else moment.replace(tzinfo=datetime.timezone.utc)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no version: it must be a whole number, or a time such as 2026-11-21T10:00:00Z"
        ) from None


MOST_DIGITS = 15


def _one_or_more(text: str) -> NumberOrTime:
    version = number_or_time(text)
    if version == 0:
        raise typer.BadParameter("0 is no version: the first one is 1")
    return version


At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="VERSION",
        parser=_one_or_more,
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
