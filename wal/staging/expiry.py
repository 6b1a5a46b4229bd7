"""Expiry of rows of tables with a time to live, added while they are staged.

The expiry is therefore part of the decided change-log: every apply and every replay has the same
one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.wal.staging.spec import CHANGES, StageSpec
from tidegate.wal.value_flags import EXPIRING, VALUE, VALUE_END


def add_expiry(batches: Iterable[Any], spec: StageSpec) -> Iterator[Any]:
    """Add an expiry, the attempt's time plus the time to live, to rows of tables that have one.

    Vectorised. Batches without such rows pass unchanged. Deletes do not expire.
    """
    ttls = [(table, ttl_us) for table, ttl_us in enumerate(spec.ttls_us) if ttl_us]
    for batch in batches:
        values = batch["v"]
        for table, ttl_us in ttls:
            mine = pc.and_(pc.equal(batch["t"], table), pc.equal(pc.binary_slice(values, 0, 1), VALUE))
            if pc.any(mine).as_py():
                values = pc.if_else(mine, _with_expiry(values, spec.at_us + ttl_us), values)
        yield pa.record_batch([batch["g"], batch["t"], batch["k"], values], schema=CHANGES) if ttls else batch


def _with_expiry(values: Any, expiry_us: int) -> Any:
    head = pa.scalar(EXPIRING + struct.pack(">q", expiry_us), pa.binary())
    rest = pc.binary_slice(values, 1, VALUE_END)
    return pc.binary_join_element_wise(head, rest, pa.scalar(b"", pa.binary()))
