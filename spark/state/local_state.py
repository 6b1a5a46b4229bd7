"""Local state: one list of items per instance of a step, read at the base version, written with it.

Two tables hold it. ``_local`` has a row per state and instance: the number of its items, and the
parallelism at which they were written. ``_local.<name>`` has a row per instance and item. Only rows
that changed are written; on rescale the lists are redistributed (``redistribution.py``).

No pyspark is imported here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import msgspec

from tidegate.base.names import LOCAL
from tidegate.errors import BadRecordError, CorruptError, FunctionError
from tidegate.keys.groups import encode_key
from tidegate.sinks.records import ReadAt
from tidegate.sinks.store import Store
from tidegate.spark.state.call_deadline import Deadline
from tidegate.spark.state.output_rows import OutputRows, RunMark, strip_marks
from tidegate.spark.state.redistribution import (
    SPLIT,
    UNION,
    Merge,
    Run,
    Split,
    all_items,
    even_share,
    relatives,
)
from tidegate.spark.state.udf_runner import (
    ADVICE,
    Emit,
    Migrate,
    Source,
    UdfRunner,
    check_size,
    migrated,
)
from tidegate.values.decode import values_of
from tidegate.values.encode import encoder_of
from tidegate.wal.record import TableSchema
from tidegate.wal.staging.spec import StageSpec
from tidegate.wal.staging.validate import reason_of
from tidegate.wal.value_flags import DELETE, NO_TIME, NOT_TEXT, UNUSABLE, VALUE

ITEMS_MAX = 100_000
"""The most items of one instance: its list is held in memory."""
LIST_BYTES_MAX = 256 * 1024 * 1024
"""The most bytes of all of them together, as they are stored."""
READ_AT_ONCE = 5_000


@dataclasses.dataclass(frozen=True)
class Instance:
    """The instance of the step for which a function is called: ``index`` of ``parallelism``.

    ``before`` is the parallelism at which the state was written: 0 when there was none yet,
    different from ``parallelism`` in the one batch that follows a rescale.
    """

    index: int
    parallelism: int
    before: int


Step: TypeAlias = Callable[[Instance, Iterator[dict[str, Any]], list[Any], Emit], list[Any]]
"""``fn(instance, rows, state, emit) -> new state``; see ``Transaction.local_state``."""
Redistribute: TypeAlias = str | tuple[Split | None, Merge | None]


@dataclasses.dataclass(frozen=True)
class LocalWork:
    """A task's parameters for one instance of one local state. Travels to tasks.

    ``starts`` are the starts of ``_local`` and of the items' table at the base version, -1 where
    the table did not exist; ``migrated`` is the schema of items of an older state version, whose table
    begins again with this batch; ``rows`` describes the rows of the function, ``outputs`` the tables
    that it may emit to. ``parallelism`` is the number of instances, ``tasks`` that of the tasks of the
    second stage. ``call`` distinguishes the calls of one transaction; ``batch`` is for messages.
    """

    spec: StageSpec
    call: int
    name: str
    redistribute: Redistribute
    schema: TableSchema
    rows: TableSchema
    outputs: dict[str, TableSchema]
    base_version: int
    starts: tuple[int, int]
    batch: str
    deadline_s: float
    parallelism: int
    tasks: int
    migrated: TableSchema | None = None

    @property
    def table(self) -> str:
        return table_of(self.name)

    def shown(self, instance: Instance) -> str:
        """Describe this instance, for messages."""
        which = f"instance {instance.index} of {instance.parallelism}"
        return f"local state {self.name}, {which}, {self.batch}"


class Change(NamedTuple):
    """A row of one of the two tables: the table, its key, its stored value with the flags byte."""

    table: str
    key: bytes
    value: bytes


def table_of(name: str) -> str:
    """Return the table that holds the items of a local state."""
    return f"{LOCAL}.{name}"


# -- reading --------------------------------------------------------------------------------------


class BaseState:
    """One local state at the base version: each part is read once, when it is needed."""

    def __init__(self, work: LocalWork, store: Store, migrate: Callable[[Any], Any]) -> None:
        self._work, self._store, self._migrate = work, store, migrate
        self._decode = values_of(work.migrated or work.schema).decode
        self.stored: dict[bytes, bytes] = {}
        """Items read so far that stay in the table, by key, as they are stored."""
        first = self._instances([0])[0]
        if first is None and work.starts[1] >= 0:  # the items' table begins in one version with this row
            raise self._corrupt("the row of instance 0 is not there")
        self.before = 0 if first is None else int(first["parallelism"])

    def counts(self, index: int) -> list[int]:
        """Return the items per old instance; with the same parallelism only this instance's is read."""
        instances = [index] if self.before == self._work.parallelism else list(range(self.before))
        counts = [0] * self.before
        for instance, row in zip(instances, self._instances(instances), strict=True):
            if row is None or row["parallelism"] != self.before:
                raise self._corrupt(f"the row of instance {instance} of {self.before} is {row}")
            counts[instance] = int(row["items"])
        return counts

    def items(self, runs: Sequence[Run]) -> list[Any]:
        """Return the items of these runs, in order. Raises: CorruptError, one is missing."""
        places = [(run.instance, item) for run in runs for item in range(run.first, run.end)]
        items = []
        for index in range(0, len(places), READ_AT_ONCE):
            chunk = places[index : index + READ_AT_ONCE]
            keys = [item_key(*place) for place in chunk]
            for place, key, value in zip(chunk, keys, self._get(self._work.table, keys, 1), strict=True):
                if value is None:
                    raise self._corrupt(f"item {place[1]} of instance {place[0]} is not there")
                if self._work.migrated is None:
                    self.stored[key] = value
                items.append(self._migrate(self._decode(value)))
        return items

    def _instances(self, instances: Sequence[int]) -> list[dict[str, Any] | None]:
        keys = [instance_key(self._work.name, instance) for instance in instances]
        values = self._get(LOCAL, keys, 0)
        return [None if value is None else msgspec.json.decode(value) for value in values]

    def _get(self, table: str, keys: list[bytes], which: int) -> list[bytes | None]:
        work, start = self._work, self._work.starts[which]
        if not keys or start < 0:
            return [None] * len(keys)
        got = self._store.get_many(ReadAt(table, work.base_version, start, at_us=work.spec.at_us), keys)
        values: list[bytes | None] = got.to_pylist()
        return values

    def _corrupt(self, what: str) -> CorruptError:
        where = f"local state {self._work.name}: at version {self._work.base_version}"
        return CorruptError(f"{where} {what}; run `tidegate verify`")


