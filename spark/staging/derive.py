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
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import BadRecordError, CorruptError, TidegateError
from tidegate.keys.groups import decode_key, groups_of, key_group_of_each
from tidegate.sinks.rules.layout import payloads
from tidegate.spark.state.read import ReadChunks, ReadState
from tidegate.spark.state.reduce import ReducedColumn, arrow_type, parse_state
from tidegate.wal.record import Ack, Refusal, decode_ack, encode_ack
from tidegate.wal.staging.changelog import Staging, stage_task
from tidegate.wal.staging.derived import STAGING_RUN, DerivedTable, Part, encode_part, in_units, sum_parts
from tidegate.wal.staging.spec import CHANGES, StageSpec

STAGED = pa.schema(
    [
        pa.field("ack", pa.binary()),  # a staging task's ack, in its own first key group
        pa.field("g", pa.int32()),  # the key group of a group's key, or the first one of the task for a mark
        pa.field("t", pa.int32()),  # index of the derived table; MARK for a mark
        pa.field("k", pa.binary()),  # key of the group; the name of the task
        pa.field("v", pa.binary()),  # encoded part; the name of its run
    ]
)
"""The output of a staging task of a version with derived tables."""
STAGED_DDL = "ack binary, g int, t int, k binary, v binary"
MARK = -1
ROWS_AT_ONCE = 10_000
KEPT_ROWS = 100_000
"""The rows that a task keeps before they are added up by group."""
WIDE = 76
"""The digits of sums in a task: rows of decimal(38,s) never overflow them."""


@dataclasses.dataclass(frozen=True)
class DerivedWork:
    """A derived table in a version: indexes and starts at the base version of it and of its base.

    ``is_new``: the version makes it again, from its own rows alone.
    """

    table: DerivedTable
    index: int
    start: int
    base_index: int
    base_start: int
    base_key_types: tuple[str, ...]
    base_key: tuple[str, ...]
    is_new: bool

    @property
    def base(self) -> str:
        return self.table.definition.of


class _Keyed(NamedTuple):
    name: str
    key_types: tuple[str, ...]


class Deltas:
    """The changes of one staging task, by group. ``read`` reads its tables at the base version."""

    def __init__(self, works: Sequence[DerivedWork], read: ReadState, spec: StageSpec) -> None:
        self._works, self._read, self._spec = works, read, spec
        self._chunks = ReadChunks()
        self._kept: dict[int, list[Any]] = {work.index: [] for work in works}
        self._sizes = dict.fromkeys(self._kept, 0)
        self._seen: dict[str, list[tuple[Any, Any]]] = {work.base: [] for work in works}

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
                self._keep(work, _signed(work, columns, sign))

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
        asked = [ReducedColumn(field, types[name], "last") for name, field in fields.items()]
        of = _Keyed(first.base, first.base_key_types)
        columns = dict(zip(fields, parse_state(of, keys, values, asked), strict=True)) if asked else {}
        if of_key := [name for name in types if name not in fields]:
            decoded: list[Any] = [decode_key(key, first.base_key_types) for key in keys.to_pylist()]
            tuples = decoded if len(first.base_key) > 1 else [(key,) for key in decoded]
            for name in of_key:
                place = first.base_key.index(name)
                cells = [key[place] for key in tuples]
                columns[name] = pa.array(cells, arrow_type(types[name]))
        columns[""] = values.is_valid()
        return columns

    def _keep(self, work: DerivedWork, table: Any) -> None:
        if not len(table):
            return
        self._kept[work.index].append(table)
        self._sizes[work.index] += len(table)
        if self._sizes[work.index] > KEPT_ROWS:
            added = _added(work, self._kept[work.index])
            self._kept[work.index] = [added]
            self._sizes[work.index] = len(added) // 2  # where all groups differ it is not done each time

    def rows(self, ack: Ack, tasks: int) -> Iterator[Any]:
        """Yield the output of the staging task: its ack, the mark of its run, and the parts by group."""
        key_groups = self._spec.key_groups
        firsts = [groups_of(task, tasks, key_groups).start for task in range(tasks)]
        run = [f"{STAGING_RUN}{ack.task}".encode()] * tasks, [ack.task_attempt.encode()] * tasks
        yield _staged([encode_ack(ack)], [firsts[ack.task]], [MARK], [None], [None])
        yield _staged([None] * tasks, firsts, [MARK] * tasks, *run)
        for index, group, keys, parts in self.parts():
            yield _staged([None] * len(keys), group, [index] * len(keys), keys, parts)

    def parts(self) -> Iterator[tuple[int, list[int], list[bytes], list[bytes]]]:
        """Yield the parts: index of the derived table, and of its groups key groups, keys, encoded parts."""
        for work in self._works:
            stride = self._spec.stride(work.table.name)
            kept = self._kept[work.index]
            if not kept:
                continue
            added = _added(work, kept)
            for batch in added.to_batches(max_chunksize=ROWS_AT_ONCE):
                keys, contents = [], []
                for key, part in _parts_of(work, batch):
                    if not part.is_zero:
                        keys.append(key)
                        contents.append(encode_part(part))
                yield work.index, key_group_of_each(keys, self._spec.key_groups, stride), keys, contents


def _staged(*columns: Sequence[Any]) -> Any:
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, STAGED, strict=True)], schema=STAGED
    )


