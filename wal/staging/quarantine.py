"""Quarantine: refused rows are written to a separate table, in the same version, instead of failing it.

A refused row has no usable key, so it gets one: an id that hashes to the key group in whose stream
the row was found. So the task that found it stages it, in sort order, without a shuffle, and a
reader finds it by its id like any other row.
"""

from __future__ import annotations

import base64
import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tidegate.errors import BadRecordError
from tidegate.keys.groups import HASH_SEED
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging.last_per_key import PLACE, place_of
from tidegate.wal.staging.spec import CHANGES, StageSpec
from tidegate.wal.staging.validate import BadRow, bad_rows, content_of, describe, refused
from tidegate.wal.value_flags import VALUE

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
"""``key`` and ``value`` are the refused row's, null if they were. Longer ones are cut to
``KEPT_BYTES`` or ``KEPT_BESIDES`` bytes; ``key_bytes`` and ``value_bytes`` are their full lengths.
"""

KEPT_BYTES, KEPT_BESIDES = 64 * 1024, 1024
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Refused rows wait in memory for the end of their key group, and null keys are all in one. Once
they take this many bytes, less is kept of further ones (I11).
"""
ROWS_MAX = 10_000
"""The most refused rows of one task. More is a broken stream, not a poison record."""


def accepted(batches: Iterable[Any], spec: StageSpec) -> Iterator[Any]:
    """Yield batches without their bad rows, which follow at the end of their key group.

    Raises: BadRecordError for the first bad row when there is no quarantine table, or the rows are stored
    ones.
    """
    if spec.quarantine is None or spec.stored:
        yield from refused(batches, spec)
        return
    waiting: list[tuple[int, bytes, bytes]] = []
    refused_count = 0
    for batch in batches:
        bad = bad_rows(batch, spec)
        refused_count += len(bad)
        _check_count(refused_count, bad)
        good = batch
        if bad:
            keep = np.ones(batch.num_rows, dtype=bool)
            keep[[bad_row.row for bad_row in bad]] = False
            waiting_bytes = sum(len(value) for *_, value in waiting)
            for number, bad_row in enumerate(bad, refused_count - len(bad)):
                most = KEPT_BYTES if waiting_bytes < WAITING_BYTES_MAX else KEPT_BESIDES
                waiting.append(_entry(batch, bad_row, spec, str(number), most))
                waiting_bytes += len(waiting[-1][-1])
            good = batch.filter(pa.array(keep))
        if waiting:
            group = batch["g"][batch.num_rows - 1].as_py()
            good = _merged_with(good, [entry for entry in waiting if entry[0] < group], spec)
            waiting = [entry for entry in waiting if entry[0] >= group]
        if good.num_rows:
            yield good
    if waiting:
        yield _refused_batch(waiting, spec, CHANGES)


class MergedRefusals:
    """The refusals of one task's rows that do not fit their state."""

    def __init__(self, spec: StageSpec) -> None:
        self._spec, self._count = spec, 0

    def set_aside(self, rows: Any, bad: list[BadRow]) -> Any:
        """Return a batch of the quarantine's rows. Raises: BadRecordError: there is no quarantine table,
        or too many rows were refused.
        """
        if self._spec.quarantine is None:
            raise BadRecordError(describe(rows, bad[0], self._spec))
        first, self._count = self._count, self._count + len(bad)
        _check_count(self._count, bad)
        entries = [
            _entry(rows, row, self._spec, f"merge{number}", KEPT_BYTES)
            for number, row in enumerate(bad, first)
        ]
        return _refused_batch(entries, self._spec, CHANGES)


def _check_count(count: int, bad: list[BadRow]) -> None:
    if count > ROWS_MAX:
        msg = f"more than {ROWS_MAX} rows were refused by one task, the last because {bad[-1].why}"
        raise BadRecordError(msg)


def _merged_with(rows: Any, entries: list[tuple[int, bytes, bytes]], spec: StageSpec) -> Any:
    """Merge the quarantined rows into the others, in sort order. The sort is stable, so the winners stay."""
    if not entries:
        return rows
    both = pa.concat_tables(
        [pa.Table.from_batches([rows]), pa.Table.from_batches([_refused_batch(entries, spec, rows.schema)])],
        promote_options="default",  # other rows' ordering columns are null
    )
    in_order = pc.sort_indices(both, sort_keys=[("g", "ascending"), ("t", "ascending")])
    (batch,) = both.take(in_order).combine_chunks().to_batches()
    return batch


