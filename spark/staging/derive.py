"""Derived tables in a version: what its changes add to groups and take from them, and the groups' new rows.

A staging task sees each row that it writes once, after every refusal (``Watch``). It reads the row that was
there at the base version, and adds up both sides by group. A second task, which owns the group's key group,
adds the parts of all staging tasks to the group's row at the base version, and stages the new row. Its frames
join those of the staging task of the same number, so that a version has one ack per task.

Each staging task names its run to every second task. If Spark runs it again, the acks name different runs,
and nothing is decided: rows and their parts are of one run. No pyspark is imported here.
"""

from __future__ import annotations

import dataclasses
import functools
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import BadRecordError, CorruptError, TidegateError
from tidegate.keys.groups import decode_key, groups_of, key_group_of_each
from tidegate.sinks.rules.layout import payloads
from tidegate.spark.staging.derived_parts import (
    WIDE,
    changes_of,
    packed,
    packed_entries,
    parts_of,
    totals_in,
    unpacked,
    zeros,
)
from tidegate.spark.state.read import ReadChunks, ReadState
from tidegate.spark.state.reduce import ReducedColumn, arrow_type, parse_state
from tidegate.wal.record import Definition
from tidegate.wal.staging.acks import Ack, CallShare, Refusal, decode_ack, encode_ack
from tidegate.wal.staging.changelog import Staging, stage_task
from tidegate.wal.staging.derived import STAGING_RUN, DerivedTable
from tidegate.wal.staging.derived_order import Order
from tidegate.wal.staging.spec import CHANGES, StageSpec

STAGED = pa.schema(
    [
        pa.field("ack", pa.binary()),  # a staging task's ack, in its own first key group
        pa.field("g", pa.int32()),  # the key group of a group's key, or the first one of the task for a mark
        pa.field("t", pa.int32()),  # index of the derived table, or ENTRIES - index; MARK for a mark
        pa.field("k", pa.binary()),  # key of the group; the name of the task
        pa.field("v", pa.binary()),  # the group's totals as ``packed``, or an entry; the name of the run
    ]
)
"""The output of a staging task of a version with derived tables."""
STAGED_DDL = "ack binary, g int, t int, k binary, v binary"
MARK, ENTRIES = -1, -2
PARTS = pa.schema([STAGED.field(name) for name in "gkv"])
"""The changes of groups by a staging task: key group, key and packed totals of each.

Of an entry ``v`` is the number of its order, the change of its rows, and its JSON, with commas.
"""
ROWS_AT_ONCE = 10_000
KEPT_ROWS = 100_000
"""The rows that a task keeps before they are added up by group."""


@dataclasses.dataclass(frozen=True)
class DerivedWork:
    """A derived table in a version: indexes and starts at the base version of it and of its base.

    ``is_new``: the version makes it again, from its own rows alone. ``step`` is the number of its step.
    """

    table: DerivedTable
    index: int
    start: int
    base_index: int
    base_start: int
    base_key_types: tuple[str, ...]
    base_key: tuple[str, ...]
    is_new: bool
    step: int

    @property
    def base(self) -> str:
        return self.table.definition.of


def mend_of(work: DerivedWork) -> str:
    """Return what to do where a row of the base cannot be taken out of its group."""
    return (
        f"drop the derived tables of table {work.base} (txn.drop_table) in a batch that deletes that row or"
        " writes it again, with a sink whose derived= leaves them out; then declare them again"
    )


class _Keyed(NamedTuple):
    name: str
    key_types: tuple[str, ...]


