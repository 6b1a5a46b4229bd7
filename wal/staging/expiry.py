"""Rows of a table with a time to live get their expiry while they are staged.

So it is a part of the decided change-log: whoever applies, and whoever replays, has the same one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.wal.staging.bad_rows import CHANGES, StageSpec
from tidegate.wal.value_flags import EXPIRING, VALUE, VALUE_END


def expiring(batches: Iterable[Any], spec: StageSpec) -> Iterator[Any]:
    """The batches, rows of tables with a time to live made to expire so long after the attempt's time.

    Vectorised; batches without such rows pass as they are. Deletes do not expire.
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
