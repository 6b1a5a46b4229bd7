"""Rows of a table with a time to live get their expiry while they are staged.

So it is a part of the decided change-log: whoever applies, and whoever replays, has the same one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.wal.bad_rows import CHANGES, StageSpec

VALUE, EXPIRING = b"+", b"e"
"""Flags of a stored value, docs/storage-format.md."""
VALUE_END = 2**31 - 1
FEW = 16
"""So many rows are taken one by one, which is cheaper than Arrow's kernels."""


def expiring(batches: Iterable[Any], spec: StageSpec) -> Iterator[Any]:
    """The batches, rows of tables with a time to live made to expire so long after the attempt's time.

    Vectorised from some rows on; batches without such rows pass as they are. Deletes do not expire.
    """
    ttls = {table: ttl_us for table, ttl_us in enumerate(spec.ttls_us) if ttl_us}
    for batch in batches:
        if not ttls:
            yield batch
            continue
        values = (_few if batch.num_rows <= FEW else _many)(batch, spec.at_us, ttls)
        yield pa.record_batch([batch["g"], batch["t"], batch["k"], values], schema=CHANGES)


def _many(batch: Any, at_us: int, ttls: Mapping[int, int]) -> Any:
    """The batch's values, with their expiry, in columns."""
    values = batch["v"]
    for table, ttl_us in ttls.items():
        mine = pc.and_(pc.equal(batch["t"], table), pc.equal(pc.binary_slice(values, 0, 1), VALUE))
        if pc.any(mine).as_py():
            values = pc.if_else(mine, _with_expiry(values, at_us + ttl_us), values)
    return values


def _few(batch: Any, at_us: int, ttls: Mapping[int, int]) -> Any:
    """The same, one by one."""
    heads = {table: _head(at_us + ttl_us) for table, ttl_us in ttls.items()}
    rows = zip(batch["t"].to_pylist(), batch["v"].to_pylist(), strict=True)
    return pa.array(
        [
            heads[table] + value[1:] if table in heads and value[:1] == VALUE else value
            for table, value in rows
        ],
        pa.binary(),
    )


def _head(expiry_us: int) -> bytes:
    return EXPIRING + struct.pack(">q", expiry_us)


def _with_expiry(values: Any, expiry_us: int) -> Any:
    head = pa.scalar(_head(expiry_us), pa.binary())
    rest = pc.binary_slice(values, 1, VALUE_END)
    return pc.binary_join_element_wise(head, rest, pa.scalar(b"", pa.binary()))
