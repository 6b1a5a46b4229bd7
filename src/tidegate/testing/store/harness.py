"""Harness of the store suite: the hooks that a subclass implements, and plain helpers.

The helpers compute key groups, counts and expected values by themselves, from dictionaries, so that neither
the store nor the library is tested with itself.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
import xxhash

from tidegate.base.clock import Clock
from tidegate.sinks.capabilities import SupportsApplyAndSeal
from tidegate.sinks.records import CatalogEntry, Identity, ReadAt, Stamp
from tidegate.sinks.rules.key_sets import KeySets
from tidegate.sinks.store import Store
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.record import LoadOrigin, TableAt

KEY_GROUPS = 4
EPOCH = 1

Changes = Mapping[str, Mapping[bytes, bytes | None]]
"""The changes of one version: table -> key -> value, None for a delete."""


class ManualClock(Clock):
    """A clock that does not advance by itself."""

    def __init__(self) -> None:
        self._now_us = 1_700_000_000_000_000

    def now_us(self) -> int:
        return self._now_us

    def monotonic(self) -> float:
        return self._now_us / 1e6

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self._now_us += round(seconds * 1e6)


class StorePlace(NamedTuple):
    """The place of a store, by which another process opens it: the arguments of ``open_store``."""

    url: str
    namespace: str
    options: dict[str, Any]


class Row(NamedTuple):
    """A row as the store holds it, visible or not."""

    table: str
    group: int
    key: bytes
    version: int


class StoreHarness(abc.ABC):
    """The hooks of a store's suite. A capability that the store lacks skips the tests that need it."""

    page_rows = 1_000
    """The number of rows of a scan that the store reads at once: tests cross this boundary."""
    large_value_bytes = 16 * 1024 * 1024
    knows_every_table = True
    """Whether a seal notices changes of a table that its counts do not name."""

    size_follows_writes = True
    """Whether the size includes new writes at once."""

    lost_rows_can_be_put_back = True
    """Whether ``lose_row`` leaves nothing that hides the row when it is written again."""

    lost_keys_need_the_whole_log = False
    """Whether repair reads the log from version 1 where ``lose_rows`` took any row, also a newer one."""

    @abc.abstractmethod
    def make_store(self) -> Store:
        """Make a store in which nothing was created yet, in a place of its own: every call another place."""

    @abc.abstractmethod
    def reopen(self, store: Store) -> Store:
        """Open another instance on the same place."""

    def place(self, store: Store) -> StorePlace | None:
        """Return the place by which another process opens it; None when other processes cannot."""
        return None

    def advance(self, store: Store, seconds: float) -> None:
        """Advance the store's clock."""
        pytest.skip("this store's clock cannot be moved")

    def allow_leases(self, store: Store, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Set the most leases that the store allows. A store that cannot note it overrides this."""
        store.announce(1, max_leases=most)

    def stored_rows(self, store: Store) -> set[Row]:
        """Read all existing rows, without the store's methods."""
        pytest.skip("this store's rows cannot be read from outside")

    def lose_row(self, store: Store, row: Row) -> None:
        """Remove one row without the store's methods."""
        pytest.skip("this store's rows cannot be removed from outside")

    def lose_rows(self, store: Store, rows: Collection[Row]) -> None:
        """Remove these rows, if they exist, as servers lose them: nothing hides a row that is written again.

        May remove others of the same version, table and key group with them.
        """
        pytest.skip("this store's rows cannot be removed from outside")

    # -- built on the hooks ----------------------------------------------------------------------

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        yield from self._created(KEY_GROUPS)

    @pytest.fixture
    def one_group(self) -> Iterator[Store]:
        """A store with one key group, so that the test decides where a page of a scan ends."""
        yield from self._created(key_groups=1)

    def _created(self, key_groups: int) -> Iterator[Store]:
        with contextlib.closing(self.make_store()) as new:
            new.create(Identity("uuid-1", "suite", key_groups))
            new.claim(EPOCH, "writer-1")
            yield new


# -- versions from dictionaries ---------------------------------------------------------------


def group_of(key: bytes, key_groups: int = KEY_GROUPS, stride: int = 1) -> int:
    group = int(xxhash.xxh64_intdigest(key, seed=42) % key_groups)
    return group - group % stride


def runs_of(changes: Changes, key_groups: int = KEY_GROUPS, stride: int = 1) -> list[Run]:
    """Return the changes as sorted runs."""
    stored = {
        table: {key: b"-" if value is None else b"+" + value for key, value in rows.items()}
        for table, rows in changes.items()
    }
    return runs_of_stored(stored, key_groups, stride)


def runs_of_stored(
    values: Mapping[str, Mapping[bytes, bytes]], key_groups: int = KEY_GROUPS, stride: int = 1
) -> list[Run]:
    """Return stored values, by table and key, as sorted runs."""
    runs: dict[tuple[int, str], list[bytes]] = {}
    for table, rows in values.items():
        for key in sorted(rows):
            runs.setdefault((group_of(key, key_groups, stride), table), []).append(key)
    return [
        Run(group, table, binary(keys), binary(values[table][key] for key in keys))
        for (group, table), keys in sorted(runs.items())
    ]


def chunks_of(changes: Changes, key_groups: int = KEY_GROUPS, rows_max: int = 1_000_000) -> list[Chunk]:
    """Return the changes as one chunk per ``rows_max`` rows of a run (at least one chunk if any)."""
    chunks: list[Chunk] = []
    for run in runs_of(changes, key_groups):
        for row in range(0, len(run.keys), rows_max):
            piece = run._replace(keys=run.keys.slice(row, rows_max), values=run.values.slice(row, rows_max))
            chunks.append(Chunk(len(chunks), [piece]))
    return chunks


def counts_of(changes: Changes, key_groups: int = KEY_GROUPS) -> dict[int, dict[str, int]]:
    return counts_of_runs(runs_of(changes, key_groups))


def counts_of_runs(runs: Iterable[Run]) -> dict[int, dict[str, int]]:
    """Count the rows by key group and table."""
    counts: dict[int, dict[str, int]] = {}
    for run in runs:
        of_group = counts.setdefault(run.group, {})
        of_group[run.table] = of_group.get(run.table, 0) + len(run.keys)
    return counts


def retire_version(
    store: Store, version: int, changes: Iterable[Chunk], stopped: Callable[[], bool] = lambda: False
) -> bool:
    """Retire the version by exactly these chunks of its changes; return whether it was completed."""
    chunks = list(changes)
    counts = counts_of_runs(run for chunk in chunks for run in chunk.runs)
    return store.retire(stamp(version), counts, iter(chunks), stopped)


def binary(values: Iterable[bytes]) -> Any:
    return pa.array(list(values), pa.binary())


def stamp(version: int) -> Stamp:
    return Stamp(version, 1_000 + version)


def entry(version: int, changes: Changes | None = None, **starts: int) -> CatalogEntry:
    """Make a catalog entry; ``starts`` are the versions at which tables were emptied."""
    tables = {table: TableAt("schema-1", starts.get(table, 0)) for table in {**(changes or {}), **starts}}
    return CatalogEntry(
        version=version,
        digest=f"digest-{version}",
        attempt=f"attempt-{version}",
        origin=LoadOrigin(f"token-{version}"),
        decided_at_us=1_000 + version,
        tables=tables,
        changes={table: len(keys) for table, keys in (changes or {}).items()},
        parallelism={"query": {"sink": 2}},
    )


def write(store: Store, version: int, changes: Changes, key_groups: int = KEY_GROUPS) -> None:
    """Apply and seal one version, all in one chunk; two of three by one call, if the store supports it."""
    chunk, counts = Chunk(0, runs_of(changes, key_groups)), counts_of(changes, key_groups)
    if isinstance(store, SupportsApplyAndSeal) and version % 3:
        sets = KeySets(counts, least=1)
        sets.add([chunk])
        store.apply_and_seal(stamp(version), counts, chunk, sets=sets)
    else:
        store.apply(stamp(version), chunk)
        store.seal(stamp(version), counts)


def put(
    store: Store, version: int, changes: Changes, key_groups: int = KEY_GROUPS, **starts: int
) -> list[Chunk]:
    """Apply, seal and publish one version; return its changes."""
    write(store, version, changes, key_groups)
    assert store.publish(entry(version, changes, **starts), EPOCH) is True
    return [Chunk(0, runs_of(changes, key_groups))]


def put_drop(store: Store, version: int, table: str, **starts: int) -> None:
    """Publish a version that drops a table, and has no rows; ``starts`` are those of the tables that stay."""
    dropping = msgspec.structs.replace(entry(version, {}, **starts), dropped=(table,))
    assert store.publish(dropping, EPOCH) is True


def put_each(store: Store, last: int, table: str = "") -> None:
    """Publish versions 1 to ``last``: empty ones, or with the version as the value of key k in a table."""
    for version in range(1, last + 1):
        put(store, version, {table: {b"k": b"%d" % version}} if table else {})


def live(rows: Mapping[bytes, bytes | None]) -> dict[bytes, bytes]:
    """Return the rows without deletes."""
    return {key: value for key, value in rows.items() if value is not None}


def get(store: Store, table: str, keys: Sequence[bytes], version: int, start: int = 0) -> list[Any]:
    values = store.get_many(ReadAt(table, version, start, at_us=stamp(version).decided_at_us), keys)
    assert values.type == pa.binary()
    assert len(values) == len(keys)
    return list(values.to_pylist())


def scanned(
    store: Store, table: str, version: int, start: int = 0, key_groups: int = KEY_GROUPS
) -> dict[bytes, bytes]:
    """Scan every key group of a table; check order, types and groups on the way."""
    rows: dict[bytes, bytes] = {}
    for group in range(key_groups):
        keys: list[bytes] = []
        for batch in store.scan(ReadAt(table, version, start, at_us=stamp(version).decided_at_us), group):
            assert batch.schema.names == ["key", "value"]
            assert batch.schema.types == [pa.binary(), pa.binary()]
            assert batch.num_rows > 0
            keys += batch["key"].to_pylist()
            rows.update(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
        assert keys == sorted(set(keys))
        assert all(group_of(key, key_groups) == group for key in keys)
    assert None not in rows.values()
    return rows
