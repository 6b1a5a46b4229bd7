"""The comparison of a copy with its source: the same tables with the same rows, whatever their key groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import xxhash

from tidegate.committers.coordinator import Coordinator
from tidegate.committers.steps.fill_groups import live_rows
from tidegate.committers.transfer.rekey.begin import makes_again
from tidegate.committers.transfer.rekey.versions import schemas_of, without_queues
from tidegate.errors import CorruptError
from tidegate.sinks.records import CatalogEntry

DIGEST_SPACE = 1 << 128


def compare(
    old: Coordinator, new: Coordinator, versions: tuple[int, int], keep: Callable[[], None]
) -> dict[str, int]:
    """Compare two versions row by row, by a sum of digests; return the number of rows by table.

    A row that has expired at the later of their times is in neither. Queues of timeouts are left out.
    Raises: CorruptError: they differ.
    """
    sides = [
        (at, at.store.catalog(version, version)[0]) for at, version in zip((old, new), versions, strict=True)
    ]
    at_us = max(entry.decided_at_us for _, entry in sides)
    (was, rows), (now, copied) = (
        (
            {name: schema.grouped(1) for name, schema in schemas_of(at.store, entry).items()},
            _summed(at, entry, at_us, keep),
        )
        for at, entry in sides
    )
    wrong = sorted(
        name
        for name in was.keys() | now.keys()
        if was.get(name) != now.get(name) or rows.get(name) != copied.get(name)
    )
    if wrong:
        raise CorruptError(
            f"{new.store.where}: version {versions[1]} differs from version {versions[0]} of namespace"
            f" {old.endpoints.namespace}, of which it is a copy, in table {', '.join(wrong)}; no alias was"
            f" set: {makes_again(old, new)}"
        )
    return {name: rows[name][0] if name in rows else 0 for name in sorted(was)}


def _summed(
    at: Coordinator, entry: CatalogEntry, at_us: int, keep: Callable[[], None]
) -> dict[str, tuple[int, int]]:
    """Return the number of rows of each table, and the sum of their digests, which knows no order."""
    counts, sums = Counter[str](), Counter[str]()
    shown = without_queues(entry)
    names = sorted(shown.tables)
    for _, index, live in live_rows(at.store, shown, at.folded.key_groups, at_us, keep):
        table = names[index]
        counts[table] += live.num_rows
        for key, value in zip(live["key"].to_pylist(), live["value"].to_pylist(), strict=True):
            digest = xxhash.xxh3_128_intdigest(b"%d:%b%b" % (len(key), key, value))
            sums[table] = (sums[table] + digest) % DIGEST_SPACE
    return {table: (count, sums[table]) for table, count in counts.items() if count}
