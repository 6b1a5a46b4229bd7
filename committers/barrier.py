"""A barrier and the plain data written for it: spec, manifest, Decided, catalog entry.

Nothing here does I/O or orders steps; ``commit.py`` does.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from tidegate.base.names import LOCAL
from tidegate.committers.coordinator import Coordinator
from tidegate.errors import ConfigError
from tidegate.keys.groups import stride_for
from tidegate.options import VALUE_BYTES_MAX
from tidegate.sinks.records import CatalogEntry
from tidegate.wal.manifest import PLACE_MAX, Component, Manifest, Step, TableChange, TaskPlace
from tidegate.wal.record import (
    COMPONENT,
    DECIDED_BYTES_MAX,
    OFFSETS_BYTES_MAX,
    BatchOrigin,
    Decided,
    DecidedVersion,
    Folded,
    ImportOrigin,
    Origin,
    TableAt,
    TableSchema,
    decided_bytes,
)
from tidegate.wal.staging import own_tables, quarantine
from tidegate.wal.staging.acks import Ack
from tidegate.wal.staging.derived_guard import check_derived
from tidegate.wal.staging.spec import StageSpec
from tidegate.wal.table_room import check_room

logger = logging.getLogger("tidegate")

NONE_BROUGHT: Mapping[str, int] = {}

CLOCK_AHEAD_MAX_US = 3_600_000_000
"""A driver whose clock is more than an hour ahead of the log's decides nothing."""


class NamedCall(NamedTuple):
    """A call of a transaction: its name, its kind, and the tables that it writes, its own first.

    ``parallelism`` is its own number of tasks, 0 if the driver staged it; None: the barrier's.
    """

    name: str
    kind: str
    tables: tuple[str, ...]
    parallelism: int | None = None


class Barrier(Protocol):
    """One batch to be committed: its origin, the tables it writes, and the tasks that stage it.

    ``tables`` are those that it writes, in index order; ``drops`` those that it drops, none of ``tables``.
    ``parallelism`` is the number of tasks, one ack each.
    """

    @property
    def origin(self) -> Origin: ...
    @property
    def source_offsets(self) -> str: ...
    @property
    def tables(self) -> Mapping[str, TableChange]: ...
    @property
    def drops(self) -> frozenset[str]: ...
    @property
    def parallelism(self) -> int: ...
    @property
    def needs_visible_base(self) -> bool:
        """Whether its tasks read the store at the base version, which has to be visible then."""
        ...

    @property
    def state_calls(self) -> Mapping[str, str]:
        """The call that continues each table's state, such as ``reduce``, by table."""
        ...

    @property
    def named_calls(self) -> Sequence[NamedCall]:
        """The transaction's calls, in their order; empty: its rows come from no transaction."""
        ...

    def stage(self, spec: StageSpec, base_version: int) -> Sequence[Ack]:
        """Run the tasks; return the acks that count. Durable: everything they name is in the log."""
        ...


def check_tables(coordinator: Coordinator, barrier: Barrier) -> None:
    """Admit the barrier's new tables, and log a warning from three quarters of the room on.

    Raises: ConfigError: a Decided record has no room for them, an existing table has another number of key
    groups than the options or the barrier's rows, a table would be without its companion (I13), or a derived
    table would not fit its base.
    """
    strides = {table: stride_of(coordinator, barrier, table) for table in barrier.tables}
    _refuse_other_strides(coordinator, barrier)
    _refuse_parted(coordinator, barrier)
    ttl_us = coordinator.options.ttl_us
    check_derived(coordinator.folded, barrier.tables, barrier.drops, barrier.origin, ttl_us)
    room = check_room(coordinator.folded.tables, strides)
    if room is not None and room.is_short:
        logger.warning(
            "namespace %s has %s; a new table above that number is refused, so write further tables into"
            " another namespace",
            coordinator.endpoints.namespace,
            room,
        )


def stride_of(coordinator: Coordinator, barrier: Barrier, table: str) -> int:
    """Return the stride of a table that the barrier writes: fixed when the table is made."""
    tables = barrier.tables
    alike = {name: tables[name] for name in own_tables.of_one_stride(table) if name in tables}
    return stride_here(coordinator, table, barrier.drops, brought_strides(alike))


def brought_strides(tables: Mapping[str, TableChange]) -> dict[str, int]:
    """Return the strides of the tables whose rows come with their key groups."""
    return {name: table.stride for name, table in tables.items() if table.stride}


