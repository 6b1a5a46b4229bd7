"""Keyed update: a user's function is called with each key, its rows and its state.

It runs in the tasks of a first stage, which own the keys; its result and emitted rows become rows
of changes like those of any other call.

No pyspark is imported here.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.errors import BadRecordError, CorruptError, FunctionError
from tidegate.keys.groups import groups_of
from tidegate.spark.state.call_deadline import Deadline
from tidegate.spark.state.key_rows import ROWS, KeyRows
from tidegate.spark.state.output_rows import OutputRows, RunMark, strip_marks
from tidegate.spark.state.read import ReadState
from tidegate.spark.state.timeouts import TimeoutQueue, TimeoutWork
from tidegate.spark.state.udf_runner import (
    ADVICE,
    Emit,
    Migrate,
    UdfRunner,
    check_size,
    migrated,
    name_of,
)
from tidegate.values.decode import OlderState, values_of
from tidegate.values.encode import encoder_of
from tidegate.wal.record import TableSchema
from tidegate.wal.staging.own_tables import due_table
from tidegate.wal.staging.quarantine import ROWS_MAX
from tidegate.wal.staging.spec import StageSpec
from tidegate.wal.staging.validate import MARKS, bad_rows
from tidegate.wal.value_flags import DELETE, VALUE

StateFunction = Callable[[Any, Iterator[dict[str, Any]], Any, Emit], Any]
"""``fn(key, rows, state, emit) -> new state``; see ``Transaction.update``."""
TimeoutFunction = Callable[[Any, Any, Emit], Any]
"""``on_timeout(key, state, emit) -> new state``; see ``Transaction.update``."""


class Functions(NamedTuple):
    """The functions of a call: ``migrate`` for states of older versions, ``on_timeout`` with a timeout."""

    fn: StateFunction
    migrate: Migrate | None = None
    on_timeout: TimeoutFunction | None = None


@dataclasses.dataclass(frozen=True)
class UpdateWork:
    """A task's parameters for one call's function. Small and plain, travels to tasks.

    ``table`` is the state's, ``start`` its start at the base version; ``rows`` describes the rows
    of the function, ``schemas`` the tables of the state and the outputs. ``call`` distinguishes the
    updates of one transaction; ``batch`` is for messages. ``timeout`` None: states have none.
    """

    spec: StageSpec
    call: int
    table: str
    start: int
    rows: TableSchema
    schemas: dict[str, TableSchema]
    batch: str
    deadline_s: float
    parallelism: int
    timeout: TimeoutWork | None = None

    @property
    def cached_tables(self) -> list[str]:
        """The tables whose rows are read by keys of the task's own key groups."""
        return [self.table] if self.timeout is None else [self.table, due_table(self.table)]

    def index(self, table: str) -> int:
        return self.spec.tables.index(table)


