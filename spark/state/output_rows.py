"""The output of an update's first stage for the second: rows, and marks of the run that made them.

Rows are as those of any other call, with their table. A **mark** is sent to every task of the
second stage: the digest of the whole output of one task of the first stage. Spark runs a task again
when its output is lost, even after some tasks have read it; if all acks name the same digests, no
two tasks have read outputs of different runs. The rows that a first stage reads may have marks, too
(``session/marked_runs.py``): then it marks what it has read. A **refusal** is a row whose value has the
reason why the batch cannot be decided: so Spark does not retry work that cannot succeed.

No pyspark is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tidegate.base.decoders import json_decoder
from tidegate.errors import BY_NAME, BadRecordError, FunctionError, TidegateError
from tidegate.keys.groups import groups_of
from tidegate.wal.value_flags import REFUSED, RUN

OUTPUT_SCHEMA = pa.schema(
    [
        pa.field("g", pa.int32()),  # key group of a mark; null: the key's
        pa.field("t", pa.int32()),  # index of the table; MARK for a mark
        pa.field("k", pa.binary()),
        pa.field("a", pa.int32()),  # the task that made the row, and its number there:
        pa.field("n", pa.int64()),  # of several rows of one key the last one wins
        pa.field("v", pa.binary()),  # stored value with its flags byte
    ]
)
OUTPUT_DDL = "g int, t int, k binary, a int, n bigint, v binary"
MARK = -1
SEVERAL = "several"
"""The digest of a task of which one reader has read several runs, with other rows."""

BATCH_ROWS = 10_000
BATCH_BYTES = 4 * 1024 * 1024
CALL_BYTES_MAX = 256 * 1024 * 1024
"""The most output bytes of one call of a function: they are held until the call returns (I11)."""


class RunMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A mark: the task of a first stage, and the digest of its output: equal in every run of the task.

    One of a task's marks also has the number of its call, and the seconds that its function took in this run.
    """

    task: str
    digest: str
    call: int = -1
    seconds: float = 0.0


class OutputRows:
    """A collector of the output of one first-stage task, as record batches of ``OUTPUT_SCHEMA``."""

    def __init__(self, task: int) -> None:
        self._task = task
        self._tables: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes] = []
        self._bytes = 0
        self._count = 0
        self._full_batches: list[Any] = []
        self._full_bytes = 0
        self._digest = xxhash.xxh3_128()

    def add(self, table: int, key: bytes | None, value: bytes) -> None:
        """Add a row. Raises: FunctionError, one call made more than a task can hold."""
        self._tables.append(table)
        self._keys.append(key)
        self._values.append(value)
        self._bytes += len(value) + len(key or b"")
        if len(self._keys) >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
            self._pack()
            if self._full_bytes > CALL_BYTES_MAX:
                mib = CALL_BYTES_MAX >> 20
                raise FunctionError(f"one call emitted more than {mib} MiB: emit less, or upsert such rows")

    def ready(self) -> Iterator[Any]:
        """Yield the full batches; called between two calls."""
        batches, self._full_batches, self._full_bytes = self._full_batches, [], 0
        yield from batches

    def rest(self) -> Iterator[Any]:
        """Yield the remaining rows, at the end."""
        self._pack()
        yield from self.ready()

    def marks(
        self,
        name: object,
        task: int,
        parallelism: int,
        key_groups: int,
        read: Mapping[str, RunMark],
        took: tuple[int, float],
    ) -> Any:
        """Return the digest of the whole output, for each task of the second stage.

        ``read`` are the marks that this task has read: each task of the call has to have read the same.
        ``took``: the call's number, and its function's seconds, which one task of the second stage gets.
        """
        marks = [RunMark(f"{name}/{task}", self._digest.hexdigest())]
        if read:
            digests = sorted((mark.task, mark.digest) for mark in read.values())
            marks.append(
                RunMark(f"{name}, its rows", xxhash.xxh3_128_hexdigest(msgspec.json.encode(digests)))
            )
        groups = first_groups(parallelism, key_groups) * len(marks)
        values = [mark_value(mark) for mark in marks for _ in range(parallelism)]
        values[task % parallelism] = mark_value(RunMark(marks[0].task, marks[0].digest, *took))
        return self._batch(groups, [MARK] * len(groups), [b""] * len(groups), values)

    def refusal(self, table: int, key: bytes, error: TidegateError) -> Any:
        """Return a refusal, in place of all output: the reason why this barrier cannot be decided."""
        return self._batch([None], [table], [key], [refused_value(error)])

    def _pack(self) -> None:
        if not self._keys:
            return
        self._full_batches.append(
            self._batch([None] * len(self._keys), self._tables, self._keys, self._values)
        )
        self._full_bytes += self._bytes
        # The division into batches follows from the rows alone, so this is a digest of the rows.
        sizes = [len(key or b"") for key in self._keys], [len(value) for value in self._values]
        for numbers in (self._tables, *sizes):
            self._digest.update(np.array(numbers, np.int64).tobytes())
        self._digest.update(b"".join(key or b"" for key in self._keys))
        self._digest.update(b"".join(self._values))
        self._tables, self._keys, self._values, self._bytes = [], [], [], 0

    def _batch(self, groups: Any, tables: Any, keys: Any, values: Any) -> Any:
        numbers = range(self._count, self._count + len(keys))
        self._count += len(keys)
        columns = (groups, tables, keys, [self._task] * len(keys), numbers, values)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, OUTPUT_SCHEMA, strict=True)]
        return pa.record_batch(arrays, schema=OUTPUT_SCHEMA)


def first_groups(parallelism: int, key_groups: int) -> list[int]:
    """Return the first key group of each task, by which marks are sent to it."""
    return [groups_of(reader, parallelism, key_groups).start for reader in range(parallelism)]


def mark_value(mark: RunMark) -> bytes:
    """Return the value of a mark."""
    return RUN + msgspec.json.encode(mark)


def refused_value(error: TidegateError) -> bytes:
    """Return the value of a refusal."""
    text = str(error).encode(errors="backslashreplace").decode()  # a user's may have half a surrogate pair
    return REFUSED + msgspec.json.encode([type(error).__name__, text])


def strip_marks(batches: Iterable[Any], marks: dict[str, RunMark], value: str = "v") -> Iterator[Any]:
    """Yield batches without marks; put these into ``marks``, by the tasks before. ``value`` names the column.

    Raises: FunctionError, BadRecordError, there is a refusal; nothing was decided.
    """
    for batch in batches:
        refused = pc.index(pc.fill_null(pc.starts_with(batch[value], REFUSED), False), True).as_py()  # noqa: FBT003
        if refused >= 0:
            name, message = msgspec.json.decode(batch[value][refused].as_py()[len(REFUSED) :])
            raise BY_NAME.get(name, BadRecordError)(message)
        is_mark = pc.fill_null(pc.starts_with(batch[value], RUN), False)  # noqa: FBT003
        if pc.any(is_mark).as_py():
            for content in batch[value].filter(is_mark).to_pylist():
                mark = json_decoder(RunMark).decode(content[len(RUN) :])
                if marks.setdefault(mark.task, mark).digest != mark.digest:
                    marks[mark.task] = RunMark(mark.task, SEVERAL)
            batch = batch.filter(pc.invert(is_mark))  # noqa: PLW2901 - the same rows, without the marks
        yield batch