def _signed(work: DerivedWork, columns: dict[str, Any], sign: int) -> Any:
    """Return what one side's rows add, as a table: key columns, rows, count and sum of each value column."""
    definition, table = work.table.definition, work.table
    takes_part = columns[""]
    for name in definition.key:
        takes_part = pc.and_(takes_part, columns[name].is_valid())
    if definition.where:
        takes_part = pc.and_(takes_part, pc.fill_null(columns[definition.where], False))  # noqa: FBT003
    one, zero = pa.scalar(sign, pa.int64()), pa.scalar(0, pa.int64())
    made = {f"k{place}": columns[name] for place, name in enumerate(definition.key)}
    made["n"] = pa.repeat(one, len(takes_part))
    for place, (name, is_summed, scale) in enumerate(
        zip(definition.values, table.summed, table.scales, strict=True)
    ):
        values = columns[name]
        made[f"c{place}"] = pc.if_else(values.is_valid(), one, zero)
        if is_summed:
            wide = values.cast(pa.decimal256(WIDE, scale))
            made[f"s{place}"] = wide if sign > 0 else pc.negate(wide)
    return pa.table(made).filter(takes_part)


def _added(work: DerivedWork, tables: Sequence[Any]) -> Any:
    joined = pa.concat_tables(tables)
    by = [f"k{place}" for place in range(len(work.table.definition.key))]
    others = [name for name in joined.column_names if name not in by]
    added = joined.group_by(by, use_threads=False).aggregate([(name, "sum") for name in others])
    return added.select([*by, *(f"{name}_sum" for name in others)]).rename_columns([*by, *others])


def _parts_of(work: DerivedWork, batch: Any) -> Iterator[tuple[bytes, Part]]:
    definition, table = work.table.definition, work.table
    keys = zip(*(batch[f"k{place}"].to_pylist() for place in range(len(definition.key))), strict=True)
    pairs = []
    for place, (is_summed, scale) in enumerate(zip(table.summed, table.scales, strict=True)):
        counts = batch[f"c{place}"].to_pylist()
        sums = batch[f"s{place}"].to_pylist() if is_summed else [None] * len(counts)
        pairs.append(
            [
                (n, 0 if total is None else in_units(total, scale))
                for n, total in zip(counts, sums, strict=True)
            ]
        )
    for row, (key, rows) in enumerate(zip(keys, batch["n"].to_pylist(), strict=True)):
        yield table.key_of(key), Part(rows, tuple(pair[row] for pair in pairs))


# -- the groups' new rows --------------------------------------------------------------------------------


def derive(
    ack: Ack,
    parts: Iterable[tuple[int, Sequence[int], Sequence[bytes], Sequence[bytes]]],
    works: Sequence[DerivedWork],
    read: ReadState,
    spec: StageSpec,
    log: Staging,
) -> Ack:
    """Stage the new rows of the groups of one task; return the ack with their frames, once they are durable.

    Raises: errors of the log and the store. Groups that do not fit are the ack's refusal.
    """
    if ack.refusal is not None:
        return ack
    by_table: dict[int, dict[tuple[int, bytes], list[bytes]]] = {}
    for index, groups, keys, contents in parts:
        of_table = by_table.setdefault(index, {})
        for group, key, content in zip(groups, keys, contents, strict=True):
            of_table.setdefault((group, key), []).append(content)
    if not by_table:
        return ack
    spec = msgspec.structs.replace(spec, quarantine=None)  # a row here is all of a group: none is left out
    attempt = f"d{ack.task_attempt}-{secrets.token_hex(4)}"
    try:
        rows = _sorted(_rows(by_table, works, read))
        more = stage_task(rows, spec, log, task=ack.task, task_attempt=attempt, host=ack.host)
    except CorruptError as error:
        return _refused(ack, error, spec)
    return msgspec.structs.replace(
        ack, frames=ack.frames + more.frames, rows=ack.rows + more.rows, refusal=more.refusal
    )


def _refused(ack: Ack, error: TidegateError, spec: StageSpec) -> Ack:
    refusal = Refusal(type(error).__name__, f"{spec.batch}, {error}")
    return msgspec.structs.replace(ack, refusal=refusal)


def _rows(
    by_table: dict[int, dict[tuple[int, bytes], list[bytes]]], works: Sequence[DerivedWork], read: ReadState
) -> Iterator[Any]:
    chunks = ReadChunks()
    for work in works:
        table, places = work.table, sorted(by_table.get(work.index, {}).items())
        parts = [(at, sum_parts(contents, table.nothing)) for at, contents in places]
        parts = [(at, part) for at, part in parts if not part.is_zero]
        if not parts:
            continue
        asked = pa.record_batch(
            {
                "g": pa.array([group for (group, _), _ in parts], pa.int32()),
                "k": pa.array([key for (_, key), _ in parts], pa.binary()),
            }
        )
        done = 0
        for rows in chunks.of(asked):
            if work.is_new:
                before = [None] * len(rows)
            else:
                before = chunks.counted(read(table.name, work.start, rows)).to_pylist()
            values = [
                table.stored(key, table.totals_of(key, value).plus(part))
                for ((_, key), part), value in zip(parts[done : done + len(rows)], before, strict=True)
            ]
            done += len(rows)
            index = pa.repeat(pa.scalar(work.index, pa.int32()), len(rows))
            yield pa.record_batch(
                [rows["g"], index, rows["k"], pa.array(values, pa.binary())], schema=CHANGES
            )


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
    parts: list[tuple[int, Sequence[int], Sequence[bytes], Sequence[bytes]]]


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
    parts = []
    for index in sorted(set(pc.unique(table["t"]).to_pylist()) - {MARK}):
        mine = table.filter(pc.equal(table["t"], index))
        parts.append((index, *(mine[name].to_pylist() for name in ("g", "k", "v"))))
    return Received(ack, parts)