def run_function(
    batches: Iterable[Any],
    work: UpdateWork,
    functions: Functions,
    read: ReadState,
    task: int,
    read_stored: ReadState | None = None,
) -> Iterator[Any]:
    """Run one task of the first stage: sorted rows in, the functions' output out.

    ``read`` reads rows of the task's own key groups; ``read_stored`` any rows, which only timeouts need. The
    output ends with marks for all tasks of the second stage; or, when a function or its output is refused,
    with the refusal. Raises: errors of the store.
    """
    output = OutputRows(task)
    queue = None
    if work.timeout is not None and read_stored is not None:
        stride, groups = work.spec.stride(work.table), groups_of(task, work.parallelism, work.spec.key_groups)
        groups = range(-(-groups.start // stride) * stride, groups.stop, stride)
        queue = TimeoutQueue(work.timeout, work.spec, work.table, groups, read, read_stored, output)

    def read_state(rows: Any) -> Any:
        if queue is not None:
            queue.read_dues(rows)
        return read(work.table, work.start, rows)

    marks: dict[str, RunMark] = {}
    batches = strip_marks(batches, marks)
    with Deadline(work.deadline_s) as deadline:
        keyed = KeyRows(_without_bad_rows(batches, work, output), read_state, deadline.waiting)
        calls = _Calls(work, functions, output, keyed, deadline)
        key = b""
        try:
            if queue is not None:
                queue.take()
            for key, state, rows in keyed:
                has_state = calls.call(key, state, rows)
                if queue is not None:
                    queue.touched(key, has_state=has_state)
                yield from output.ready()
            if queue is not None:
                for key, state in queue.timed_out(work.table, work.start):
                    calls.time_out(key, state)
                    yield from output.ready()
                queue.write()
        except (FunctionError, BadRecordError) as error:
            yield output.refusal(work.index(work.table), key, error)
            return
    yield from output.rest()
    took = work.call, deadline.spent
    yield output.marks(work.call, task, work.parallelism, work.spec.key_groups, marks, took)


def _without_bad_rows(batches: Iterable[Any], work: UpdateWork, output: OutputRows) -> Iterator[Any]:
    """Yield usable rows. The others bypass the function: staging refuses or quarantines them.

    Only up to the number that makes staging refuse the batch: they wait in memory, and all null
    keys are in one task.
    """
    table = work.index(work.table)
    any_value = msgspec.structs.replace(work.spec, value_bytes_max=sys.maxsize)
    limit = 1 if work.spec.quarantine is None else ROWS_MAX + 1
    for unchecked in batches:
        batch = unchecked.cast(ROWS)
        checked = batch.append_column("t", pa.repeat(pa.scalar(table, pa.int32()), len(batch)))
        bad = bad_rows(checked, any_value)
        for one in bad[:limit]:
            row = batch["v"][one.row].as_py()
            output.add(table, batch["k"][one.row].as_py(), row if row.startswith(MARKS) else VALUE + row)
        limit = max(0, limit - len(bad))
        if bad:
            keep = np.ones(len(batch), dtype=bool)
            keep[[one.row for one in bad]] = False
            batch = batch.filter(pa.array(keep))
        yield batch


class _Calls:
    """The calls of the functions for one key after the other, and the checks of their output."""

    def __init__(
        self,
        work: UpdateWork,
        functions: Functions,
        output: OutputRows,
        rows: KeyRows,
        deadline: Deadline,
    ) -> None:
        self._work, self._functions, self._output = work, functions, output
        outputs = {name: of for name, of in work.schemas.items() if name != work.table}
        self._calls = UdfRunner(work.spec, outputs, output, deadline, lambda: rows.fault)
        schema = self._schema = work.schemas[work.table]
        self._table = work.index(work.table)
        self._values, self._encoder = values_of(schema), encoder_of(schema)
        self._decode_row = values_of(work.rows).decode
        self._key: Any = None
        self._is_older = False

    def call(self, key: bytes, content: bytes | None, rows: Iterator[bytes]) -> bool:
        """Process the rows of one key; return whether it has a state now.

        Raises: FunctionError, BadRecordError, the function or its output is refused.
        """
        fn, state = self._functions.fn, self._begin(key, content)
        returned = self._calls.call(self._where, fn, self._key, self._decoded(rows), state, self._calls.emit)
        self._write(key, content, fn, returned)
        return returned is not None

    def time_out(self, key: bytes, content: bytes) -> None:
        """Process the state of a key whose time is over. Raises: as ``call``."""
        on_timeout, state = self._functions.on_timeout, self._begin(key, content)
        assert on_timeout is not None, "a timeout without it is refused before the batch"
        returned = None
        if state is not None:  # a migration may remove it
            returned = self._calls.call(self._where, on_timeout, self._key, state, self._calls.emit)
        self._write(key, content, on_timeout, returned)

    def _begin(self, key: bytes, content: bytes | None) -> Any:
        """Return the state with which a function is called for this key."""
        try:
            self._key = self._values.decode_key(key)
        except CorruptError as error:
            where = f"table {self._work.table}, key {key[:120]!r}, {self._work.batch}"
            raise BadRecordError(
                f"{where}: Python cannot represent this key: {error}; nothing was decided; filter such rows"
                " out"
            ) from None
        state = None if content is None else self._values.decode(content)
        self._is_older = isinstance(state, OlderState)
        if not isinstance(state, OlderState):
            return state
        migrate = self._functions.migrate
        return migrated(self._calls, self._where, migrate, state, state.state_version, self._schema)

    def _write(self, key: bytes, content: bytes | None, fn: Callable[..., Any], returned: Any) -> None:
        if returned is None:
            if content is not None:
                self._output.add(self._table, key, DELETE)
            return
        try:
            new = self._encoder.encode(returned)
        except BadRecordError as error:
            msg = f"{self._where()}: {name_of(fn)} returned a state that is none: {error}; {ADVICE}"
            raise BadRecordError(msg) from None
        if content is not None and not self._is_older and self._same(new, content):
            return
        check_size(self._where, "state", "value", new, self._work.spec)
        self._output.add(self._table, key, VALUE + new)

    def _same(self, new: bytes, content: bytes) -> bool:
        """Compare with a fresh decode of the stored bytes, encoded again.

        The function may have mutated its argument, and old bytes may use another spelling.
        """
        return new == content or new == self._encoder.encode(self._values.decode(content))

    def _decoded(self, rows: Iterator[bytes]) -> Iterator[dict[str, Any]]:
        for content in rows:
            try:
                row = self._decode_row(content)
            except CorruptError as error:
                what = f"a row has a value that Python cannot represent: {error}"
                msg = f"{self._where()}: {what}; nothing was decided"
                raise self._calls.refuse(BadRecordError(msg)) from None
            yield row

    def _where(self) -> str:
        key = repr(self._key)
        key = key if len(key) <= 120 else f"{key[:120]}..."
        return f"table {self._work.table}, key {key}, {self._work.batch}"
