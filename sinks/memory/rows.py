"""The reference store's operations on the rows of a key: version -> stored value. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.sinks.rules.layout import unpack
from tidegate.wal.frame import Run

OfKeys = dict[bytes, dict[int, bytes]]
"""Rows of a key group of a table, by key and version."""


def newest_of(versions: dict[int, bytes], version: int, start: int) -> bytes | None:
    """Find the newest row at or below the version, not only one of exactly this version (T26)."""
    readable = [v for v in versions if start <= v <= version]
    return versions[max(readable)] if readable else None


def put_rows(rows: OfKeys, run: Run, version: int) -> None:
    """Set the version's rows to those of the run."""
    for key, value in zip(run.keys.to_pylist(), run.values.to_pylist(), strict=True):
        rows.setdefault(key, {})[version] = value


def drop_replaced(rows: OfKeys, key: bytes, version: int) -> None:
    """Drop older rows of the key, and the version's own if it is a delete marker."""
    retained = {v: value for v, value in rows.get(key, {}).items() if v >= version}
    if version in retained and unpack(retained[version]).value is None:
        del retained[version]  # T27: no row is left below that it would have to hide
    if retained:
        rows[key] = retained
    else:
        rows.pop(key, None)


def drop_up_to(rows: OfKeys, key: bytes, version: int) -> None:
    """Drop rows of the key up to the version."""
    rows[key] = {v: value for v, value in rows[key].items() if v > version}
    if not rows[key]:
        del rows[key]


def without_versions(rows: OfKeys, lowest: int) -> OfKeys:
    """Return the rows of versions below the lowest one, without keys that have none."""
    retained = {key: {v: value for v, value in of.items() if v < lowest} for key, of in rows.items()}
    return {key: of for key, of in retained.items() if of}


def drop_below(rows: OfKeys, version: int) -> None:
    """Drop the rows of versions below this one, of every key."""
    for key in list(rows):
        rows[key] = {v: value for v, value in rows[key].items() if v >= version}
        if not rows[key]:
            del rows[key]


def counted_in(applied: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    """Count the rows in the chunks of a version, by table."""
    return {table: sum(chunks.values()) for table, chunks in applied.items()}
