"""The query without Spark: its batches, staged by the code of Spark's tasks, committed by production's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from model.commands.answers import Answers
from model.commands.truth import LINEAGES, TIMEOUT_US, TOTALS, Shape
from support.keeping_barrier import KeepingBarrier
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.local_coordinator import followers_in
from tidegate.committers.repair.derive import build_barrier, drop_barrier
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.errors import ConfigError
from tidegate.keys.groups import encode_key, groups_of, key_group
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.visible import no_schema, schemas_by_table
from tidegate.spark.batch import BatchContext, warn_of_missing_batches
from tidegate.spark.calls.update import timeout_schemas
from tidegate.spark.staging.declared import Derived, check_declared
from tidegate.spark.state.key_rows import ROWS
from tidegate.spark.state.output_rows import strip_marks
from tidegate.spark.state.timeouts import TimeoutWork
from tidegate.spark.state.update import Functions, UpdateWork, run_function
from tidegate.values.encode import encoder_of
from tidegate.values.evolve import evolved
from tidegate.wal.fold import replay_of
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Column, Definition, LoadOrigin, Origin, TableSchema
from tidegate.wal.value_flags import DELETE

COUNTS = TableSchema((Column("k", "string"),), (Column("n", "bigint"),))
SCHEMAS = dict.fromkeys(("seen", "brief", "open", "closed"), COUNTS)
TIMEOUTS = timeout_schemas("open", COUNTS.key)
KEY_GROUPS, KEEP_VERSIONS, SUMMARY_EVERY = 2, 3, 3


NONE_DECLARED: Mapping[str, Definition] = MappingProxyType({})


def definition_of(shape: Shape) -> Definition:
    """Return the definition of the derived table."""
    rows, least = "count", ("min", "id")
    return Derived(TOTALS, of="ref", key=shape.column, aggregates={"rows": rows, "least": least}).definition


def schema_of(shape: Shape) -> TableSchema:
    """Return the schema of ``ref``."""
    more = (Column("more", "bigint"),) * shape.more
    return TableSchema((Column("id", shape.key),), (Column(shape.column, "bigint"), *more))


@dataclasses.dataclass
class StateBarrier(KeepingBarrier):
    """A batch that also adds to a sum for each of its keys, with a timeout. ``sums``: number by key."""

    sums: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def stage(self, spec: Any, base_version: int) -> Any:
        if self.sums:
            self.rows = {**self.rows, **self._updated(spec, base_version)}
        return super().stage(spec, base_version)

    def _updated(self, spec: Any, base_version: int) -> Any:
        """Run the first stage of the update, once for the same rows, time, parameters and stored rows."""
        place = (str(self.driver.store.where), self.driver.endpoints.namespace)
        content = self.driver.store._found
        stored = [(at, content.rows[at]) for at in sorted(content.rows) if at[0] in _READ]
        starts = [(name, self.driver.folded.tables.get(name)) for name in _READ]
        timing = (spec.at_us, base_version, content.pointer, content.catalog, content.floors)
        key = repr((place, self.sums, spec.key_groups, spec.strides, spec.tables, starts, timing, stored))
        return _updates.get(key, lambda: self._update(spec, base_version))

    def _update(self, spec: Any, base_version: int) -> Any:
        """Run the first stage of the update, as the tasks of Spark do."""
        store, tables = self.driver.store, self.driver.folded.tables

        def read(table: str, start: int, rows: Any) -> Any:
            keys = rows["k"].to_pylist()
            if not base_version or table not in tables:
                return pa.nulls(len(rows), pa.binary())
            return store.get_many(
                ReadAt(table, base_version, start, stride=spec.stride(table), at_us=spec.at_us), keys
            )

        def start(table: str) -> int:
            return tables[table].start if table in tables else 0

        timeout = TimeoutWork(TIMEOUT_US, start("_due.open"), start("_due_at.open"))
        schemas = {"open": COUNTS, "closed": COUNTS}
        work = UpdateWork(
            spec, 0, "open", start("open"), TableSchema((), COUNTS.value), schemas, "batch", 600.0,
            self.parallelism, timeout,
        )  # fmt: skip
        found: dict[str, dict[bytes, bytes | None]] = {name: {} for name in ("open", "closed", *TIMEOUTS)}
        for task in range(self.parallelism):
            output = run_function(
                self._given(spec, task), work, Functions(_add, None, _close), read, task, read
            )
            for batch in strip_marks(output, {}):
                for table, key, value in zip(*(batch[at].to_pylist() for at in "tkv"), strict=True):
                    found[spec.tables[table]][key] = None if value == DELETE else value[1:]
        return found

    def _given(self, spec: Any, task: int) -> Iterator[Any]:
        mine = groups_of(task, self.parallelism, spec.key_groups)
        for name, number in sorted(self.sums.items()):
            key = encode_key((name,), COUNTS.key_types)
            group = key_group(key, spec.key_groups, spec.stride("open"))
            if group in mine:
                row = {"g": group, "k": key, "v": b'{"n":%d}' % number}
                yield pa.RecordBatch.from_pylist([row], schema=ROWS)


_READ = ("open", "closed", *TIMEOUTS)
_updates = Answers()


def _add(key: Any, rows: Iterator[Any], state: Any, emit: Any) -> Any:
    return {"n": (state or {"n": 0})["n"] + sum(row["n"] for row in rows)}


def _close(key: Any, state: Any, emit: Any) -> Any:
    emit("closed", key, state)


class Driver:
    """A driver of the query: open until it is replaced, or to the end as a zombie."""

    def __init__(self, coordinator: Coordinator, lineage: int | None) -> None:
        self.coordinator, self.lineage = coordinator, lineage

    @classmethod
    def opened(
        cls, wal: str, stores: Sequence[str], namespace: str, lineage: int | None, **options: Any
    ) -> Driver:
        """Open a namespace as a query does at its first batch, or a sink for a load (without a lineage)."""
        where = Endpoints.of(namespace, wal, stores)
        given: dict[str, Any] = {
            "keep_versions": KEEP_VERSIONS,
            "summary_every": SUMMARY_EVERY,
            "ttl": {"brief": "30min"},
            "apply_deadline_s": 5.0,
            "decide_deadline_s": 5.0,
            "wal_retain_s": 7200.0,
        }
        primary, *others = (open_store(at.url, namespace) for at in where.stores)
        coordinator = Coordinator(where, open_log(wal, namespace), primary, Options(**given | options))
        coordinator.others = tuple(others)
        open_namespace(coordinator, None if lineage is None else LINEAGES[lineage])
        return cls(coordinator, lineage)

    def copy(self) -> Driver:
        return Driver(self.coordinator.copy(), self.lineage)

    def key(self) -> Any:
        at = self.coordinator
        return (self.lineage, at.endpoints.namespace, at.epoch, at.decisions.view.position)

    def batch(
        self,
        batch_id: int,
        event: int,
        shape: Shape | None,
        *,
        drops: Sequence[str] = (),
        derives: bool = False,
    ) -> int:
        """Commit one batch, unless it was decided before; return its version."""
        at, lineage = self.coordinator, LINEAGES[self.lineage or 0]
        offsets = f'[{{"topic":{{"0":{event}}}}}]'
        context = BatchContext(lineage, "run", batch_id, offsets, f"offsets-{event}")
        warn_of_missing_batches(at.endpoints.namespace, context, at.folded)
        origin = context.origin(at.folded)
        before = replay_of(at.folded, origin)
        if before is None:
            declared = self._build(shape, derives=derives)
            before = commit(at, self._barrier(origin, event, shape, offsets, drops, declared))
        self._background()
        return before.version

    def _build(self, shape: Shape | None, *, derives: bool) -> Mapping[str, Definition]:
        """Build the derived table that is declared and that the log lacks; return what is declared."""
        at = self.coordinator
        if not derives or shape is None:
            return {}
        declared = {TOTALS: definition_of(shape)}
        ids = {each.schema_id for each in at.folded.tables.values()}
        known, last = at.store.schemas_of(sorted(ids)), at.folded.last_version
        schemas = schemas_by_table(at.store.where, last, at.folded.tables, known)
        for name, definition in check_declared(declared, at.folded.tables, schemas).items():
            if name in at.folded.tables:
                commit(at, drop_barrier(at, name))
            if definition.of in schemas:
                commit(at, build_barrier(at, schemas, name, definition))
        return declared

    def _barrier(
        self,
        origin: Origin,
        event: int,
        shape: Shape | None,
        offsets: str,
        drops: Sequence[str],
        declared: Mapping[str, Definition],
    ) -> StateBarrier:
        schemas = {**SCHEMAS, **TIMEOUTS}
        if shape is not None:
            schemas["ref"] = schema_of(shape)
        rows: dict[str, Any] = {}
        if drops:
            existing = frozenset(name for name in drops if name in self.coordinator.folded.tables)
            return self._typed(origin, rows, schemas, offsets, drops=existing)
        key = f"k{event % 2}"
        rows = {"seen": {str(event): {"n": event}}, "brief": {f"b{event % 2}": {"n": event}}}
        if shape is not None:
            name, row = shape.row(f"r{(event + 1) % 2}", event // 2)
            rows["ref"] = {name: row}
        return self._typed(origin, rows, schemas, offsets, {key: event + 1}, declared)

    def load(self, token: str, shape: Shape, number: int, *, replace: bool, derives: bool) -> int:
        """Write a load of one row of ``ref``."""
        declared = self._build(shape, derives=derives)
        name, row = shape.row("y" if replace else "x", number)
        barrier = self._typed(
            LoadOrigin(token),
            {"ref": {name: row}},
            {"ref": schema_of(shape)},
            definitions=declared,
            starts=frozenset({"ref"} if replace else ()),
        )
        version = commit(self.coordinator, barrier).version
        self._background()
        return version

    def _typed(
        self,
        origin: Origin,
        rows: Any,
        schemas: Any,
        offsets: str = "",
        sums: Any = None,
        definitions: Mapping[str, Definition] = NONE_DECLARED,
        **more: Any,
    ) -> StateBarrier:
        at = self.coordinator
        if "ref" in rows and "ref" in at.folded.tables and not more.get("starts"):
            schemas = {**schemas, "ref": self._evolved(schemas["ref"])}
        encoded: dict[str, Any] = {
            table: {
                encode_key((key,), schemas[table].key_types): encoder_of(schemas[table]).encode(row)
                for key, row in of.items()
            }
            for table, of in rows.items()
        }
        if sums:
            encoded |= {name: {} for name in ("open", "closed", *TIMEOUTS)}
        return StateBarrier(
            at.log,
            encoded,
            origin,
            at.folded.key_groups,
            parallelism=1,
            source_offsets=offsets,
            typed=schemas,
            driver=at,
            definitions=definitions,
            sums=sums or {},
            needs_visible_base=True,
            clock=at.clock,
            **more,
        )

    def _evolved(self, given: TableSchema) -> TableSchema:
        """Return the schema of ``ref`` after a call, as a transaction computes it. Raises: ConfigError."""
        at = self.coordinator
        used = at.folded.tables["ref"].schema_id
        known = at.store.schemas_of([used]).get(used)
        if known is None:
            raise no_schema(at.store.where, at.folded.last_version, "ref", used)
        if known.key != given.key:
            raise ConfigError("table ref has another key than this query writes")
        return evolved("ref", known, given).schema

    def _background(self) -> None:
        """Do what a driver's threads do after a version: other stores, retirement."""
        at = self.coordinator
        for follower in followers_in(at):
            follower.catch_up()
        for store in (at.store, *at.others):
            retire_up_to(at.log, store, at.folded, at.options, lambda: False)

    def trim(self) -> None:
        """Trim the log, as the background thread does."""
        at = self.coordinator
        at.decisions.catch_up()
        others = {each.name: store for each, store in zip(at.endpoints.also, at.others, strict=True)}
        trimmer = Trimmer(at.log, at.store, at.options, at.clock, others, at.endpoints.stores[0].name)
        trimmer.trim(at.decisions.view, at.clock.now_us())