class Deltas:
    """The changes of one staging task, by group. ``read_by`` is called first."""

    _read: ReadState

    def __init__(self, works: Sequence[DerivedWork], spec: StageSpec) -> None:
        self._works, self._spec = works, spec
        self._chunks = ReadChunks()
        self._kept = {work.index: [_Kept(work) for _ in (None, *work.table.orders)] for work in works}
        self._seen: dict[str, list[tuple[Any, Any]]] = {work.base: [] for work in works}

    def read_by(self, read: ReadState) -> None:
        """Read the task's tables at the base version by ``read`` from here on."""
        self._read = read

    def remembering(self, read: ReadState) -> ReadState:
        """Return a read that also keeps the base tables' rows until they are watched: each is read once."""

        def remember(table: str, start: int, rows: Any) -> Any:
            values = read(table, start, rows)
            if table in self._seen:
                self._seen[table].append((rows["k"], values))
            return values

        return remember

    def watch(self, batch: Any) -> None:
        """Add a batch of changes that is cut into frames."""
        for base_index in sorted({work.base_index for work in self._works}):
            mine = pc.equal(batch["t"], base_index)
            if not pc.any(mine).as_py():
                continue
            works = [work for work in self._works if work.base_index == base_index]
            rows = batch if pc.all(mine).as_py() else batch.filter(mine)
            for part in self._chunks.of(rows):
                self._add(works, part)
            self._seen[works[0].base].clear()

    def _add(self, works: Sequence[DerivedWork], rows: Any) -> None:
        first = works[0]
        new = payloads(rows["v"], self._spec.at_us)
        old = self._chunks.counted(self._old(first, rows))
        same = pc.or_(pc.fill_null(pc.equal(old, new), False), pc.and_(pc.is_null(old), pc.is_null(new)))  # noqa: FBT003
        changed = pc.invert(same)
        rows, old, new = (each.filter(changed) for each in (rows, old, new))
        if not len(rows):
            return
        sides = [(-1, self._columns(works, rows["k"], old)), (1, self._columns(works, rows["k"], new))]
        for work in works:
            for sign, columns in sides:
                of_totals, *of_orders = self._kept[work.index]
                of_totals.add(_signed(work, columns, sign))
                for order, changes in zip(work.table.orders, of_orders, strict=True):
                    changes.add(_in_order(work, order, columns, sign))

    def _old(self, work: DerivedWork, rows: Any) -> Any:
        """Return the rows at the base version: those that the merge has read, and others from the store."""
        seen = self._seen[work.base]
        if work.is_new:
            return pa.nulls(len(rows), pa.binary())
        if not seen:
            return self._read(work.base, work.base_start, rows).cast(pa.binary())
        keys = pa.concat_arrays([keys.cast(pa.binary()) for keys, _ in seen])
        values = pa.concat_arrays([values.cast(pa.binary()) for _, values in seen])
        places = pc.index_in(rows["k"], keys)
        old = values.take(places)
        unread = pc.is_null(places)
        if not pc.any(unread).as_py():
            return old
        others = self._read(work.base, work.base_start, rows.filter(unread)).cast(pa.binary())
        return pc.replace_with_mask(old, unread, others)

    def _columns(self, works: Sequence[DerivedWork], keys: Any, values: Any) -> dict[str, Any]:
        """Return the used columns of one side, by name, null without a row; ``""``: there is one."""
        first = works[0]
        fields = {name: each for work in works for name, each in work.table.fields.items()}
        types = {name: each for work in works for name, each in work.table.types.items()}
        reduced = [ReducedColumn(field, types[name], "last") for name, field in fields.items()]
        of = _Keyed(first.base, first.base_key_types)
        columns = {}
        if reduced:
            columns = dict(zip(fields, parse_state(of, keys, values, reduced, mend_of(first)), strict=True))
        if of_key := [name for name in types if name not in fields]:
            decoded: list[Any] = [decode_key(key, first.base_key_types) for key in keys.to_pylist()]
            tuples = decoded if len(first.base_key) > 1 else [(key,) for key in decoded]
            for name in of_key:
                place = first.base_key.index(name)
                cells = [key[place] for key in tuples]
                columns[name] = pa.array(cells, arrow_type(types[name]))
        columns[""] = values.is_valid()
        return columns

    def rows(self, ack: Ack, tasks: int) -> Iterator[Any]:
        """Yield the output of the staging task: its ack, the mark of its run, and the parts by group."""
        key_groups = self._spec.key_groups
        firsts = [groups_of(task, tasks, key_groups).start for task in range(tasks)]
        run = [f"{STAGING_RUN}{ack.task}".encode()] * tasks, [ack.task_attempt.encode()] * tasks
        yield _staged([encode_ack(ack)], [firsts[ack.task]], [MARK], [None], [None])
        yield _staged([None] * tasks, firsts, [MARK] * tasks, *run)
        for index, parts in self.parts():
            rest = pa.nulls(len(parts), pa.binary()), pa.repeat(pa.scalar(index, pa.int32()), len(parts))
            yield pa.record_batch([rest[0], parts["g"], rest[1], parts["k"], parts["v"]], schema=STAGED)

    def parts(self) -> Iterator[tuple[int, Any]]:
        """Yield the index of each derived table, or that of its entries, and batches of ``PARTS``."""
        for work in self._works:
            of_totals, *of_orders = self._kept[work.index]
            for batch in of_totals.added():
                totals = _unless_zero(batch)
                yield work.index, self._parts(work, totals, packed(totals))
            for place, changes in enumerate(of_orders):
                for batch in changes.added():
                    changed = _unless_zero(batch)
                    yield ENTRIES - work.index, self._parts(work, changed, packed_entries(place, changed))

    def _parts(self, work: DerivedWork, batch: Any, values: Any) -> Any:
        keys = _keys_of(work.table, batch)
        stride = self._spec.stride(work.table.name)
        groups = key_group_of_each(keys.to_pylist(), self._spec.key_groups, stride)
        return pa.record_batch([pa.array(groups, pa.int32()), keys, values], schema=PARTS)


