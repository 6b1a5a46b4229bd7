"""One table at one version, leased for a Spark read: chosen and leased where it is planned, read by tasks.

Only plain data travels to tasks.

No pyspark is imported here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tidegate.base.clock import Clock
from tidegate.base.steps import run
from tidegate.base.urls import place_of, redact, with_login_of
from tidegate.errors import ConfigError, SnapshotExpiredError, StoreRemovedError, TidegateError
from tidegate.reader import rules
from tidegate.reader.flow.reader import Reader
from tidegate.reader.leases.keeper import LeaseKeeper
from tidegate.reader.redirects import Followed, checked_successor
from tidegate.sinks.aliases import Target, refuse_writing
from tidegate.sinks.open_store import open_store, shared_store
from tidegate.sinks.records import Identity, Pointer, ReadAt
from tidegate.sinks.rules import visible
from tidegate.sinks.rules.leases import Lease, pin
from tidegate.sinks.store import Store
from tidegate.spark.source.arrow_rows import columns_of, record_batch
from tidegate.spark.source.options import SourceOptions
from tidegate.values.decode import Values, values_of
from tidegate.wal.record import TableSchema

ROWS_AT_ONCE = 10_000
BYTES_AT_ONCE = 4 * 1024 * 1024


@dataclasses.dataclass(frozen=True)
class LeasedTable:
    """A table at a version, and the lease that pins it; ``uuid`` is the namespace's.

    The lease is taken for ``lease_s`` when the read is planned, and again by every task that
    begins. So up to ``lease_s`` may pass before the first task runs, and the version stays pinned
    for ``lease_s`` after the last one began.
    """

    url: str = dataclasses.field(repr=False)
    store_options: dict[str, Any] = dataclasses.field(repr=False)
    namespace: str
    uuid: str
    key_groups: int
    at: ReadAt
    schema: TableSchema
    lease_id: str
    lease_s: float

    @property
    def values(self) -> Values:
        """The decoder of its rows."""
        return values_of(self.schema)

    @property
    def where(self) -> str:
        """The table's name in messages."""
        return f"{redact(self.url)}, table {self.at.table} at version {self.at.version}"

    # -- in tasks -----------------------------------------------------------------------------

    def rows(self, groups: range, schema: Any) -> Iterator[Any]:
        """Yield the live rows of these key groups as record batches of ``schema``.

        Raises: SnapshotExpiredError, the version was retired during or before the read; nothing is
        yielded after that.
        """
        store = shared_store(self.url, self.namespace, self.uuid, self.store_options)
        for batch in self.while_leased(store, self.stored(store, groups)):
            yield record_batch(columns_of(batch, self.values, self.where), schema)

    def while_leased(self, store: Store, batches: Iterator[Any]) -> Iterator[Any]:
        """Take the lease, then read and yield the batches while the version is pinned (I8)."""
        clock = Clock()
        keeper = LeaseKeeper(store, clock)
        try:
            run(pin(store, Lease(self.lease_id, self.at.version), self.lease_s))
            lease = keeper.take(self.at.version, self.lease_s)
            rules.check_kept(store.where, self.at.version, store.pointer().horizon)
            for batch in batches:
                lease.check(clock)
                yield batch
        finally:
            keeper.close()

    def stored(self, store: Store, groups: range) -> Iterator[Any]:
        """Yield live rows as they are stored, (key, value)."""
        of_table = [group for group in groups if group % self.at.stride == 0]
        return gathered(batch for _, batch in store.scan_groups(self.at, of_table))


def gathered(batches: Iterator[Any]) -> Iterator[Any]:
    """Merge batches to about ``ROWS_AT_ONCE`` rows: key groups of small tables have few each."""
    waiting: list[Any] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


