"""Quarantine: refused rows go to a table beside, in the same version, instead of failing it.

A refused row has no usable key, so it gets one: an id that hashes to the key group in whose
stream the row was met. So it is staged by the task that met it, in sort order, without a
shuffle, and a reader finds it by its id like any other row.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import BadRecordError
from tidegate.wal.bad_rows import CHANGES, BadRow, StageSpec, bad_rows, refused
from tidegate.wal.quarantine_ids import id_in
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.settle import PLACE, place_of

TABLE = "_quarantine"
"""The namespace's table of refused rows. Names that start with an underscore are reserved."""

SCHEMA = TableSchema(
    (Column("id", "string"),),
    (
        Column("table", "string"),
        Column("cause", "string"),
        Column("key", "binary"),
        Column("value", "binary"),
        Column("key_bytes", "bigint"),
        Column("value_bytes", "bigint"),
    ),
)
"""``key`` and ``value`` are the refused row's (null as they were), of longer ones the first ``KEPT_BYTES`` or
``KEPT_BESIDES``; ``key_bytes`` and ``value_bytes`` say how long they were.
"""

KEPT_BYTES, KEPT_BESIDES = 64 * 1024, 1024
HELD_BYTES_MAX = 64 * 1024 * 1024
"""Refused rows wait in memory for the end of their key group, and null keys are all of one. Where they take
that much, less is kept of the others (I11).
"""
ROWS_MAX = 10_000
"""Refused rows that one task takes; more than that is a broken stream, not a poison record."""


def accepted(batches: Iterable[Any], spec: StageSpec) -> Iterator[Any]:
    """Batches without their bad rows; those follow at the end of their key group.

    Without a quarantine table the first bad row raises BadRecordError.
    """
    if spec.quarantine is None:
        yield from refused(batches, spec)
        return
    held: list[tuple[int, bytes, bytes]] = []
    taken = 0
    for batch in batches:
        bad = bad_rows(batch, spec)
        taken += len(bad)
        if taken > ROWS_MAX:
            msg = f"more than {ROWS_MAX} rows were refused by one task, the last because {bad[-1].why}"
            raise BadRecordError(msg)
        good = batch
        if bad:
            keep = np.ones(batch.num_rows, dtype=bool)
            keep[[one.row for one in bad]] = False
            waiting = sum(len(value) for *_, value in held)
            for number, one in enumerate(bad, taken - len(bad)):
                most = KEPT_BYTES if waiting < HELD_BYTES_MAX else KEPT_BESIDES
                held.append(_entry(batch, one, spec, number, most))
                waiting += len(held[-1][-1])
            good = batch.filter(pa.array(keep))
        if held:
            group = batch["g"][batch.num_rows - 1].as_py()
            good = _with(good, [entry for entry in held if entry[0] < group], spec)
            held = [entry for entry in held if entry[0] >= group]
        if good.num_rows:
            yield good
    if held:
        yield _beside(held, spec, CHANGES)


def _with(rows: Any, entries: list[tuple[int, bytes, bytes]], spec: StageSpec) -> Any:
    """The rows and the quarantined ones, in sort order (a stable sort: who wins stays)."""
    if not entries:
        return rows
    both = pa.concat_tables(
        [pa.Table.from_batches([rows]), pa.Table.from_batches([_beside(entries, spec, rows.schema)])],
        promote_options="default",  # what says the order of other rows is null
    )
    in_order = pc.sort_indices(both, sort_keys=[("g", "ascending"), ("t", "ascending")])
    (batch,) = both.take(in_order).combine_chunks().to_batches()
    return batch


def _beside(entries: list[tuple[int, bytes, bytes]], spec: StageSpec, like: Any) -> Any:
    """Refused rows, with a place where the others have one: behind all of their key group."""
    groups, keys, values = zip(*sorted(entries), strict=True)
    table = [spec.quarantine] * len(entries)
    columns = zip((groups, table, keys, values), CHANGES, strict=True)
    arrays = {field.name: pa.array(column, field.type) for column, field in columns}
    if PLACE in like.names:
        arrays[PLACE] = pa.array([place_of(group, spec.quarantine or 0) for group in groups], pa.int64())
    return pa.record_batch(arrays)


def _entry(batch: Any, bad: BadRow, spec: StageSpec, number: int, most: int) -> tuple[int, bytes, bytes]:
    """Key group, id and stored value of a refused row: at ``most`` so many bytes of its key and its value."""
    group, key, value = (batch[name][bad.row].as_py() for name in ("g", "k", "v"))
    value = value[1:] if value is not None else None  # without its flags byte
    name = id_in(group, spec.key_groups, f"{spec.attempt}-{group}-{number}")
    told = {
        "table": spec.tables[batch["t"][bad.row].as_py()],
        "cause": bad.why,
        "key": _kept(key, most),
        "value": _kept(value, most),
        "key_bytes": None if key is None else len(key),
        "value_bytes": None if value is None else len(value),
    }
    return group, name, b"+" + msgspec.json.encode(told)


def _kept(content: bytes | None, most: int) -> str | None:
    return None if content is None else base64.b64encode(content[:most]).decode()
