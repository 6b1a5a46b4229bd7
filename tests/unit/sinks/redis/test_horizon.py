"""Merges in Redis know where tables start, also while the horizon moves on. No server."""

from __future__ import annotations

import pytest

from tidegate.errors import StoreNotVerifiedError
from tidegate.sinks.records import CatalogEntry, Identity, Pointer, Stamp, Vacuumed
from tidegate.sinks.redis.store import LOOKS, RedisStore
from tidegate.sinks.redis.upkeep import merge as redis_upkeep
from tidegate.wal.record import LoadOrigin, TableAt

EMPTIED = 5


def entry(version):
    tables = {"t": TableAt("schema", EMPTIED)}
    return CatalogEntry(version, "digest", "attempt", LoadOrigin("token"), 1_000 + version, tables, {})


class Moving(RedisStore):
    """Version 5 has emptied table t. The horizon moves on between two requests, ``moves`` times, and the
    entries below it go.
    """

    def __init__(self, moves):
        super().__init__("redis://nowhere", "n")
        self._space._known = Identity("uuid", "n", 2)
        self.moves, self.horizon, self.merged, self.asked = moves, EMPTIED, [], []

    def pointer(self):
        seen = Pointer(100, "digest", 1, "writer", self.horizon)
        if self.moves:
            self.moves, self.horizon = self.moves - 1, self.horizon + 1
        return seen

    def catalog(self, oldest=0, newest=None):
        return [entry(oldest)] if oldest == newest and oldest >= self.horizon else []

    def _passed_entry(self, _version):
        return None


@pytest.fixture
def merges(monkeypatch):
    """What is merged: the starts that are known, and up to which version."""
    found = []

    def merge(_space, starts, upto, *_, **__):
        found.append((dict(starts), upto))
        return 0, True

    def merge_all(_space, starts, upto, at_us, *, dry_run):
        found.append((dict(starts), upto, at_us, dry_run))
        return 0

    monkeypatch.setattr(redis_upkeep, "merge", merge)
    monkeypatch.setattr(redis_upkeep, "merge_all", merge_all)
    monkeypatch.setattr(redis_upkeep, "listing", lambda _, tables: {(1, table) for table in tables})
    monkeypatch.setattr("tidegate.sinks.redis.store.sweep", lambda *_, **__: 0)
    answers = {"leftovers": 0, "leases": [b"1", b"0", 0, 0], "announce": [0, b"0", 0]}
    answers |= {"begun": [b""], "schemas": []}
    monkeypatch.setattr(
        "tidegate.sinks.redis.namespace.RedisNamespace.ask", lambda _, name, *__: answers.get(name, 0)
    )
    return found


@pytest.mark.parametrize("moves", range(LOOKS))
def test_i8_a_table_that_was_emptied_stays_so_where_the_horizon_moves_on(merges, moves):
    store = Moving(moves)
    assert store.retire(Stamp(EMPTIED, 1), {0: {"t": 1}}, iter(()))
    assert merges == [({(0, "t"): EMPTIED, (1, "t"): EMPTIED}, EMPTIED)]


def test_i8_a_vacuum_knows_where_tables_start_and_when_their_rows_expire(merges):
    store = Moving(moves=2)
    assert store.vacuum() == Vacuumed()
    horizon = EMPTIED + 2
    assert merges == [({"t": EMPTIED}, horizon, 1_000 + horizon, False)]


def test_nothing_is_merged_where_the_catalog_lacks_the_horizons_entry(merges):
    store = Moving(moves=1_000)
    for merge in (store.vacuum, lambda: store.retire(Stamp(EMPTIED, 1), {0: {"t": 1}}, iter(()))):
        with pytest.raises(StoreNotVerifiedError, match=r"no entry in the catalog; nothing was merged"):
            merge()
    assert merges == []