def _refused_batch(entries: list[tuple[int, bytes, bytes]], spec: StageSpec, like: Any) -> Any:
    """Build a batch of refused rows. If the others have a place, theirs is after all of their key group."""
    groups, keys, values = zip(*sorted(entries), strict=True)
    table = [spec.quarantine] * len(entries)
    columns = zip((groups, table, keys, values), CHANGES, strict=True)
    arrays = {field.name: pa.array(column, field.type) for column, field in columns}
    if PLACE in like.names:
        arrays[PLACE] = pa.array([place_of(group, spec.quarantine or 0) for group in groups], pa.int64())
    return pa.record_batch(arrays)


def _entry(batch: Any, bad: BadRow, spec: StageSpec, number: str, most: int) -> tuple[int, bytes, bytes]:
    """Return a refused row's key group, id and stored value, with at most ``most`` bytes of its key
    and value.
    """
    group, key, value = (batch[name][bad.row].as_py() for name in ("g", "k", "v"))
    value = None if value is None else content_of(value)
    name = id_in(group, spec.key_groups, f"{spec.attempt}-{group}-{number}")
    fields = {
        "table": spec.tables[batch["t"][bad.row].as_py()],
        "cause": bad.why,
        "key": _shortened(key, most),
        "value": _shortened(value, most),
        "key_bytes": None if key is None else len(key),
        "value_bytes": None if value is None else len(value),
    }
    return group, name, VALUE + msgspec.json.encode(fields)


def _shortened(content: bytes | None, most: int) -> str | None:
    return None if content is None else base64.b64encode(content[:most]).decode()


# -- ids for refused rows: text that hashes to a wanted key group ------------------------------------------

SALT_BYTES = 8
SALTS_MAX = 1 << 16
STRIPE_BYTES = 32
"""XXH64 consumes input in stripes of this length, and the rest in steps of 8 bytes."""
BITS = 64
MASK = (1 << BITS) - 1
P1, P2, P3, P4 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63
"""The primes of XXH64."""


def id_in(group: int, key_groups: int, stem: str) -> bytes:
    """Return an id of this key group that begins with the stem; the same stem gives the same id."""
    for number in itertools.count():
        lead = _aligned(f"{stem}-{number}-".encode())
        fitting = np.flatnonzero(
            _hashes(lead, min(4 * key_groups, SALTS_MAX)) % np.uint64(key_groups) == group
        )
        if fitting.size:
            return lead + b"%0*d" % (SALT_BYTES, fitting[0])
    raise AssertionError("some salt fits")


def _aligned(lead: bytes) -> bytes:
    """Pad the text so that a salt after it is the last 8-byte step of the hash."""
    lead += b"-" * (-len(lead) % SALT_BYTES)
    return lead + b"-" * SALT_BYTES if not (len(lead) + SALT_BYTES) % STRIPE_BYTES else lead


def _hashes(lead: bytes, salts: int) -> Any:
    """Hash this text followed by each of the first salts."""
    hashes = np.uint64(_state_before_salt(lead)) ^ _salts()[:salts]
    hashes = _rotated(hashes, 27) * np.uint64(P1) + np.uint64(P4)
    for shift, prime in ((33, P2), (29, P3)):
        hashes ^= hashes >> np.uint64(shift)
        hashes *= np.uint64(prime)
    return hashes ^ hashes >> np.uint64(32)


def _state_before_salt(lead: bytes) -> int:
    """Return XXH64's state before the salt: the finalisation after an all-zero salt, which changes
    nothing, undone.
    """
    state = xxhash.xxh64_intdigest(lead + bytes(SALT_BYTES), seed=HASH_SEED)
    for shift, prime in ((32, P3), (29, P2)):
        state ^= state >> shift ^ state >> 2 * shift
        state = state * pow(prime, -1, 1 << BITS) & MASK
    state ^= state >> 33
    state = (state - P4) * pow(P1, -1, 1 << BITS) & MASK
    return state >> 27 | state << BITS - 27 & MASK


@functools.lru_cache(maxsize=1)
def _salts() -> Any:
    """Return each salt of eight digits as XXH64 mixes it in."""
    digits = b"".join(b"%0*d" % (SALT_BYTES, number) for number in range(SALTS_MAX))
    return _rotated(np.frombuffer(digits, "<u8") * np.uint64(P2), 31) * np.uint64(P1)


def _rotated(numbers: Any, bits: int) -> Any:
    return numbers << np.uint64(bits) | numbers >> np.uint64(BITS - bits)
