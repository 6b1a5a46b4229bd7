"""Logs in memory and in files that lose their last records, at every step of a commit; copies put back.

On servers: ``tests/services/mixed/test_log_loss.py``.
"""

import collections
import itertools
import os
import shutil
import uuid

import pytest

from crash.log_loss import (
    AGAIN,
    BEFORE,
    LOST,
    STEPS,
    LossWorld,
    dies_at,
    goes_on,
    rows_before,
    trim,
)
from support.clocks import ClockAhead
from tidegate.base import failpoints
from tidegate.errors import WalGapError
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.wal.file.format import HEADER_BYTES
from tidegate.wal.file.log import FileLog
from tidegate.wal.memory_log import MemoryLog

EXPECTED = {
    # By step: what the next driver meets when 1, 2 or 3 records are gone; the third is of a visible version.
    "claimed": ["opened", "opened", "put back"],
    "decided": ["opened", "opened", "put back"],
    "begun": ["discarded", "discarded", "put back"],
    "applied": ["discarded", "discarded", "put back"],
    "sealed": ["discarded", "discarded", "put back"],
    "flipped": ["put back", "put back", "put back"],
    "returned": ["put back", "put back", "put back"],
    "trimmed": ["put back", "put back", "put back"],
}


class InMemory:
    def __init__(self, name):
        self.name = name

    def log(self):
        return MemoryLog(self.name, "n")

    def cut(self, records):
        content = self.log()._content
        self.gone = content.records[-records:]
        del content.records[-records:]

    def put_back(self):
        content = self.log()._content
        del content.records[self.whole - len(self.gone) :]
        content.records += self.gone

    def keep(self):
        self.whole = len(self.log()._content.records)


class InFiles:
    def __init__(self, folder):
        self.folder = folder
        self.copy = folder.with_name("copy")

    def log(self):
        return FileLog(self.folder, "n")

    @property
    def decisions(self):
        (found,) = self.folder.rglob("decisions.log")
        return found

    def keep(self):
        shutil.copyfile(self.decisions, self.copy)

    def cut(self, records):
        log = self.log()
        there = list(log.decisions())
        log.close()
        base = there[0].position - HEADER_BYTES
        with self.decisions.open("r+b") as file:
            file.truncate(there[-min(records, len(there))].position - base)

    def put_back(self):
        shutil.copyfile(self.copy, self.decisions)


def world_of(log, store, tmp_path):
    name = uuid.uuid4().hex
    place = InMemory(name) if log == "memory" else InFiles(tmp_path / "wal")

    def make_store():
        return MemoryStore(name, "n") if store == "memory" else SqliteStore(str(tmp_path / "store"), "n")

    return place, LossWorld(place.log, make_store)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("dead_s, next_s", [(60, 0), (0, 60)])
@pytest.mark.parametrize("producer", ["same", "new"])
@pytest.mark.parametrize("records", [1, 2, 3])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("places", [("memory", "memory"), ("file", "sqlite")], ids="-".join)
def test_the_log_loses_its_last_records(places, step, records, producer, dead_s, next_s, tmp_path):
    """The clocks of the driver that dies and of the next one: the later one's rows have the later times."""
    place, world = world_of(*places, tmp_path)
    dead = dies_at(world, step, ClockAhead(dead_s))
    place.keep()
    place.cut(records)
    log = dead.log if producer == "same" else None
    way = goes_on(world, dead, place.put_back, ClockAhead(next_s), log=log)
    expected = EXPECTED[step][records - 1]
    if (places[0], producer, expected) == ("file", "same", "opened"):
        expected = "put back"  # an instance of a log in files knows how far it went
    assert way == expected


@pytest.mark.parametrize("step", ["begun", "applied", "sealed"])
@pytest.mark.parametrize("producer", ["same", "new"])
@pytest.mark.parametrize("places", [("memory", "memory"), ("file", "sqlite")], ids="-".join)
def test_a_driver_that_lives_on_notices_at_its_next_append(places, producer, step, tmp_path):
    """Also where the log's own client does not know the one that wrote before."""
    place, world = world_of(*places, tmp_path)
    driver = dies_at(world, step)
    driver.decisions.catch_up()
    place.keep()
    place.cut(2)
    if producer == "new":
        driver.decisions.log = place.log()
    with pytest.raises(WalGapError, match=r"lost records|ends at"):
        world.commit(driver, BEFORE + 1, rows_before(1))
    assert driver.store.pointer().visible == BEFORE