class _Kept:
    """Changes by group that wait to be added up: totals, or entries of one order."""

    def __init__(self, work: DerivedWork) -> None:
        self._of_key = [f"k{place}" for place in range(len(work.table.definition.key))]
        self._tables: list[Any] = []
        self._size = 0

    def add(self, table: Any) -> None:
        if not len(table):
            return
        self._tables.append(table)
        self._size += len(table)
        if self._size > KEPT_ROWS:
            self._tables = [self._added()]
            self._size = len(self._tables[0]) // 2  # where all groups differ it is not done each time

    def added(self) -> Iterator[Any]:
        """Yield record batches of all changes, each group's once, or each of its entries'."""
        if self._tables:
            yield from self._added().to_batches(max_chunksize=ROWS_AT_ONCE)

    def _added(self) -> Any:
        rows = pa.concat_tables(self._tables)
        return _grouped(rows, [*self._of_key, *[name for name in rows.column_names if name[0] == "o"]])


def _staged(*columns: Sequence[Any]) -> Any:
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, STAGED, strict=True)], schema=STAGED
    )


def _signed(work: DerivedWork, columns: dict[str, Any], sign: int) -> Any:
    """Return what one side's rows add, as a table: key columns, rows, count and sum of each value column."""
    definition, table = work.table.definition, work.table
    one, zero = pa.scalar(sign, pa.int64()), pa.scalar(0, pa.int64())
    takes_part, made = _of_groups(definition, columns)
    made["n"] = pa.repeat(one, len(takes_part))
    for place, (name, is_summed, scale) in enumerate(
        zip(definition.values, table.summed, table.scales, strict=True)
    ):
        values = columns[name]
        made[f"c{place}"] = pc.if_else(values.is_valid(), one, zero)
        if is_summed:
            wide = values.cast(pa.decimal256(WIDE, scale))
            wide = pc.fill_null(wide, pa.scalar(0, wide.type))
            made[f"s{place}"] = wide if sign > 0 else pc.negate(wide)
    return pa.table(made).filter(takes_part)


