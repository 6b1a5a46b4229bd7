"""The queues of timeouts of a copy, made of the due times of its keys.

A row of a queue names its key group, which is another one in the copy. A key's row of ``_due.<table>`` names
the time by which the queue has it, so the whole queue follows from these rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from tidegate.base.decoders import json_decoder
from tidegate.base.names import QUEUE
from tidegate.committers.barrier import value_bytes_max
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.transfer.dealt_rows import TableRows
from tidegate.errors import CorruptError
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.rules.reads import GroupedRows, values_at, windows
from tidegate.wal.record import UNREADABLE
from tidegate.wal.staging.due_queue import TIMES, Due, Parts, parts_of, place_key
from tidegate.wal.staging.own_tables import due_table
from tidegate.wal.value_flags import VALUE


def queue_rows(new: Coordinator, entry: CatalogEntry, queues: tuple[str, ...]) -> Iterator[TableRows]:
    """Yield the rows of these queues, by the due times at a version of the copy; a key group at a time.

    Raises: CorruptError: a due time cannot be read.
    """
    for index, queue in enumerate(queues):
        dues = due_table(queue.removeprefix(f"{QUEUE}."))
        if dues not in entry.tables:
            continue
        start = entry.tables[dues].start
        for groups in windows(range(new.folded.key_groups)):
            rows = GroupedRows(new.store.scan_groups_stored(dues, groups, entry.version, start))
            for group in groups:
                by_time: dict[int, list[bytes]] = {}
                for batch in rows.take(group):
                    keys = batch["key"].to_pylist()
                    values = values_at(new.store.where, dues, keys, batch["value"], entry.decided_at_us)
                    live = values.is_valid()
                    for key, value in zip(
                        batch["key"].filter(live).to_pylist(), values.filter(live).to_pylist(), strict=True
                    ):
                        by_time.setdefault(_queued_us(new, dues, value), []).append(key)
                if by_time:
                    yield _rows_of(index, group, by_time, value_bytes_max(new))


def _queued_us(new: Coordinator, table: str, value: bytes) -> int:
    try:
        return json_decoder(Due).decode(value).queued_us
    except UNREADABLE as error:
        raise CorruptError(
            f"{new.store.where}: table {table} has a row that cannot be read, {error}; run `tidegate verify`"
        ) from None


def _rows_of(index: int, group: int, by_time: dict[int, list[bytes]], bytes_max: int) -> TableRows:
    keys, values, times = [], [], []
    for due_us, queued in sorted(by_time.items()):
        parts = list(parts_of(queued, bytes_max))
        for part, some in enumerate(parts):
            keys.append(place_key(group, due_us, part))
            values.append(VALUE + msgspec.msgpack.encode(some))
        times.append(Parts(due_us, 0, len(parts)))
    keys.append(place_key(group, *TIMES))
    values.append(VALUE + msgspec.msgpack.encode(times))
    return TableRows(index, pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
