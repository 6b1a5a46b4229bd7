"""The removal of rows from the quarantine, in a version of their own, after they were handled elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import xxhash

from tidegate.base.names import RELEASE_TOKEN, own_token
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.steps.stored_rows import StoredRowsBarrier, changes_of_one_table
from tidegate.keys.groups import key_group
from tidegate.sinks.records import CatalogEntry
from tidegate.wal.manifest import TableChange
from tidegate.wal.record import LoadOrigin
from tidegate.wal.staging import quarantine
from tidegate.wal.value_flags import DELETE

KEYS_AT_ONCE = 10_000


class Released(NamedTuple):
    """The result of a removal. ``version`` is None when none of the rows existed: no version was made."""

    recovered: list[int]
    version: int | None
    rows: int


def release(coordinator: Coordinator, ids: Iterable[bytes]) -> Released:
    """Remove these rows of the quarantine, all in one version. The driver is not open yet.

    Durable: on return the version is in the log, and visible in the primary. Repeatable: also after an
    interruption; absent rows are ignored, and rows refused since stay as they are. Raises: as
    ``open_namespace`` and ``commit``.
    """
    recovered = open_namespace(coordinator, None, command="quarantine drop")
    base = coordinator.folded.last_version
    entries = coordinator.store.catalog(base, base) if base else []
    existing = _there(coordinator, entries[0], sorted(set(ids))) if entries else []
    if not existing:
        return Released(recovered, None, 0)
    rows = sorted((key_group(one, coordinator.folded.key_groups), one, DELETE) for one in existing)
    # A restore may bring the same rows back, to be removed again: the base makes it another token.
    digest = xxhash.xxh3_64_hexdigest(b" ".join(existing))
    token = own_token(RELEASE_TOKEN, coordinator.folded.namespace, base, digest)
    barrier = StoredRowsBarrier(
        coordinator.log,
        LoadOrigin(token),
        {quarantine.TABLE: TableChange(quarantine.SCHEMA)},
        lambda: changes_of_one_table(rows),
        coordinator.clock,
    )
    return Released(recovered, commit(coordinator, barrier).version, len(existing))


def _there(coordinator: Coordinator, entry: CatalogEntry, ids: list[bytes]) -> list[bytes]:
    table_at = entry.tables.get(quarantine.TABLE)
    existing: list[bytes] = []
    for first in range(0, len(ids) if table_at else 0, KEYS_AT_ONCE):
        some = ids[first : first + KEYS_AT_ONCE]
        values = coordinator.store.get_many(entry.read_at(quarantine.TABLE), some)
        existing += [one for one, value in zip(some, values.to_pylist(), strict=True) if value is not None]
    return existing