def _in_order(work: DerivedWork, order: Order, columns: dict[str, Any], sign: int) -> Any:
    """Return the entries that one side's rows give, as a table: key columns, those of the order, and rows."""
    takes_part, made = _of_groups(work.table.definition, columns)
    takes_part = pc.and_(takes_part, columns[order.columns[0]].is_valid())
    made |= {f"o{place}": columns[name] for place, name in enumerate(order.columns)}
    made["n"] = pa.repeat(pa.scalar(sign, pa.int64()), len(takes_part))
    return pa.table(made).filter(takes_part)


def _of_groups(definition: Definition, columns: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return which rows take part, and the columns of the groups' keys."""
    takes_part = columns[""]
    for name in definition.key:
        takes_part = pc.and_(takes_part, columns[name].is_valid())
    if definition.where:
        takes_part = pc.and_(takes_part, pc.fill_null(columns[definition.where], False))  # noqa: FBT003
    return takes_part, {f"k{place}": columns[name] for place, name in enumerate(definition.key)}


def _grouped(rows: Any, by: Sequence[str]) -> Any:
    """Return the sums of all other columns, by these."""
    others = [name for name in rows.column_names if name not in by]
    added = rows.group_by(by, use_threads=False).aggregate([(name, "sum") for name in others])
    return added.select([*by, *(f"{name}_sum" for name in others)]).rename_columns([*by, *others])


def _unless_zero(totals: Any) -> Any:
    """Return the groups that change."""
    changes = [pc.not_equal(totals[name], pa.scalar(0, totals[name].type)) for name in totals_in(totals)]
    return totals.filter(functools.reduce(pc.or_, changes))


def _keys_of(table: DerivedTable, batch: Any) -> Any:
    columns = [batch[f"k{place}"] for place in range(len(table.definition.key))]
    if table.schema.key_types == ["string"]:
        return columns[0].cast(pa.binary())
    cells = zip(*(column.to_pylist() for column in columns), strict=True)
    return pa.array([table.key_of(key) for key in cells], pa.binary())


# -- the groups' new rows --------------------------------------------------------------------------------


def derive(
    ack: Ack,
    parts: Iterable[tuple[int, Any]],
    works: Sequence[DerivedWork],
    read: ReadState,
    spec: StageSpec,
    log: Staging,
) -> Ack:
    """Stage the new rows of the groups of one task; return the ack with their frames, once they are durable.

    ``parts`` are those of all staging tasks, as ``Deltas.parts``. Raises: errors of the log and the store.
    Groups that do not fit are the ack's refusal.
    """
    if ack.refusal is not None:
        return ack
    by_table: dict[int, list[Any]] = {}
    for index, of_groups in parts:
        by_table.setdefault(index, []).append(of_groups)
    if not by_table:
        return ack
    # A row here is all of a group: none is left out or set aside.
    spec = msgspec.structs.replace(spec, quarantine=None, stored=True)
    attempt = f"d{ack.task_attempt}-{secrets.token_hex(4)}"
    shares: list[CallShare] = []
    try:
        rows = _sorted(_rows(by_table, works, read, shares))
        more = stage_task(rows, spec, log, task=ack.task, task_attempt=attempt, host=ack.host)
    except CorruptError as error:
        return _refused(ack, error, spec)
    frames, calls = ack.frames + more.frames, (*ack.calls, *shares)
    return msgspec.structs.replace(
        ack, frames=frames, rows=ack.rows + more.rows, refusal=more.refusal, calls=calls
    )


def _refused(ack: Ack, error: TidegateError, spec: StageSpec) -> Ack:
    refusal = Refusal(type(error).__name__, f"{spec.batch}, {error}")
    return msgspec.structs.replace(ack, refusal=refusal)


def _rows(
    by_table: dict[int, list[Any]], works: Sequence[DerivedWork], read: ReadState, shares: list[CallShare]
) -> Iterator[Any]:
    """Yield the groups' new rows, table by table. ``shares`` gets the task's share of each table's step."""
    chunks = ReadChunks()
    for work in works:
        table, start_s, number, size = work.table, time.monotonic(), 0, 0
        received, entries = (by_table.get(index, []) for index in (work.index, ENTRIES - work.index))
        changes = changes_of(table, entries)
        ordered = _totals_by_group(table, received, entries).sort_by([("g", "ascending"), ("k", "ascending")])
        for batch in ordered.combine_chunks().to_batches():
            for rows in chunks.of(batch):
                if work.is_new:
                    before = [None] * len(rows)
                else:
                    before = chunks.counted(read(table.name, work.start, rows)).to_pylist()
                index = pa.repeat(pa.scalar(work.index, pa.int32()), len(rows))
                values = [
                    None if part.is_zero else table.changed(key, value, part)
                    for key, part, value in zip(
                        rows["k"].to_pylist(), parts_of(table, rows, changes), before, strict=True
                    )
                ]
                columns = [rows["g"], index, rows["k"], pa.array(values, pa.binary())]
                made = pa.record_batch(columns, schema=CHANGES)
                made = made.filter(made["v"].is_valid())
                number += len(made)
                size += sum(pc.sum(pc.binary_length(made[name])).as_py() or 0 for name in "kv")
                yield made
        shares.append(CallShare(work.step, number, size, time.monotonic() - start_s))


def _totals_by_group(table: DerivedTable, totals: Sequence[Any], entries: Sequence[Any]) -> Any:
    """Return a table of the groups that change, each once, with the sums of their totals."""
    received = pa.Table.from_batches([*totals, *entries], PARTS)
    of_entries = sum(map(len, entries))
    values = [_one(pa.Table.from_batches(totals, PARTS)["v"]), zeros(table, of_entries)]
    of_tasks = received.select(["g", "k"])
    for name, column in unpacked(table, pa.concat_arrays(values)).items():
        of_tasks = of_tasks.append_column(name, column)
    return _grouped(of_tasks, ["g", "k"])


def _one(column: Any) -> Any:
    """Return a column's chunks as one array."""
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _sorted(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield all rows of a task in the order of key groups and tables."""
    made = list(batches)
    if made:
        rows = pa.concat_batches(made)
        order = pc.sort_indices(rows, sort_keys=[("g", "ascending"), ("t", "ascending"), ("k", "ascending")])
        yield rows.take(order)


class Received(NamedTuple):
    """The input of a second task: the ack of the staging task of its number, and the parts of all."""

    ack: Ack
    parts: list[tuple[int, Any]]


def received(batches: Iterable[Any], tasks: int) -> Received | None:
    """Read the output of staging tasks; None: there is none. The ack names the runs of all staging tasks.

    Raises: BadRecordError: not each of them is there once.
    """
    table = pa.Table.from_batches([batch.cast(STAGED) for batch in batches], STAGED)
    if not len(table):
        return None
    acks = [decode_ack(content) for content in table["ack"].to_pylist() if content is not None]
    is_mark = pc.and_(pc.equal(table["t"], MARK), table["k"].is_valid())
    marks = table.filter(is_mark)
    named = list(zip(marks["k"].to_pylist(), marks["v"].to_pylist(), strict=True))
    runs = {name.decode(): run.decode() for name, run in named}
    if len(acks) != 1 or len(named) != tasks or len(runs) != tasks:
        raise BadRecordError(
            f"{len(acks)} acks and {len(named)} marks of {tasks} staging tasks reached a task that derives"
            " tables: Spark ran some of them again; nothing was decided, restart the query"
        )
    ack = msgspec.structs.replace(acks[0], runs={**acks[0].runs, **runs})
    parts = [
        (index, batch)
        for index in sorted(set(pc.unique(table["t"]).to_pylist()) - {MARK})
        for batch in table.filter(pc.equal(table["t"], index)).select(PARTS.names).to_batches()
    ]
    return Received(ack, parts)
