"""Part of the store suite: a repair puts back what a store lost, or reports what it did not compare.

Nine versions of six tables are written through a real driver, and all but the last three are retired. Then
rows are lost, and a repair has to leave every readable version as the test's own dictionaries have it.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.verify import verify
from tidegate.committers.repair.below_horizon import Repaired, repair_all
from tidegate.committers.repair.repair import repair
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer, summarise_if_due
from tidegate.errors import StoreNotVerifiedError, WalGapError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.store import Store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.store.harness import (
    KEY_GROUPS,
    ManualClock,
    Row,
    StoreHarness,
    group_of,
    put,
    retire_version,
    runs_of,
    scanned,
    stamp,
)
from tidegate.wal import memory_log
from tidegate.wal.memory_log import MemoryLog

VERSIONS, KEPT = 9, 3
HORIZON = VERSIONS - KEPT + 1
LIVES_S, APART_S = 90, 60
"""A row of ``brief`` is live at its own version and the next one."""
EMPTIED = {"emptied": (3, HORIZON, HORIZON + 1)}
"""Tables that versions empty before they write: below the horizon, at it, above it."""
DROPPED = {"gone": (3, HORIZON), "going": (2, HORIZON + 1)}
"""Tables that versions drop, and the next one makes again: below the horizon, at it, above it."""
KEYS = [b"k%02d" % number for number in range(16)]
OPTIONS = Options(
    key_groups=KEY_GROUPS,
    keep_versions=KEPT,
    ttl={"brief": f"{LIVES_S} seconds"},
    summary_every=2,
    apply_deadline_s=5.0,
    wal_retain_s=50.0,
)
LOSSES = {
    "the horizon": (HORIZON, HORIZON),
    "the version after the horizon": (HORIZON + 1, HORIZON + 1),
    "the visible version": (VERSIONS, VERSIONS),
    "all from the horizon on": (HORIZON, VERSIONS),
    "the base": (1, HORIZON - 1),
    "everything": (1, VERSIONS),
}

Contents = Mapping[str, Mapping[bytes, bytes]]


class Written:
    """A namespace in a store and in a log in memory, with its driver and its expected contents."""

    def __init__(self, store: Store, *, trimmed: bool) -> None:
        self.store, self.name, self.clock = store, uuid.uuid4().hex, ManualClock()
        self._chance = random.Random(7)
        self.rows: list[Row] = []
        self.contents: list[Contents] = [{}]
        self._written_at: dict[tuple[str, bytes], tuple[int, bytes]] = {}
        self.driver = self.opened(store)
        for _ in range(VERSIONS):
            self.write()
        self.retire()
        if trimmed:
            trimmer = Trimmer(self.driver.log, store, OPTIONS, self.clock)
            trimmer.trim(self.driver.decisions.view, self.clock.now_us())

    def opened(self, store: Store) -> Coordinator:
        """Open a new driver; the one before it is fenced."""
        log = MemoryLog(self.name, "suite", clock=self.clock)
        where = Endpoints("suite", f"memory://{self.name}", "memory://suite")
        driver = Coordinator(where, log, store, OPTIONS, self.clock)
        open_namespace(driver, "q")
        return driver

    def write(self) -> None:
        """Write the next version: some keys of each table get a value, some are deleted, also absent ones."""
        self.clock.advance(APART_S)
        version = len(self.contents)
        changes: dict[str, dict[bytes, bytes | None]] = {}
        drops = frozenset(table for table, versions in DROPPED.items() if version in versions)
        others = ("emptied", *sorted(DROPPED.keys() - drops), *(["late"] if version >= HORIZON - 1 else []))
        for table in ("plain", "brief", *others):
            chosen = self._chance.sample(KEYS, 6)
            changes[table] = {key: b"%s of %d" % (table.encode(), version) for key in chosen[:4]}
            changes[table] |= dict.fromkeys(chosen[4:])
        starts = frozenset(table for table, versions in EMPTIED.items() if version in versions)
        summarise_if_due(self.driver.decisions, self.driver.options.summary_every)
        origin = batch("q", version)
        barrier = ArrowBarrier(self.driver.log, changes, origin, KEY_GROUPS, starts=starts, drops=drops)
        assert commit(self.driver, barrier).version == version
        for table in starts | drops:
            self._written_at = {place: one for place, one in self._written_at.items() if place[0] != table}
        for table, of_table in changes.items():
            for key, value in of_table.items():
                self.rows.append(Row(table, group_of(key), key, version))
                self._written_at.pop((table, key), None)
                if value is not None:
                    self._written_at[table, key] = version, value
        content: dict[str, dict[bytes, bytes]] = {table: {} for table in changes}
        for (table, key), (written, value) in self._written_at.items():
            if table != "brief" or (version - written) * APART_S < LIVES_S:
                content[table][key] = value
        self.contents.append(content)

    def retire(self) -> None:
        """Retire the versions that are no longer kept, or repeat the last retirement."""
        driver = self.driver
        retire_up_to(driver.log, driver.store, driver.folded, OPTIONS, lambda: False)

    def lost(self, first: int, last: int) -> list[Row]:
        """List all rows that these versions wrote, also those that were retired."""
        return [row for row in self.rows if first <= row.version <= last]

    def close(self) -> None:
        memory_log.forget(self.name)


def read(store: Store, version: int) -> Contents:
    """Read every table at a version, by scanning it."""
    (entry,) = store.catalog(version, version)
    contents: dict[str, dict[bytes, bytes]] = {}
    for table in entry.tables:
        rows = contents.setdefault(table, {})
        for group in range(KEY_GROUPS):
            for page in store.scan(entry.read_at(table), group):
                rows |= zip(page["key"].to_pylist(), page["value"].to_pylist(), strict=True)
    return contents


class RepairTests(StoreHarness):
    """Tests of repair after a store lost rows, from the horizon on and below it (``committers/repair``)."""

    @pytest.fixture
    def whole(self) -> Iterator[Written]:
        yield from self._written(trimmed=False)

    @pytest.fixture
    def trimmed(self) -> Iterator[Written]:
        yield from self._written(trimmed=True)

    def _written(self, *, trimmed: bool) -> Iterator[Written]:
        new = self.make_store()
        written = Written(new, trimmed=trimmed)
        yield written
        written.close()
        new.close()

    def test_a_healthy_store_lost_nothing(self, whole: Written) -> None:
        assert repair(whole.driver) == []
        done = repair_all(whole.driver)
        assert done.put_back == []
        assert bool(done.not_compared) is not whole.store.can_rewrite
        self._check(whole, whole.store)
        assert whole.store.vacuum().rows == 0  # nothing was written again that retirement has dropped

    def test_a_healthy_store_of_an_old_log_lost_nothing_and_what_was_not_compared_is_told(
        self, trimmed: Written
    ) -> None:
        done = repair_all(trimmed.driver)
        assert done.put_back == []
        assert done.not_compared
        self._check(trimmed, trimmed.store)

    def test_whatever_is_lost_is_put_back(self, whole: Written) -> None:
        for name, versions in LOSSES.items():
            self._lose(whole, *versions)
            reopened = self.reopen(whole.store)
            done = self._repaired(whole, reopened)
            assert done.put_back, name
            whole.retire()  # a query that starts repeats the last retirement
            self._check(whole, reopened)
        assert repair(whole.driver) == []
        assert repair_all(whole.driver).put_back == []
        for _ in range(2 * KEPT):  # rows put back are replaced, deleted and retired like any others
            whole.write()
            whole.retire()
        self._check(whole, whole.driver.store)

    def test_a_repair_before_the_horizon_was_dropped_may_be_repeated(self, whole: Written) -> None:
        """The horizon's version then has more rows than its manifest counts: those written again."""
        whole.write()
        whole.store.announce(HORIZON + 1)
        self._lose(whole, 1, HORIZON - 1)
        reopened = self.reopen(whole.store)
        assert self._repaired(whole, reopened).put_back
        assert repair_all(whole.driver).put_back == []
        self._check(whole, reopened)
        whole.retire()
        assert repair_all(whole.driver).put_back == []
        self._check(whole, reopened)

    def test_of_an_old_log_what_it_has_is_put_back(self, trimmed: Written) -> None:
        """Retirement still needs the versions from the horizon on, so no log is trimmed further."""
        if self.lost_keys_need_the_whole_log:
            pytest.skip("a repair of this store reads the log from version 1")
        for name, versions in LOSSES.items():
            if versions[0] == 1 or (versions[0] == HORIZON and not trimmed.store.can_rewrite):
                continue
            self._lose(trimmed, *versions)
            reopened = self.reopen(trimmed.store)
            done = self._repaired(trimmed, reopened)
            assert done.put_back, name
            assert done.not_compared
            self._check(trimmed, reopened)

    def test_what_an_old_log_does_not_have_is_never_passed_over_in_silence(self, trimmed: Written) -> None:
        self._lose(trimmed, 1, HORIZON - 1)
        reopened = self.reopen(trimmed.store)
        try:
            done = self._repaired(trimmed, reopened)
        except WalGapError:
            with pytest.raises(StoreNotVerifiedError):  # reads of the lost rows are refused, too
                read(reopened, VERSIONS)
            return
        assert "not compared" in done.not_compared
        for version in range(HORIZON, VERSIONS + 1):
            for table, content in trimmed.contents[version].items():
                rows = read(reopened, version)[table]
                assert rows.items() <= content.items(), (version, table)

    def test_a_row_that_is_written_again_late_brings_nothing_back(self, store: Store) -> None:
        """Version 2 deleted one key and changed another, and was retired before the rewrite of 1 landed."""
        if not store.can_rewrite:
            pytest.skip("this store writes no single rows of its base again")
        first = {"t": {b"deleted": b"at-1", b"changed": b"at-1", b"kept": b"at-1"}}
        put(store, 1, first)
        later = put(store, 2, {"t": {b"deleted": None, b"changed": b"at-2"}})
        store.announce(2)
        retire_version(store, 2, later)
        store.rewrite(stamp(1), runs_of(first))
        store.rewrite(stamp(1), runs_of(first))
        expected = {b"changed": b"at-2", b"kept": b"at-1"}
        assert scanned(store, "t", 2) == expected
        put(store, 3, {"t": {b"new": b"at-3"}})
        assert scanned(store, "t", 3) == expected | {b"new": b"at-3"}
        store.vacuum()
        assert scanned(store, "t", 3) == expected | {b"new": b"at-3"}

    # -- helpers ---------------------------------------------------------------------------------

    def _lose(self, written: Written, first: int, last: int) -> None:
        self.lose_rows(written.store, written.lost(first, last))

    def _repaired(self, written: Written, store: Store) -> Repaired:
        """Repair as the command does: by a driver of its own, which then continues to write."""
        written.driver = written.opened(store)
        return repair_all(written.driver)

    def _check(self, written: Written, store: Store) -> None:
        pointer = store.pointer()
        assert pointer.visible == len(written.contents) - 1
        for version in range(pointer.horizon, pointer.visible + 1):
            assert read(store, version) == written.contents[version], version
        findings: list[Any] = verify(written.driver.log, store).findings
        assert findings == []