def test_a_mix_would_be_seen_if_nothing_were_noted(tmp_path, monkeypatch):
    """The suite itself: without the comparison at open two attempts are mixed, and the check finds it."""
    place, world = world_of("memory", "memory", tmp_path)
    dead = dies_at(world, "sealed")
    place.keep()
    place.cut(1)
    monkeypatch.setattr("tidegate.committers.opening.lost_attempts.lost_of", lambda *_: [])
    attempts = dead.store._found.attempts
    monkeypatch.setattr(type(attempts), "refuse_other", lambda *_: None)
    with pytest.raises(AssertionError, match="version 5"):
        goes_on(world, dead, place.put_back)


def test_a_decision_after_a_discard_is_later_than_what_was_discarded(tmp_path):
    """A store that goes by times would show the discarded rows else."""
    place, world = world_of("memory", "memory", tmp_path)
    dead = dies_at(world, "sealed", ClockAhead(60))
    lost = dead.folded.recent[-1]
    place.cut(1)
    world.opened(discard_lost=True)
    driver = world.opened()
    world.commit(driver, BEFORE, AGAIN)
    assert driver.folded.recent[-1].decided_at_us > lost.decided_at_us


# -- copies of different moments ---------------------------------------------------------------------

MOMENTS = [
    *("open.after_append", "open.after_claim", "trim.after_decisions", "trim.after_blobs"),
    *("decide.before_append", "decide.after_append", "apply.after_begin"),
    *("apply.after_chunk", "publish.before", "publish.after", "summary.after_append"),
]
TWICE = ("decide.after_append", "publish.after")
"""Moments of the second version, too."""


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """Log and store, each copied at every moment of two versions; and what each attempt has."""
    root = tmp_path_factory.mktemp("copies")
    world = LossWorld(lambda: FileLog(root / "wal", "n"), lambda: SqliteStore(str(root / "store"), "n"))
    moments = []
    driver = world.opened()
    world.commit(driver, 0, rows_before(0))
    world.commit(driver, 1, rows_before(1))

    def copy(name):
        if name in MOMENTS and (name not in moments or name in TWICE):
            for part in ("wal", "store"):
                shutil.copytree(root / part, root / f"{part}-{len(moments)}")
            moments.append(name)

    failpoints.listen(copy)
    try:
        driver = world.opened()
        world.commit(driver, 2, LOST)
        world.commit(driver, 3, rows_before(3))
        for path in (root / "wal").rglob("*.seg"):
            os.utime(path, (1, 1))  # else a file is too young to be dropped
        trim(driver)
    finally:
        failpoints.listen(None)
        failpoints.arm(None)
    return root, moments, world.rows


def put_back(copies, tmp_path, of_store, of_log):
    root, _, rows = copies
    shutil.copytree(root / f"store-{of_store}", tmp_path / "store")
    shutil.copytree(root / f"wal-{of_log}", tmp_path / "wal")
    return LossWorld(
        lambda: FileLog(tmp_path / "wal", "n"), lambda: SqliteStore(str(tmp_path / "store"), "n"), rows=rows
    )


def write_on(world, driver):
    """The checkpoint goes on at the batch behind the last one decided, with other rows."""
    last = driver.folded.last_version
    world.commit(driver, last, AGAIN)
    world.commit(driver, last + 1, rows_before(5))
    world.check(last + 2)


def test_a_store_copied_before_its_log_is_right(copies, tmp_path):
    moments = range(len(copies[1]))
    assert {*MOMENTS} == {*copies[1]}
    ways = collections.Counter()
    for of_store, of_log in itertools.combinations_with_replacement(moments, 2):
        folder = tmp_path / f"{of_store}-{of_log}"
        folder.mkdir()
        world = put_back(copies, folder, of_store, of_log)
        try:
            driver = world.opened()
        except WalGapError as refused:
            if copies[1][of_log] != "trim.after_blobs" or "newer copy of the store" not in str(refused):
                raise
            ways["refused"] += 1  # the store's copy is older than what the log keeps
            continue
        ways["opened"] += 1
        write_on(world, driver)
    assert set(ways) == {"opened", "refused"}
    print(f"the store's copy is the older one, or of the same moment: {dict(ways)}")


def test_a_log_copied_before_its_store_is_right_or_refused(copies, tmp_path):
    ways = collections.Counter()
    moments = range(len(copies[1]))
    for of_log, of_store in itertools.combinations(moments, 2):
        folder = tmp_path / f"{of_store}-{of_log}"
        folder.mkdir()
        world = put_back(copies, folder, of_store, of_log)
        try:
            driver = world.opened()
        except WalGapError as refused:
            way = "discard" if "--discard-lost" in str(refused) else "restore"
            ways[way if way in str(refused) else str(refused)] += 1
            if way == "restore":
                continue
            driver = world.opened(discard_lost=True)
            assert [one.version for one in driver.discarded]
        else:
            ways["opened"] += 1
        write_on(world, driver)
    print(f"the log's copy is the older one: {dict(ways)}")
    assert ways.keys() == {"restore", "discard", "opened"}
