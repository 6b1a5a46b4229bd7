"""A barrier with derived tables, without Spark: by the code of Spark's tasks, one task after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.keys.groups import task_of
from tidegate.sinks.cache.in_flight import ALL_VISIBLE
from tidegate.spark.staging.derive import Deltas, DerivedWork, derive, received
from tidegate.spark.staging.work import StageWork
from tidegate.testing.example import TypedBarrier
from tidegate.wal.staging.acks import Ack
from tidegate.wal.staging.derived import derived_table
from tidegate.wal.staging.spec import StageSpec


@dataclasses.dataclass
class KeepingBarrier(TypedBarrier):
    """Rows of several tables, some merged with their state, and the derived tables of their base."""

    driver: Any = None
    """The coordinator of the namespace."""
    definitions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    merges: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cache: Any = None
    """The caches of state that hold at the base version."""
    reads: list[Any] = dataclasses.field(default_factory=list)
    """How the staging tasks read their state."""
    runs_again: Sequence[int] = ()
    """Staging tasks that run twice: some second tasks get the output of the one run, others of the other."""

    def __post_init__(self) -> None:
        of = self.definitions
        self.made = {name: derived_table(name, of[name], self.typed[of[name].of]) for name in of}
        self.rows = {**self.rows, **{name: {} for name in self.made}}
        self.typed = {**self.typed, **{name: table.schema for name, table in self.made.items()}}
        self.derived = frozenset(self.made)
        of_starts = {name for name, of in self.definitions.items() if of.of in self.starts}
        self.starts = self.starts | of_starts

    def stage(self, spec: StageSpec, base_version: int) -> Sequence[Ack]:
        if not (self.made or self.merges or self.cache):
            return super().stage(spec, base_version)
        tables, none = self.driver.folded.tables, self.driver.folded.first_start
        start = {name: tables[name].start if name in tables else none for name in self.tables}
        names = [*self.tables]
        works: list[DerivedWork] = []
        for name, table in self.made.items():
            of = table.definition.of
            schema = self.typed[of]
            key = tuple(schema.key_types), tuple(column.name for column in schema.key)
            at = names.index(name), start[name], names.index(of), start[of]
            works.append(DerivedWork(table, *at, *key, name in self.starts, len(works)))
        merged = {n: make(names, start) for n, make in enumerate(self.merges.values())}
        bases = sorted({work.base for work in works})
        nowhere: Any = None  # the log and the store are given to each task
        work = StageWork(
            nowhere,
            spec,
            merged,
            base_version,
            ALL_VISIBLE,
            self.parallelism,
            self.cache,
            bases,
            tuple(works),
        )
        self.strides = dict(zip(spec.tables, spec.strides, strict=True))
        staged = [self._run(work, task) for task in range(self.parallelism)]
        again = {task: self._run(work, task) for task in self.runs_again}
        acks = []
        for task in range(self.parallelism):
            mine = [
                part
                for number, output in enumerate(staged)
                for part in self._sent(again[number] if number in again and task else output, task)
            ]
            got = received(mine, self.parallelism)
            assert got is not None
            self.reads += [got.ack.state] if got.ack.state is not None else []
            read = work.state_at(self.driver.store, lambda: self.log, task)
            acks.append(derive(got.ack, got.parts, works, read, spec, self.log))
        return acks

    def _run(self, work: StageWork, task: int) -> list[Any]:
        deltas = Deltas(work.derived, work.spec)
        ack = work.run(
            self.batches(task), self.log, lambda: self.driver.store, lambda: self.log, task, 0, "h", deltas
        )
        return list(deltas.rows(ack, work.tasks))

    def _sent(self, output: Sequence[Any], task: int) -> Iterator[Any]:
        for part in output:
            owners = [task_of(group, self.parallelism, self.key_groups) for group in part["g"].to_pylist()]
            yield part.filter(pa.array([owner == task for owner in owners], pa.bool_()))
