"""A barrier and the plain data that is written for it: spec, manifest, Decided, catalog entry.

Nothing here does I/O or decides an order; ``commit.py`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidegate.committers.driver import Driver
from tidegate.errors import ConfigError
from tidegate.sinks.store import CatalogEntry
from tidegate.wal import quarantine
from tidegate.wal.bad_rows import StageSpec
from tidegate.wal.record import (
    OFFSETS_BYTES_MAX,
    Ack,
    Component,
    Decided,
    Manifest,
    Origin,
    TableAt,
    TableSchema,
    VersionFact,
)

COMPONENT = "sink"
CLOCK_AHEAD_MAX_US = 3_600_000_000
"""A decision more than an hour ahead of the clock is refused: the clock went back."""


class Barrier(Protocol):
    """One batch on its way in: where it comes from, what it writes, and how its tasks stage it.

    ``tables`` in index order, ``schemas`` by table. ``starts`` are the tables that this
    version empties first. ``parallelism`` is the number of tasks, one ack each.
    """

    @property
    def origin(self) -> Origin: ...
    @property
    def source_offsets(self) -> str: ...
    @property
    def tables(self) -> tuple[str, ...]: ...
    @property
    def schemas(self) -> dict[str, TableSchema]: ...
    @property
    def starts(self) -> frozenset[str]: ...
    @property
    def parallelism(self) -> int: ...

    def stage(self, spec: StageSpec, base_version: int) -> Sequence[Ack]:
        """Run the tasks; the acks that count. Everything they name is durable in the log."""
        ...


def stage_spec(driver: Driver, barrier: Barrier, attempt: str) -> StageSpec:
    """What the tasks of this attempt must know."""
    return StageSpec(
        driver.folded.namespace,
        attempt,
        barrier.tables,
        tuple(tuple(barrier.schemas[name].key_types) for name in barrier.tables),
        driver.options.frame_bytes,
        driver.options.key_bytes_max,
        driver.options.value_bytes_max,
        driver.folded.key_groups,
        barrier.tables.index(quarantine.TABLE) if quarantine.TABLE in barrier.tables else None,
    )


def manifest_of(driver: Driver, barrier: Barrier, attempt: str, acks: Sequence[Ack]) -> Manifest:
    """The manifest of the version that would follow the one folded last."""
    state = driver.folded
    version = state.last_version + 1
    tables = dict(state.tables)
    for name in barrier.tables:
        kept = tables[name].start if name in tables else 0
        start = version if name in barrier.starts else kept
        tables[name] = TableAt(barrier.schemas[name].schema_id, start)
    return Manifest(
        state.namespace,
        attempt,
        version,
        state.key_groups,
        barrier.tables,
        {schema.schema_id: schema for schema in barrier.schemas.values()},
        tables,
        {state.name: {COMPONENT: Component(barrier.parallelism, {str(a.task): a.frames for a in acks})}},
        barrier.source_offsets,
    )


def decided_of(driver: Driver, barrier: Barrier, manifest: Manifest, address: str, digest: str) -> Decided:
    """The Decided record of this attempt.

    ConfigError: that would be more than an hour ahead of this machine's clock, or of the log's.
    """
    state, now = driver.folded, driver.clock.now_us()
    decided_at_us = max(now, state.decided_at_us + 1)
    of_log = driver.log.now_us()
    for whose, its_now in (("this machine's", now), ("the log's", now if of_log is None else of_log)):
        if decided_at_us > its_now + CLOCK_AHEAD_MAX_US:
            ahead_h = (decided_at_us - its_now) / 3.6e9
            msg = (
                f"version {manifest.version} would be decided {ahead_h:.1f} h ahead of {whose} clock; the"
                f" last decision was made at {state.decided_at_us / 1e6:.0f} s since 1970. Set the clocks"
                " right (time synchronisation), then restart the query"
            )
            raise ConfigError(msg)
    short = len(barrier.source_offsets.encode()) <= OFFSETS_BYTES_MAX
    return Decided(
        namespace=state.namespace,
        writer=driver.writer,
        epoch=driver.epoch,
        prev_digest=state.digest,
        attempt=manifest.attempt,
        version=manifest.version,
        origin=barrier.origin,
        base_version=state.last_version,
        manifest_address=address,
        manifest_digest=digest,
        tables=manifest.table_schemas,
        parallelism={state.name: {COMPONENT: barrier.parallelism}},
        source_offsets=barrier.source_offsets if short else "",
        decided_at_us=decided_at_us,
    )


def catalog_entry(fact: VersionFact, manifest: Manifest) -> CatalogEntry:
    """What readers are told of the version."""
    changes = dict.fromkeys(manifest.tables, 0)
    for of_group in manifest.counts().values():
        for name, rows in of_group.items():
            changes[name] += rows
    return CatalogEntry(
        fact.version,
        fact.digest,
        fact.attempt,
        fact.origin,
        fact.decided_at_us,
        manifest.table_schemas,
        changes,
        {t: {c: x.parallelism for c, x in cs.items()} for t, cs in manifest.topology.items()},
    )


def parallelism_of(manifest: Manifest) -> int:
    """The largest parallelism of any component: how many tasks staged the version."""
    return max(c.parallelism for components in manifest.topology.values() for c in components.values())
