"""Keyed update: a user's function is called with each key, its rows and its state.

It runs in the tasks of a first stage, which own the keys; its result and emitted rows become rows
of changes like those of any other call.

No pyspark is imported here.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.errors import BadRecordError, CorruptError, FunctionError
from tidegate.spark.state.call_deadline import Deadline
from tidegate.spark.state.key_rows import ROWS, KeyRows
from tidegate.spark.state.output_rows import OutputRows
from tidegate.spark.state.read import ReadState
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
from tidegate.wal.staging.quarantine import ROWS_MAX
from tidegate.wal.staging.spec import StageSpec
from tidegate.wal.staging.validate import MARKS, bad_rows
from tidegate.wal.value_flags import DELETE, VALUE

StateFunction = Callable[[Any, Iterator[dict[str, Any]], Any, Emit], Any]
"""``fn(key, rows, state, emit) -> new state``; see ``Transaction.update``."""


@dataclasses.dataclass(frozen=True)
class UpdateWork:
    """A task's parameters for one call's function. Small and plain, travels to tasks.

    ``table`` is the state's, ``start`` its start at the base version; ``rows`` describes the rows
    of the function, ``schemas`` the tables of the state and the outputs. ``call`` distinguishes the
    updates of one transaction; ``batch`` is for messages.
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

    def index(self, table: str) -> int:
        return self.spec.tables.index(table)


def run_function(
    batches: Iterable[Any],
    work: UpdateWork,
    fn: StateFunction,
    read: ReadState,
    task: int,
    migrate: Migrate | None = None,
) -> Iterator[Any]:
    """Run one task of the first stage: sorted rows in, the function's output out.

    ``migrate`` converts states of older versions, which only tables with such rows have. The output ends
    with marks for all tasks of the second stage; or, when the function or its output is refused, with the
    refusal. Raises: errors of the store.
    """
    output = OutputRows(task)
    with Deadline(work.deadline_s) as deadline:
        good = _without_bad_rows(batches, work, output)
        keyed = KeyRows(good, lambda rows: read(work.table, work.start, rows), deadline.waiting)
        calls = _Calls(work, fn, migrate, output, keyed, deadline)
        for key, state, rows in keyed:
            try:
                calls.call(key, state, rows)
            except (FunctionError, BadRecordError) as error:
                yield output.refusal(work.index(work.table), key, error)
                return
            yield from output.ready()
    yield from output.rest()
    yield output.marks(f"{work.call}/{task}", work.parallelism, work.spec.key_groups)


def _without_bad_rows(batches: Iterable[Any], work: UpdateWork, output: OutputRows) -> Iterator[Any]:
    """Yield usable rows. The others bypass the function: staging refuses or quarantines them.

    Only up to the number that makes staging refuse the batch: they wait in memory, and all null
    keys are in one task.
    """
    table = work.index(work.table)
    any_value = msgspec.structs.replace(work.spec, value_bytes_max=sys.maxsize)
    wanted = 1 if work.spec.quarantine is None else ROWS_MAX + 1
    for unchecked in batches:
        batch = unchecked.cast(ROWS)
        checked = batch.append_column("t", pa.repeat(pa.scalar(table, pa.int32()), len(batch)))
        bad = bad_rows(checked, any_value)
        for one in bad[:wanted]:
            row = batch["v"][one.row].as_py()
            output.add(table, batch["k"][one.row].as_py(), row if row.startswith(MARKS) else VALUE + row)
        wanted = max(0, wanted - len(bad))
        if bad:
            keep = np.ones(len(batch), dtype=bool)
            keep[[one.row for one in bad]] = False
            batch = batch.filter(pa.array(keep))
        yield batch


class _Calls:
    """The calls of the function for one key after the other, and the checks of its output."""

    def __init__(
        self,
        work: UpdateWork,
        fn: StateFunction,
        migrate: Migrate | None,
        output: OutputRows,
        rows: KeyRows,
        deadline: Deadline,
    ) -> None:
        self._work, self._fn, self._migrate, self._output = work, fn, migrate, output
        outputs = {name: of for name, of in work.schemas.items() if name != work.table}
        self._calls = UdfRunner(work.spec, outputs, output, deadline, lambda: rows.fault)
        schema = self._schema = work.schemas[work.table]
        self._table = work.index(work.table)
        self._values, self._encoder = values_of(schema), encoder_of(schema)
        self._decode_row = values_of(work.rows).decode
        self._key: Any = None

    def call(self, key: bytes, content: bytes | None, rows: Iterator[bytes]) -> None:
        """Process one key. Raises: FunctionError, BadRecordError, the function or its output is refused."""
        try:
            self._key = self._values.decode_key(key)
        except CorruptError as error:
            where = f"table {self._work.table}, key {key[:120]!r}, {self._work.batch}"
            raise BadRecordError(
                f"{where}: Python cannot represent this key: {error}; nothing was decided; filter such rows"
                " out"
            ) from None
        state = None if content is None else self._values.decode(content)
        if is_older := isinstance(state, OlderState):
            state = migrated(
                self._calls, self._where, self._migrate, state, state.state_version, self._schema
            )
        returned = self._calls.call(
            self._where, self._fn, self._key, self._decoded(rows), state, self._calls.emit
        )
        if returned is None:
            if content is not None:
                self._output.add(self._table, key, DELETE)
            return
        try:
            new = self._encoder.encode(returned)
        except BadRecordError as error:
            msg = f"{self._where()}: {name_of(self._fn)} returned a state that is none: {error}; {ADVICE}"
            raise BadRecordError(msg) from None
        if content is not None and not is_older and self._same(new, content):
            return
        check_size(self._where, "state", "value", new, self._work.spec.value_bytes_max)
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
