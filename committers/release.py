"""Release: rows leave the quarantine, in a version of their own, once they were dealt with elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import xxhash

from tidegate.committers.commit import commit
from tidegate.committers.driver import Driver
from tidegate.committers.given_rows import GivenRows
from tidegate.committers.open import open_namespace
from tidegate.key_groups import key_group
from tidegate.sinks.layout import DELETE
from tidegate.sinks.store import CatalogEntry
from tidegate.wal import quarantine
from tidegate.wal.bad_rows import CHANGES
from tidegate.wal.record import LoadOrigin

KEYS_AT_ONCE = 10_000


class Released(NamedTuple):
    """``version`` is None when none of the rows was there any more: then no version was made."""

    recovered: list[int]
    version: int | None
    rows: int


def release(driver: Driver, ids: Iterable[bytes]) -> Released:
    """Remove these rows of the quarantine, all in one version. The driver is not open yet.

    On return the version is durable, and visible in the primary. Rows that are not there, and those that were
    refused since, stay as they are; so it may be repeated, wherever it was cut short. Errors as
    ``open_namespace`` and ``commit``.
    """
    recovered = open_namespace(driver, None)
    base = driver.folded.last_version
    entries = driver.store.catalog(base, base) if base else []
    there = _there(driver, entries[0], sorted(set(ids))) if entries else []
    if not there:
        return Released(recovered, None, 0)
    rows = sorted((key_group(one, driver.folded.key_groups), one) for one in there)
    # A restore may bring the same rows back, to be released again: the base makes it another token.
    token = f"quarantine drop {base} {xxhash.xxh3_64_hexdigest(b' '.join(there))}"
    barrier = GivenRows(
        driver.log,
        LoadOrigin(token),
        (quarantine.TABLE,),
        {quarantine.TABLE: quarantine.SCHEMA},
        lambda: _deletes(rows),
        driver.clock,
    )
    return Released(recovered, commit(driver, barrier).version, len(there))


def _there(driver: Driver, entry: CatalogEntry, ids: list[bytes]) -> list[bytes]:
    at = entry.tables.get(quarantine.TABLE)
    found: list[bytes] = []
    for first in range(0, len(ids) if at else 0, KEYS_AT_ONCE):
        some = ids[first : first + KEYS_AT_ONCE]
        values = driver.store.get_many(
            quarantine.TABLE, some, entry.version, at.start if at else 0, entry.decided_at_us
        )
        found += [one for one, value in zip(some, values.to_pylist(), strict=True) if value is not None]
    return found


def _deletes(rows: list[tuple[int, bytes]]) -> Iterator[Any]:
    for first in range(0, len(rows), KEYS_AT_ONCE):
        groups, keys = zip(*rows[first : first + KEYS_AT_ONCE], strict=True)
        columns = (groups, [0] * len(keys), keys, [DELETE] * len(keys))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, CHANGES, strict=True)]
        yield pa.record_batch(arrays, schema=CHANGES)
