"""The timeouts of a keyed state: its keys in a queue by due time, which is stored as ordinary rows.

``_due.<table>`` has a row for each key: its due time, and the time by which the queue has it.
``_due_at.<table>`` is the queue: a row has some keys of one key group and one time. The row
(group, -1, 0) lists the times of its group, each with the numbers of its rows.

Due times are rounded up to a 64th of the timeout. So a group has few times, and the row of a key that always
has new rows is written once in a 64th. A key keeps its place in the queue while its due time moves: it is
moved once that place is due. A place counts only if the key's row names its time.

No pyspark is imported here.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from tidegate.base.decoders import json_decoder, msgpack_decoder
from tidegate.errors import CorruptError
from tidegate.keys.groups import key_group, key_group_of_each
from tidegate.spark.state.output_rows import OutputRows
from tidegate.spark.state.read import ReadChunks, ReadState
from tidegate.spark.state.udf_runner import check_size
from tidegate.wal.record import UNREADABLE
from tidegate.wal.staging.due_queue import TIMES, Due, Parts, parts_of, place_key
from tidegate.wal.staging.own_tables import due_table, queue_table
from tidegate.wal.staging.spec import StageSpec
from tidegate.wal.value_flags import DELETE, VALUE

STEPS = 64
"""The steps of a timeout to which due times are rounded up."""
DUE_MAX = 100_000
"""The keys that a task takes from the queue in one batch: they are held in memory."""
PENDING_BYTES = 4 * 1024 * 1024
"""The bytes of keys that wait in memory for a row of the queue."""
READ_AT_ONCE = 1_000
PARTS_AT_ONCE = 16
Kind = TypeVar("Kind")


@dataclasses.dataclass(frozen=True)
class TimeoutWork:
    """The timeout of a state, with the starts of its two tables at the base version. Travels to tasks."""

    timeout_us: int
    due_start: int
    queue_start: int

    @property
    def step_us(self) -> int:
        return max(1, self.timeout_us // STEPS)

    @property
    def latest_us(self) -> int:
        """The longest time from a key's last rows to its due time."""
        return self.timeout_us + self.step_us

    def due_us(self, at_us: int) -> int:
        """Return the due time of a key that has rows in an attempt of this time."""
        return -(-(at_us + self.timeout_us) // self.step_us) * self.step_us


class TimeoutQueue:
    """The queue in one task, of its key groups. ``take`` is called first, ``write`` last.

    ``read`` reads rows by keys of these key groups, ``read_stored`` any rows, at the base version.
    """

    def __init__(
        self,
        work: TimeoutWork,
        spec: StageSpec,
        table: str,
        groups: Sequence[int],
        read: ReadState,
        read_stored: ReadState,
        output: OutputRows,
    ) -> None:
        self._work, self._spec, self._output, self._groups = work, spec, output, groups
        self._read, self._read_stored = read, read_stored
        self._due, self._queue, self._stride = due_table(table), queue_table(table), spec.stride(table)
        self._due_index, self._queue_index = map(spec.tables.index, (self._due, self._queue))
        self._next_us = work.due_us(spec.at_us)
        self._times: dict[int, dict[int, Parts]] = {}
        self._changed: set[int] = set()
        self._taken: dict[tuple[int, bytes], None] = {}
        self._read_dues: deque[bytes | None] = deque()
        self._pending: dict[tuple[int, int], list[bytes]] = {}
        self._pending_bytes = 0

    # -- before and during the batch's own keys ---------------------------------------------------

    def take(self) -> None:
        """Take the due keys from the queue, the oldest first, up to ``DUE_MAX`` of them.

        Raises: CorruptError, a row of the queue is missing or cannot be right; errors of the store.
        """
        for index in range(0, len(self._groups), READ_AT_ONCE):
            some = self._groups[index : index + READ_AT_ONCE]
            for group, content in zip(some, self._stored([(group, *TIMES) for group in some]), strict=True):
                listed = [] if content is None else self._decoded(content, list[Parts])
                self._times[group] = {parts.due_us: parts for parts in listed}
        due = sorted(
            (parts.due_us, group, parts.first, parts.end)
            for group, times in self._times.items()
            for parts in times.values()
            if self._is_due(parts.due_us)
        )
        places = ((group, due_us, part) for due_us, group, first, end in due for part in range(first, end))
        while len(self._taken) < DUE_MAX and (some_places := list(islice(places, PARTS_AT_ONCE))):
            for place, content in zip(some_places, self._stored(some_places), strict=True):
                if len(self._taken) < DUE_MAX:
                    self._take_part(*place, content)

    def _take_part(self, group: int, due_us: int, part: int, content: bytes | None) -> None:
        if content is None:
            raise self._corrupt(f"the row {(group, due_us, part)} is not there")
        keys = self._decoded(content, list[bytes])
        if {*key_group_of_each(keys, self._spec.key_groups, self._stride)} - {group}:
            raise self._corrupt(f"the row {(group, due_us, part)} has keys of other key groups")
        self._taken |= dict.fromkeys((due_us, key) for key in keys)
        self._put(group, due_us, part, DELETE)
        parts = self._times[group][due_us]
        parts.first = part + 1
        if parts.first == parts.end:
            del self._times[group][due_us]
        self._changed.add(group)

    def read_dues(self, rows: Any) -> None:
        """Read the due times of the keys of these rows, in the order in which they will be ``touched``."""
        self._read_dues.extend(self._read(self._due, self._work.due_start, rows).to_pylist())

    def touched(self, key: bytes, *, has_state: bool) -> None:
        """Move the due time of a key that has rows in this batch. ``has_state``: whether it is kept."""
        old = self._due_of(self._read_dues.popleft())
        was_taken = old is not None and (old.queued_us, key) in self._taken
        if old is not None and was_taken:
            del self._taken[old.queued_us, key]
        if not has_state:
            if was_taken:
                self._output.add(self._due_index, key, DELETE)
            return
        stays = old is not None and not was_taken and old.queued_us <= self._next_us
        queued_us = old.queued_us if old is not None and stays else self._next_us
        if not stays:
            self._append(key, queued_us)
        if old != (new := Due(self._next_us, queued_us)):
            self._put_due(key, new)

    # -- after them ---------------------------------------------------------------------------------

    def timed_out(self, table: str, start: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the taken keys that are due, with their states; queue those again that are due later."""
        taken, chunks = iter(self._taken), ReadChunks()
        while some := list(islice(taken, READ_AT_ONCE)):
            for rows in chunks.of(self._rows(list(self._sorted_out(some)), self._stride)):
                states = chunks.counted(self._read(table, start, rows)).to_pylist()
                for key, state in zip(rows["k"].to_pylist(), states, strict=True):
                    self._output.add(self._due_index, key, DELETE)
                    if state is not None:
                        yield key, state

    def _sorted_out(self, taken: Sequence[tuple[int, bytes]]) -> Iterator[bytes]:
        """Yield the keys that are due; move the others to their times. Some are in the queue elsewhere."""
        keys = list(dict.fromkeys(key for _, key in taken))
        stored = self._read(self._due, self._work.due_start, self._rows(keys, self._stride)).to_pylist()
        dues = dict(zip(keys, map(self._due_of, stored), strict=True))
        for queued_us, key in taken:
            of_key = dues[key]
            if of_key is None or of_key.queued_us != queued_us:
                continue
            if self._is_due(of_key.due_us):
                yield key
            else:
                self._append(key, of_key.due_us)
                self._put_due(key, Due(of_key.due_us, of_key.due_us))

    def write(self) -> None:
        """Write the queue's new rows, and the lists of the groups that changed."""
        self._flush()
        for group in sorted(self._changed):
            times = sorted(self._times[group].values(), key=lambda parts: parts.due_us)
            self._put(group, *TIMES, VALUE + msgspec.msgpack.encode(times) if times else DELETE)

    # -- rows of the two tables ---------------------------------------------------------------------

    def _is_due(self, due_us: int) -> bool:
        return due_us <= self._spec.at_us

    def _append(self, key: bytes, due_us: int) -> None:
        self._pending.setdefault((key_group(key, self._spec.key_groups, self._stride), due_us), []).append(
            key
        )
        self._pending_bytes += len(key)
        if self._pending_bytes >= PENDING_BYTES:
            self._flush()

    def _flush(self) -> None:
        for (group, due_us), keys in sorted(self._pending.items()):
            parts = self._times[group].setdefault(due_us, Parts(due_us, 0, 0))
            for some in parts_of(keys, self._spec.value_bytes_max):
                self._put(group, due_us, parts.end, VALUE + msgspec.msgpack.encode(some))
                parts.end += 1
            self._changed.add(group)
        self._pending, self._pending_bytes = {}, 0

    def _put_due(self, key: bytes, due: Due) -> None:
        self._output.add(self._due_index, key, VALUE + msgspec.json.encode(due))

    def _put(self, group: int, due_us: int, part: int, value: bytes) -> None:
        def where() -> str:
            return f"table {self._queue}, {self._spec.batch}"

        # Never quarantined: a key that is not in the queue would never time out.
        key = place_key(group, due_us, part)
        check_size(where, "key", "key", key, self._spec)
        check_size(where, "value", "value", value[1:], self._spec)
        self._output.add(self._queue_index, key, value)

    def _rows(self, keys: Sequence[bytes], stride: int) -> Any:
        groups = key_group_of_each(keys, self._spec.key_groups, stride)
        return pa.record_batch({"g": pa.array(groups, pa.int32()), "k": pa.array(keys, pa.binary())})

    def _stored(self, places: Sequence[tuple[int, int, int]]) -> list[bytes | None]:
        rows = self._rows([place_key(*place) for place in places], self._spec.stride(self._queue))
        values: list[bytes | None] = self._read_stored(self._queue, self._work.queue_start, rows).to_pylist()
        return values

    def _due_of(self, content: bytes | None) -> Due | None:
        if content is None:
            return None
        try:
            return json_decoder(Due).decode(content)
        except UNREADABLE as error:
            raise self._corrupt(f"a row of {self._due} cannot be read, {error}") from None

    def _decoded(self, content: bytes, kind: type[Kind]) -> Kind:
        try:
            return msgpack_decoder(kind).decode(content)
        except UNREADABLE as error:
            raise self._corrupt(f"a row cannot be read, {error}") from None

    def _corrupt(self, what: str) -> CorruptError:
        return CorruptError(f"table {self._queue}: {what}; run `tidegate verify`")
