"""A log and a store that route every call through a port, which may inject faults.

The wrappers know nothing of faults. A ``Port`` receives each call as a thunk and may run it, not run it, run
it later, run it twice, or never return. With ``Direct`` they are transparent, so that the conformance suites
run on them as on any other log and store.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from tidegate.base.checks import Check
from tidegate.errors import (
    OutcomeUnknownError,
    StoreUnavailableError,
    TidegateError,
    WalUnavailableError,
)
from tidegate.sinks.aliases import Aliases
from tidegate.sinks.records import (
    CatalogEntry,
    Counts,
    Finding,
    Identity,
    Pointer,
    ReadAt,
    RowCount,
    Stamp,
    Stopped,
    Vacuumed,
    never,
)
from tidegate.sinks.rules.leases import Lease, LeaseInfo
from tidegate.sinks.store import Store
from tidegate.wal.fold import Entry
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.log import Appended, Blob, Blobs, Log, LogSize, Trimmed
from tidegate.wal.record import TableSchema

T = TypeVar("T")


class Call(NamedTuple):
    """One call of an interface: its name, and the meaning of its errors.

    ``refused`` is raised when the call provably did nothing, ``unknown`` when nothing is proven. ``writes``:
    it has an effect, which may happen late or twice.
    """

    name: str
    writes: bool
    refused: type[TidegateError]
    unknown: type[TidegateError]
    shown: str = ""

    @property
    def told(self) -> str:
        """The call in a line of a trace."""
        return f"{self.name} {self.shown}"


class Port(Protocol):
    """The interface of a fault injector."""

    def call(self, call: Call, effect: Callable[[], T]) -> T:
        """Return the effect's result, or raise one of the errors that ``call`` allows."""
        ...


class Direct:
    """The port without faults."""

    def call(self, call: Call, effect: Callable[[], T]) -> T:
        return effect()


KINDS_MAX = 1_000
"""The number of different calls that are cached."""


@functools.lru_cache(KINDS_MAX)
def _reads_log(name: str) -> Call:
    return Call(name, writes=False, refused=WalUnavailableError, unknown=WalUnavailableError)


@functools.lru_cache(KINDS_MAX)
def _writes_log(name: str, shown: str = "") -> Call:
    return Call(name, writes=True, refused=WalUnavailableError, unknown=OutcomeUnknownError, shown=shown)


@functools.lru_cache(KINDS_MAX)
def _trims_log(name: str, shown: str = "") -> Call:
    return Call(name, writes=True, refused=WalUnavailableError, unknown=WalUnavailableError, shown=shown)


@functools.lru_cache(KINDS_MAX)
def _reads_store(name: str) -> Call:
    return Call(name, writes=False, refused=StoreUnavailableError, unknown=StoreUnavailableError)


@functools.lru_cache(KINDS_MAX)
def _writes_store(name: str, shown: str = "") -> Call:
    return Call(name, writes=True, refused=StoreUnavailableError, unknown=StoreUnavailableError, shown=shown)


class FaultyLog(Log):
    """A log whose calls pass a port."""

    def __init__(self, inner: Log, port: Port) -> None:
        self.where = inner.where
        self._inner, self._port = inner, port

    def create(self) -> None:
        self._port.call(_writes_log("log.create"), self._inner.create)

    def append_decision(self, content: bytes) -> Appended:
        call = _writes_log("append_decision", _shown(content))
        return self._port.call(call, lambda: self._inner.append_decision(content))

    def decisions(self, position: int = 0) -> Iterator[Entry]:
        def effect() -> list[Entry]:
            return list(self._inner.decisions(position))

        return iter(self._port.call(_reads_log("decisions"), effect))

    def stage(self, segment: str, blobs: Iterable[bytes]) -> list[str]:
        consumed = list(blobs)  # side effects of consuming them belong to the caller's time
        call = _writes_log("log.stage", segment)
        return self._port.call(call, lambda: self._inner.stage(segment, consumed))

    def read(self, addresses: Sequence[str]) -> Iterator[Blob]:
        def effect() -> list[Blob]:
            return list(self._inner.read(addresses))

        yield from self._port.call(_reads_log("log.read"), effect)

    def trim_decisions(self, position: int) -> None:
        call = _trims_log("trim_decisions", f"position {position}")
        self._port.call(call, lambda: self._inner.trim_decisions(position))

    def trim_blobs(self, needed: Collection[str], before_us: int) -> Trimmed:
        kept = list(needed)
        return self._port.call(_trims_log("trim_blobs"), lambda: self._inner.trim_blobs(kept, before_us))

    def size(self) -> LogSize:
        return self._port.call(_reads_log("log.size"), self._inner.size)

    def checks(self) -> list[Check]:
        return self._port.call(_reads_log("log.checks"), self._inner.checks)

    def now_us(self) -> int | None:
        return self._inner.now_us()

    def retention_s(self) -> float | None:
        return self._port.call(_reads_log("retention_s"), self._inner.retention_s)

    def drop(self) -> bool:
        return self._port.call(_writes_log("log.drop"), self._inner.drop)

    def close(self) -> None:
        self._inner.close()