# -- one instance ---------------------------------------------------------------------------------


def run_local(
    work: LocalWork, fn: Step, store: Store, batches: Iterator[Any], migrate: Migrate | None = None
) -> Iterator[Any]:
    """Run one task of the first stage: an instance's rows in, its function's output out.

    ``batches`` have columns i and r: first a mark with the instance's index, then its rows as JSON.
    The output ends with marks for all tasks of the second stage; or, when the function or its
    output is refused, with the refusal. Raises: errors of the store.
    """
    marks: dict[str, RunMark] = {}
    batches = strip_marks(batches, marks, "r")
    first = next(batches)
    index = first["i"][0].as_py()
    output = OutputRows(index)
    with Deadline(work.deadline_s) as deadline:
        rows = Source(_rows(work, first, batches), deadline.waiting)
        calls = UdfRunner(work.spec, work.outputs, output, deadline, lambda: rows.fault)
        try:
            for change in run_instance(work, fn, store, index, rows, calls, migrate):
                # Never quarantined: a list needs all of its rows.
                check_size(lambda: f"local state {work.name}", "key", "key", change.key, work.spec)
                output.add(work.spec.tables.index(change.table), change.key, change.value)
                yield from output.ready()
        except (FunctionError, BadRecordError) as error:
            yield output.refusal(work.spec.tables.index(work.table), b"", error)
            return
    for _ in batches:  # rows that the function did not read: otherwise Spark would end this process
        pass
    yield from output.rest()
    name, took = f"local state {work.name}", (work.call, deadline.spent)
    yield output.marks(name, index, work.tasks, work.spec.key_groups, marks, took)