def _lease_by_alias(
    options: SourceOptions, store: Store, target: Target, seen: list[tuple[Identity, Pointer]]
) -> LeasedTable:
    """Return a table of the namespace that an alias names now.

    Raises: ConfigError, with a log: a stream follows the log of one namespace, and never another's.
    """
    if options.wal:
        refuse_writing(store.where, options.namespace, target)
    named = _lease_in(dataclasses.replace(options, namespace=target.namespace), None, seen)
    rules.checked_target(Identity(named.uuid, named.namespace, named.key_groups), store.where, target)
    return named


def lease_table(options: SourceOptions, version: int | None = None) -> LeasedTable:
    """Choose the version and take the lease; with ``follow_redirects`` in the successor of a removed store.

    Raises: ConfigError, no such namespace, version or table, with the existing ones;
    SnapshotExpiredError, the version was retired, with the oldest one. StoreRemovedError.
    """
    passed: list[str] = []
    seen: list[tuple[Identity, Pointer]] = []
    current, followed = options, Followed.of(options.store, options.follow_redirects)
    while True:
        try:
            return _lease_in(current, version, seen)
        except StoreRemovedError as removed:
            if options.follow_redirects is False:
                raise
            passed.append(place_of(current.store))
            successor = with_login_of(options.store, checked_successor(passed, removed, followed))
            current = dataclasses.replace(current, store=successor)


def _lease_in(
    options: SourceOptions, version: int | None, seen: list[tuple[Identity, Pointer]]
) -> LeasedTable:
    """Do ``lease_table`` in one store; ``seen`` are namespace and pointer of the removed stores before it."""
    clock = Clock()
    store = open_store(options.store, options.namespace, options.store_options)
    try:
        stored = store.identity()
        if stored is None and (target := store.aliases().get(options.namespace)) is not None:
            return _lease_by_alias(options, store, target, seen)
        identity = rules.checked_identity(stored, options.store, options.namespace)
        reader = Reader(store, identity, clock)
        if version is None and options.version is None and options.as_of is None:
            for _ in range(rules.TRIES - 1):  # T28: the newest was retired before it was leased; look again
                with contextlib.suppress(SnapshotExpiredError):
                    return _leased(reader, options, None, seen)
        return _leased(reader, options, version, seen)
    finally:
        store.close()


def _leased(
    reader: Reader, options: SourceOptions, version: int | None, seen: list[tuple[Identity, Pointer]]
) -> LeasedTable:
    """Take the lease and return the table. Raises: as ``lease_table``, after a release of the lease."""
    store, identity = reader.store, reader.identity
    pointer = store.pointer()
    for earlier, before in seen:
        if earlier.uuid != identity.uuid:
            raise ConfigError(
                f"{store.where}: the note of a removed store names this one as its successor, and another"
                f" namespace is here ({identity.uuid}, not {earlier.uuid}): give the right store"
            )
        rules.check_seen(store.where, before, pointer)
    if pointer.is_removed:
        seen.append((identity, pointer))
    rules.check_followed(store.where, pointer)
    chosen = version or options.version or rules.newest_of(pointer, options.namespace)
    if options.as_of is not None:
        chosen = run(reader.version_as_of(options.as_of, pointer))
    rules.check_is_visible(chosen, pointer.visible, options.namespace)
    if not chosen:
        raise visible.no_version_yet(options.namespace)
    lease = Lease(f"spark-{reader.clock.new_id()}", chosen)
    try:
        run(pin(store, lease, options.lease_s))
        rules.check_kept(store.where, chosen, store.pointer().horizon)
        view = run(reader.table(run(reader.entry(chosen)), options.table, lambda: None)).view
    except BaseException:
        with contextlib.suppress(TidegateError):
            store.release(lease.lease_id)
        raise
    return LeasedTable(
        url=options.store,
        store_options=options.store_options,
        namespace=options.namespace,
        uuid=identity.uuid,
        key_groups=identity.key_groups,
        at=view.at,
        schema=view.values.schema,
        lease_id=lease.lease_id,
        lease_s=options.lease_s,
    )