class FaultyStore(Store):
    """A store whose calls pass a port."""

    def __init__(self, inner: Store, port: Port) -> None:
        self.where = inner.where
        self.can_be_filled, self.can_rewrite = inner.can_be_filled, inner.can_rewrite
        self._inner, self._port = inner, port

    def identity(self) -> Identity | None:
        return self._port.call(_reads_store("identity"), self._inner.identity)

    def create(self, identity: Identity, lost_at: int = 0) -> Identity:
        return self._port.call(_writes_store("store.create"), lambda: self._inner.create(identity, lost_at))

    def aliases(self) -> Aliases:
        """Return the aliases without the port: they are no part of the protocol."""
        return self._inner.aliases()

    def pointer(self) -> Pointer:
        return self._port.call(_reads_store("pointer"), self._inner.pointer)

    def claim(self, epoch: int, writer: str) -> int:
        call = _writes_store("claim", f"epoch {epoch}")
        return self._port.call(call, lambda: self._inner.claim(epoch, writer))

    def heartbeat(self, epoch: int) -> None:
        self._port.call(_writes_store("heartbeat"), lambda: self._inner.heartbeat(epoch))

    def end_heartbeat(self, epoch: int) -> None:
        self._port.call(_writes_store("end_heartbeat"), lambda: self._inner.end_heartbeat(epoch))

    def publish(self, entry: CatalogEntry, epoch: int) -> bool:
        call = _writes_store("publish", f"v{entry.version} epoch {epoch}")
        return self._port.call(call, lambda: self._inner.publish(entry, epoch))

    def put_schemas(self, schemas: Iterable[TableSchema]) -> None:
        given = list(schemas)
        self._port.call(_writes_store("put_schemas"), lambda: self._inner.put_schemas(given))

    def begin(self, stamp: Stamp, schemas: Iterable[TableSchema], epoch: int) -> bool:
        given, call = list(schemas), _writes_store("begin", f"v{stamp.version} epoch {epoch}")
        return self._port.call(call, lambda: self._inner.begin(stamp, given, epoch))

    def begun(self) -> list[Stamp]:
        return self._port.call(_reads_store("begun"), self._inner.begun)

    def discard(self, lost: Sequence[Stamp], epoch: int) -> None:
        call = _writes_store("discard", f"{[one.version for one in lost]} epoch {epoch}")
        self._port.call(call, lambda: self._inner.discard(lost, epoch))

    def apply(self, stamp: Stamp, *chunks: Chunk) -> None:
        frames = ", ".join(str(chunk.ordinal) for chunk in chunks)
        call = _writes_store("apply", f"v{stamp.version} frame {frames}")
        self._port.call(call, lambda: self._inner.apply(stamp, *chunks))

    def seal(self, stamp: Stamp, counts: Counts) -> None:
        call = _writes_store("seal", f"v{stamp.version} groups {sorted(counts)}")
        self._port.call(call, lambda: self._inner.seal(stamp, counts))

    def catalog(self, oldest: int = 0, newest: int | None = None) -> list[CatalogEntry]:
        return self._port.call(_reads_store("catalog"), lambda: self._inner.catalog(oldest, newest))

    def schemas(self) -> dict[str, TableSchema]:
        return self._port.call(_reads_store("schemas"), self._inner.schemas)

    def get_stored(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        def effect() -> Any:
            return self._inner.get_stored(at, keys)

        return self._port.call(_reads_store("get_stored"), effect)

    def scan_stored(self, at: ReadAt, group: int) -> Iterator[Any]:
        rows = self._inner.scan_stored(at, group)
        end = object()
        while (batch := self._port.call(_reads_store("scan"), lambda: next(rows, end))) is not end:
            yield batch

    def lease(self, lease: Lease, ttl_s: float) -> None:
        self._port.call(_writes_store("lease"), lambda: self._inner.lease(lease, ttl_s))

    def release(self, lease_id: str) -> None:
        self._port.call(_writes_store("release"), lambda: self._inner.release(lease_id))

    def leases(self) -> list[LeaseInfo]:
        return self._port.call(_reads_store("leases"), self._inner.leases)

    def announce(
        self,
        horizon: int,
        *,
        max_lease_s: float | None = None,
        max_layers: int | None = None,
        keep_versions: int | None = None,
        max_leases: int | None = None,
    ) -> int:
        def effect() -> int:
            return self._inner.announce(
                horizon,
                max_lease_s=max_lease_s,
                max_layers=max_layers,
                keep_versions=keep_versions,
                max_leases=max_leases,
            )

        return self._port.call(_writes_store("announce"), effect)

    def retire(
        self, stamp: Stamp, counts: Counts, changes: Iterable[Chunk], stopped: Stopped = never
    ) -> bool:
        given = list(changes)
        return self._port.call(
            _writes_store("retire"), lambda: self._inner.retire(stamp, counts, given, stopped)
        )

    def drop_expired(self, rows: int) -> int:
        return self._port.call(_writes_store("drop_expired"), lambda: self._inner.drop_expired(rows))

    def begin_fill(self, entry: CatalogEntry, epoch: int) -> int:
        call = _writes_store("begin_fill", f"v{entry.version} epoch {epoch}")
        return self._port.call(call, lambda: self._inner.begin_fill(entry, epoch))

    def publish_filled(self, entry: CatalogEntry, epoch: int, newer: Sequence[CatalogEntry] = ()) -> bool:
        call = _writes_store("publish_filled", f"v{entry.version} epoch {epoch}")
        return self._port.call(call, lambda: self._inner.publish_filled(entry, epoch, newer))

    def rewrite(self, stamp: Stamp, runs: Sequence[Run]) -> None:
        call = _writes_store("rewrite", f"v{stamp.version}")
        return self._port.call(call, lambda: self._inner.rewrite(stamp, runs))

    def missing(self, stamp: Stamp, counts: Counts) -> dict[int, Mapping[str, int]]:
        return self._port.call(_reads_store("missing"), lambda: self._inner.missing(stamp, counts))

    def verify(self, stamp: Stamp, counts: Counts) -> list[Finding]:
        return self._port.call(_reads_store("verify"), lambda: self._inner.verify(stamp, counts))

    def size(self) -> int:
        return self._port.call(_reads_store("size"), self._inner.size)

    def rows_of(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        return self._port.call(_reads_store("rows_of"), lambda: self._inner.rows_of(at, keys))

    def self_check(self) -> Iterator[Finding]:
        yield from self._port.call(_reads_store("self_check"), lambda: list(self._inner.self_check()))

    def row_counts(self, tables: Collection[str]) -> Iterator[RowCount]:
        yield from self._port.call(_reads_store("row_counts"), lambda: list(self._inner.row_counts(tables)))

    def part_of(self, group: int) -> str:
        return self._inner.part_of(group)

    def vacuum(self, *, dry_run: bool = False, thorough: bool = False) -> Vacuumed:
        def effect() -> Vacuumed:
            return self._inner.vacuum(dry_run=dry_run, thorough=thorough)

        return self._port.call(_writes_store("vacuum"), effect)

    def drop(self, *, thorough: bool = False) -> bool:
        return self._port.call(_writes_store("store.drop"), lambda: self._inner.drop(thorough=thorough))

    def close(self) -> None:
        self._inner.close()


def _shown(content: bytes) -> str:
    """Return a record's kind, for traces, without decoding it."""
    _, _, rest = content.partition(b'"kind":"')
    return rest.partition(b'"')[0].decode(errors="replace")


class Backwards:
    """A log whose blobs come in another order than they were asked for: any is right."""

    def __init__(self, log: Blobs) -> None:
        self._log, self.where = log, log.where

    def read(self, addresses: Sequence[str]) -> Iterator[Blob]:
        yield from reversed(list(self._log.read(addresses)))