def _rows(work: LocalWork, first: Any, batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """Decode the rows. Raises: BadRecordError, Python cannot represent a row."""
    decode, index = values_of(work.rows).decode, first["i"][0].as_py()
    parts = chain([first["r"].slice(1)], (batch["r"] for batch in batches))

    def shown() -> str:
        return work.shown(Instance(index, work.parallelism, 0))

    for content in chain.from_iterable(part.to_pylist() for part in parts):
        if content.startswith(NOT_TEXT):
            raise BadRecordError(f"{shown()}: a row has a text that is not valid UTF-8; nothing was decided")
        if content.startswith(UNUSABLE):
            why, advice = reason_of(content)
            raise BadRecordError(f"{shown()}: a row cannot be used: {why}; nothing was decided; {advice}")
        try:
            row = decode(content.removeprefix(NO_TIME))  # cannot be decoded: the error names the column
        except CorruptError as error:
            msg = f"{shown()}: a row has a value that Python cannot represent: {error}; nothing was decided"
            raise BadRecordError(msg) from None
        yield row


def run_instance(
    work: LocalWork,
    fn: Step,
    store: Store,
    index: int,
    rows: Iterator[Any],
    calls: UdfRunner,
    migrate: Migrate | None = None,
) -> Iterator[Change]:
    """Call the function for one instance; yield the changed rows of its state.

    The function is called once for each batch, with or without rows. Raises: FunctionError,
    BadRecordError, it or its result is refused; the message names state, instance and batch.
    """
    base = BaseState(work, store, lambda item: _migrated(work, calls, migrate, instance, item))
    instance = Instance(index, work.parallelism, base.before)
    counts = base.counts(index)
    state = _begin(work, base, instance, counts, calls)
    items = calls.call(lambda: work.shown(instance), fn, instance, rows, state, calls.emit)
    yield from _changes(work, base, instance, counts, _listed(work, instance, "fn", items))


def _migrated(
    work: LocalWork, calls: UdfRunner, migrate: Migrate | None, instance: Instance, item: Any
) -> Any:
    if work.migrated is None:
        return item
    version = work.migrated.version
    return migrated(calls, lambda: work.shown(instance), migrate, item, version, work.schema)


def _begin(
    work: LocalWork, base: BaseState, instance: Instance, counts: Sequence[int], calls: UdfRunner
) -> list[Any]:
    """Return the list with which this instance begins the batch."""
    index, after, before = instance.index, instance.parallelism, instance.before
    if before == 0:
        return []
    if before == after:
        return base.items([Run(index, 0, counts[index])])
    if work.redistribute == SPLIT:
        return base.items(even_share(counts, index, after))
    if work.redistribute == UNION:
        return base.items(all_items(counts))
    assert not isinstance(work.redistribute, str)
    split, merge = work.redistribute
    if after > before:
        return _grown(work, base, instance, counts, split, calls)
    states = [base.items([Run(one, 0, counts[one])]) for one in relatives(index, before, after)]
    if merge is None or len(states) == 1:
        return [item for items in states for item in items]
    return _listed(
        work, instance, "merge", calls.call(lambda: f"{work.shown(instance)}, merge", merge, states)
    )


def _grown(
    work: LocalWork,
    base: BaseState,
    instance: Instance,
    counts: Sequence[int],
    split: Split | None,
    calls: UdfRunner,
) -> list[Any]:
    """Return, after an increase of the parallelism, this instance's share of its origin's list."""
    where, origin = work.shown(instance), instance.index % instance.before
    own = [Run(origin, 0, counts[origin])]
    sharing = relatives(origin, instance.before, instance.parallelism)
    if split is None or len(sharing) == 1:
        return base.items(own) if instance.index == origin else []
    # Each relative calls it: a split that is not repeatable would lose items, or double them.
    shares, again = (
        calls.call(lambda: f"{where}, split", split, base.items(own), len(sharing)) for _ in "12"
    )
    if not isinstance(shares, list | tuple) or len(shares) != len(sharing):
        what = f"{len(shares)} of them" if isinstance(shares, list | tuple) else type(shares).__name__
        raise FunctionError(
            f"{where}: split returned {what}; it must return {len(sharing)} lists, one for each of the"
            f" instances that share this state; {ADVICE}"
        )
    if list(shares) != list(again):
        raise FunctionError(
            f"{where}: split returned two results for the same state; every instance that takes a share calls"
            f" it, so it must be repeatable (no chance, no clock); {ADVICE}"
        )
    return _listed(work, instance, "split", shares[sharing.index(instance.index)])


def _changes(
    work: LocalWork, base: BaseState, instance: Instance, counts: Sequence[int], items: list[Any]
) -> Iterator[Change]:
    index, after, before = instance.index, instance.parallelism, instance.before
    total = 0
    for place, item in enumerate(items):
        key, value = item_key(index, place), _encoded(work, instance, place, item)
        total += len(value)
        if total > LIST_BYTES_MAX:
            raise FunctionError(
                f"{work.shown(instance)}: {place + 1} of its {len(items)} items take {total} bytes,"
                f" {LIST_BYTES_MAX} are allowed for all; nothing was decided; keep less, or use a keyed table"
            )
        if base.stored.get(key) != value:
            yield Change(work.table, key, VALUE + value)
    # The rest of old lists: the end of this instance's own, all of the removed instances that it replaces.
    for old in range(index, before, after):
        remaining = len(items) if old == index else 0
        for place in range(remaining, counts[old]):
            yield Change(work.table, item_key(old, place), DELETE)
        if old != index:
            yield Change(LOCAL, instance_key(work.name, old), DELETE)
    if before != after or counts[index] != len(items):
        row = msgspec.json.encode({"items": len(items), "parallelism": after})
        yield Change(LOCAL, instance_key(work.name, index), VALUE + row)


def _listed(work: LocalWork, instance: Instance, what: str, items: Any) -> list[Any]:
    if not isinstance(items, list | tuple):
        raise FunctionError(
            f"{work.shown(instance)}: {what} returned {type(items).__name__}; it must return the list of"
            f" items that the instance has from now on ([] for none); {ADVICE}"
        )
    if len(items) > ITEMS_MAX:
        raise FunctionError(
            f"{work.shown(instance)}: {what} returned {len(items)} items, {ITEMS_MAX} are allowed; nothing"
            " was decided; keep less (after a union each instance its own share), or use a keyed table"
        )
    return list(items)


def _encoded(work: LocalWork, instance: Instance, place: int, item: Any) -> bytes:
    try:
        value = encoder_of(work.schema).encode(item)
    except BadRecordError as error:
        hint = "; for items that are dicts give schema='name type, ...'"
        hint *= work.schema.value_format == "bytes"
        raise BadRecordError(
            f"{work.shown(instance)}: item {place} cannot be stored: {error}{hint}; {ADVICE}"
        ) from error
    if len(value) > work.spec.value_bytes_max:
        raise BadRecordError(
            f"{work.shown(instance)}: item {place} takes {len(value)} bytes, {work.spec.value_bytes_max} are"
            f" allowed; nothing was decided; {work.spec.size_advice('value')}"
        )
    return value


# -- keys -----------------------------------------------------------------------------------------


def instance_key(name: str, instance: int) -> bytes:
    return encode_key([name, instance], ["string", "int"])


def item_key(instance: int, item: int) -> bytes:
    return encode_key([instance, item], ["int", "int"])