def stride_here(
    coordinator: Coordinator,
    table: str,
    drops: Collection[str] = (),
    brought: Mapping[str, int] = NONE_BROUGHT,
) -> int:
    """Return the stride that a table has, or gets when it is made: a brought one, else the options'.

    The remembered deletes and the due times of a table are staged with its rows, so all have one stride.
    """
    existing = {name: known.apart for name, known in coordinator.folded.tables.items() if name not in drops}
    configured, key_groups = coordinator.options.table_key_groups or {}, coordinator.folded.key_groups
    alike = own_tables.of_one_stride(table)
    for strides in (existing, brought):
        for name in alike:
            if name in strides:
                return strides[name]
    return next((stride_for(name, configured[name], key_groups) for name in alike if name in configured), 1)


def _refuse_other_strides(coordinator: Coordinator, barrier: Barrier) -> None:
    state, configured = coordinator.folded, coordinator.options.table_key_groups or {}
    brought = {table: state.key_groups // stride for table, stride in brought_strides(barrier.tables).items()}
    for source, numbers in (("table_key_groups names", configured), ("its rows come in", brought)):
        for table in sorted((state.tables.keys() - barrier.drops) & numbers.keys()):
            has = state.key_groups // state.tables[table].apart
            if has != numbers[table]:
                msg = (
                    f"table {table} has {has} key groups, and {source} {numbers[table]}: their number is"
                    " fixed when a table is made; nothing was staged. Give the number that it has, or drop"
                    " the table first, in a version of its own"
                )
                raise ConfigError(msg)


def _refuse_parted(coordinator: Coordinator, barrier: Barrier) -> None:
    """Refuse a version after which one of two companions would be without the other (I13).

    A rekey gives a copy its queues of due times with the version that makes it whole; no query runs before.
    """
    after = (coordinator.folded.tables.keys() - barrier.drops) | {*barrier.tables}
    parted = own_tables.parted(after, {*barrier.tables, *barrier.drops})
    if parted and not coordinator.request.is_copying:
        raise ConfigError(
            f"table {parted} would be without its companion, and they make sense together only; nothing was"
            " staged: `tidegate export FOLDER` and `tidegate import FOLDER` into a new namespace bring both"
        )


def refuse_restored_strides(state: Folded, version: int, tables: Mapping[str, TableAt], way: str) -> None:
    """Refuse to restore tables of a version that were made again with other key groups since.

    ``way``: what the user does instead. Raises: ConfigError.
    """
    for table in sorted(state.tables.keys() & tables.keys()):
        had, has = (state.key_groups // table_at.apart for table_at in (tables[table], state.tables[table]))
        if had != has:
            raise ConfigError(
                f"table {table} had {had} key groups at version {version}, and was dropped since and made"
                f" again with {has}: {way}. Nothing was written"
            )


def stage_spec(coordinator: Coordinator, barrier: Barrier, attempt: str) -> StageSpec:
    """Build the spec of this attempt's tasks. Its time is now, and later than any decision's."""
    tables, schemas = tuple(barrier.tables), [table.schema for table in barrier.tables.values()]
    return StageSpec(
        coordinator.folded.namespace,
        attempt,
        tables,
        tuple(tuple(schema.key_types) for schema in schemas),
        coordinator.options.frame_bytes,
        coordinator.options.key_bytes_max,
        value_bytes_max(coordinator),
        coordinator.folded.key_groups,
        tables.index(quarantine.TABLE) if quarantine.TABLE in tables else None,
        max(coordinator.clock.now_us(), coordinator.folded.decided_at_us + 1, coordinator.begun_us + 1),
        tuple(map(coordinator.options.ttl_us, tables)),
        called(barrier.origin),
        tuple(tuple(column.name for column in schema.key) for schema in schemas),
        tuple(map(_time_columns, schemas)),
        tuple(stride_of(coordinator, barrier, name) for name in tables),
        isinstance(barrier.origin, ImportOrigin),
        _least_store(coordinator)[1],
    )


def value_bytes_max(coordinator: Coordinator) -> int:
    """Return the largest value that the options and all stores allow."""
    return min(coordinator.options.value_bytes_max, VALUE_BYTES_MAX, _least_store(coordinator)[0])


def _least_store(coordinator: Coordinator) -> tuple[int, str]:
    """Return the smallest limit of values of a store, and why; no reason: that of the options is smaller."""
    most = coordinator.options.value_bytes_max
    limits = [(s.value_bytes_max, s.value_limit) for s in coordinator.stores if s.value_bytes_max is not None]
    return min((each for each in limits if each[0] <= most), default=(most, ""))


def _time_columns(schema: TableSchema) -> tuple[tuple[str, str], ...]:
    """List field and name of value columns whose type contains a date, a timestamp, or such a name."""
    return tuple((c.field, c.name) for c in schema.value if "date" in c.type or "timestamp" in c.type)


def called(origin: Origin) -> str:
    """Name a future version's rows for messages.

    >>> called(BatchOrigin("8a1f", 0, 7, ""))
    'batch 7'
    """
    return f"batch {origin.batch_id}" if isinstance(origin, BatchOrigin) else "this load"


def manifest_of(
    coordinator: Coordinator, barrier: Barrier, attempt: str, acks: Sequence[Ack], source_offsets: str
) -> Manifest:
    """Build the manifest of the version after the last one folded."""
    state = coordinator.folded
    version = state.last_version + 1
    tables = {name: table_at for name, table_at in state.tables.items() if name not in barrier.drops}
    schemas = {}
    for name, table in barrier.tables.items():
        before = tables.get(name, TableAt("", state.first_start))
        stride = stride_of(coordinator, barrier, name)
        schema = schemas[name] = table.schema.grouped(stride)
        tables[name] = TableAt(
            schema.schema_id,
            version if table.starts else before.start,
            True if coordinator.options.ttl_us(name) or table.expires else before.expires,
            msgspec.UNSET if stride == 1 else stride,
            schema.derived.of if schema.derived else msgspec.UNSET,
        )
    return Manifest(
        state.namespace,
        attempt,
        version,
        state.key_groups,
        tuple(barrier.tables),
        {schema.schema_id: schema for schema in schemas.values()},
        tables,
        {state.name: _components(barrier, acks)},
        source_offsets,
        dropped=tuple(sorted(barrier.drops)) or msgspec.UNSET,
        state_calls=dict(barrier.state_calls) or msgspec.UNSET,
        steps=_steps(barrier, acks) or msgspec.UNSET,
        places=_places(coordinator, barrier, acks) or msgspec.UNSET,
    )


def _components(barrier: Barrier, acks: Sequence[Ack]) -> dict[str, Component]:
    """List the sink, whose tasks staged all rows, and each local state whose function ran."""
    components = {COMPONENT: Component(barrier.parallelism, {str(ack.task): ack.frames for ack in acks})}
    for call in barrier.named_calls:
        if (name := call.tables[0]).startswith(f"{LOCAL}."):
            instances = call.parallelism or barrier.parallelism
            components[name.removeprefix("_")] = Component(instances, {str(i): () for i in range(instances)})
    return components


def _places(coordinator: Coordinator, barrier: Barrier, acks: Sequence[Ack]) -> tuple[TaskPlace | None, ...]:
    """List where each task ran; where no executor did, as in the version before."""
    ran = {
        ack.task: TaskPlace(ack.executor[:PLACE_MAX], ack.host[:PLACE_MAX]) for ack in acks if ack.executor
    }
    if ran:
        return tuple(map(ran.get, range(barrier.parallelism)))
    last = coordinator.last_manifest
    return () if last is None else last.places or ()


def _steps(barrier: Barrier, acks: Sequence[Ack]) -> tuple[Step, ...]:
    """List the transaction's calls with the sums of all tasks' shares."""
    table_sets = [frozenset(frame.tables) for ack in acks for frame in ack.frames]
    steps, indices = [], {name: index for index, name in enumerate(barrier.tables)}
    for number, call in enumerate(barrier.named_calls):
        shares = [share for ack in acks for share in ack.calls if share.call == number]
        tables = {indices[table] for table in call.tables}
        steps.append(
            Step(
                call.name,
                call.kind,
                call.tables,
                barrier.parallelism if call.parallelism is None else call.parallelism,
                sum(share.rows for share in shares),
                sum(share.bytes for share in shares),
                sum(share.seconds for share in shares),
                sum(not tables.isdisjoint(of_frame) for of_frame in table_sets),
                sum(share.ties for share in shares) or msgspec.UNSET,
            )
        )
    return tuple(steps)


def decided_of(
    coordinator: Coordinator,
    barrier: Barrier,
    manifest: Manifest,
    address: str,
    digest: str,
    attempted_us: int = 0,
) -> Decided:
    """Build the Decided record of this attempt, which began at ``attempted_us``.

    Its source offsets are left out if only that makes room for its tables; readers get the manifest's. Its
    time is no earlier than that, even if the clock went back since, so that no row lives longer than
    its time to live after the decision. Raises: ConfigError: as ``_refuse_future``.
    """
    state, now = coordinator.folded, coordinator.clock.now_us()
    follows_us = max(state.decided_at_us, coordinator.begun_us) + 1
    decided_at_us = max(now, follows_us, attempted_us)
    _refuse_future(coordinator, manifest.version, decided_at_us, now, inherited=decided_at_us == follows_us)
    _warn_of_future(coordinator, decided_at_us, now)
    decided = Decided(
        **coordinator.decisions.header(),
        attempt=manifest.attempt,
        version=manifest.version,
        origin=barrier.origin,
        base_version=state.last_version,
        manifest_address=address,
        manifest_digest=digest,
        tables=manifest.table_schemas,
        parallelism={t: {c: x.parallelism for c, x in cs.items()} for t, cs in manifest.topology.items()},
        source_offsets=_short(barrier.source_offsets),
        decided_at_us=decided_at_us,
        dropped=manifest.dropped,
    )
    if decided.source_offsets and decided_bytes(decided) > DECIDED_BYTES_MAX:
        logger.warning(
            "the decision of version %s has no room for its source offsets: they are only in its manifest",
            manifest.version,
        )
        return msgspec.structs.replace(decided, source_offsets="")
    return decided


def _refuse_future(
    coordinator: Coordinator, version: int, decided_at_us: int, now: int, *, inherited: bool
) -> None:
    """Refuse a decision whose time is too far ahead of this machine's clock, or of the log's.

    That is an hour. A time that is ``inherited`` is one microsecond after an earlier decision's, which a
    driver with another clock made: refusing it would undo nothing. It may be ahead by ``wal_retain_s``, which
    is as far as trimming keeps what a slow batch has staged (``keep_from_us``). Raises: ConfigError.
    """
    limit_us = CLOCK_AHEAD_MAX_US
    if inherited:
        limit_us = max(limit_us, int(coordinator.options.wal_retain_s * 1_000_000))
    of_log, last_us = coordinator.log.now_us(), coordinator.folded.decided_at_us
    for whose, its_now in (("this machine's", now), ("the log's", now if of_log is None else of_log)):
        if decided_at_us <= its_now + limit_us:
            continue
        msg = (
            f"version {version} would be decided {(decided_at_us - its_now) / 3.6e9:.1f} h ahead of {whose}"
            f" clock, {_utc(its_now)}; the last decision has the time {_utc(last_us)}."
            " Set the clocks right (time synchronisation), then restart the query"
        )
        if inherited:
            msg += (
                f"; if {whose} clock is right, that of an earlier driver was wrong, and a restart after"
                f" {_utc(decided_at_us - limit_us)} continues"
            )
        raise ConfigError(msg)


def _warn_of_future(coordinator: Coordinator, decided_at_us: int, now: int) -> None:
    """Log once that decisions follow the time of a clock that was ahead, and what depends on it."""
    ahead = decided_at_us > now + CLOCK_AHEAD_MAX_US
    if ahead and not coordinator.follows_future:
        logger.warning(
            "namespace %s: the last decision has the time %s, %.1f h ahead of this machine's clock, %s: the"
            " clock of an earlier driver was ahead, or this one is behind (check the time synchronisation)."
            " Until then each version is a microsecond later than the one before: rows with a time to live"
            " stay that much longer, and as_of cannot separate these versions by time",
            coordinator.decisions.namespace,
            _utc(decided_at_us),
            (decided_at_us - now) / 3.6e9,
            _utc(now),
        )
    coordinator.follows_future = ahead


def catalog_entry(decided: DecidedVersion, manifest: Manifest) -> CatalogEntry:
    """Build the version's catalog entry, which readers get."""
    return CatalogEntry(
        decided.version,
        decided.digest,
        decided.attempt,
        decided.origin,
        decided.decided_at_us,
        manifest.table_schemas,
        manifest.changes(),
        {t: {c: x.parallelism for c, x in cs.items()} for t, cs in manifest.topology.items()},
        source_offsets=_short(manifest.source_offsets),
        dropped=manifest.dropped,
    )


def _utc(moment_us: int) -> str:
    moment = datetime.datetime.fromtimestamp(moment_us // 1_000_000, datetime.timezone.utc)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _short(source_offsets: str) -> str:
    return source_offsets if len(source_offsets.encode()) <= OFFSETS_BYTES_MAX else ""


def parallelism_of(manifest: Manifest) -> int:
    """Return the number of tasks that staged the version."""
    return max(components[COMPONENT].parallelism for components in manifest.topology.values())
