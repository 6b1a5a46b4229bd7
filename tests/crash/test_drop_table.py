"""SIGKILL in the version that drops a table, and in its retirement; the next driver finishes (I1, I2, I4)."""

import sqlite3
from contextlib import closing

import pytest

from tidegate.base import failpoints
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.verify import verify
from tidegate.committers.steps.retire import retire_up_to
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.process.forked import Forked
from tidegate.wal.fold import replay_of
from tidegate.wal.open_log import open_log

KEYS = [b"k%d" % number for number in range(20)]
OPTIONS = Options(key_groups=4, keep_versions=1)
OLD, NEW = dict.fromkeys(KEYS, b"old"), {b"new": b"1"}
BATCHES = [
    ({"t": OLD, "u": {b"a": b"0"}}, frozenset()),
    ({"u": {b"a": b"1"}}, frozenset({"t"})),
    ({"t": NEW, "u": {b"a": b"2"}}, frozenset()),
]
CONTENTS = [{}, {"t": OLD, "u": {b"a": b"0"}}, {"u": {b"a": b"1"}}, {"t": NEW, "u": {b"a": b"2"}}]
POINTS = [
    "stage.before_ack@2",
    "manifest.after_write@2",
    "decide.before_append@2",
    "decide.after_append@2",
    "apply.after_begin@2",
    "publish.before@2",
    "publish.after@2",
    "commit.before_return@2",
    "retire.after_announce@2",
    "publish.after@3",
    "retire.after_announce@3",
]


def driver_of(folder):
    wal, store = f"file://{folder}/wal", f"sqlite://{folder}/store"
    return Coordinator(Endpoints("n", wal, store), open_log(wal, "n"), open_store(store, "n"), OPTIONS)


def play(folder, armed):
    """Write the batches that are not decided yet, and retire after each one. In a process of its own."""
    failpoints.arm(armed)
    driver = driver_of(folder)
    open_namespace(driver, "q")
    for number, (rows, drops) in enumerate(BATCHES):
        origin = batch("q", number)
        if replay_of(driver.folded, origin) is None:
            commit(driver, ArrowBarrier(driver.log, rows, origin, 4, parallelism=1, drops=drops))
        retire_up_to(driver.log, driver.store, driver.folded, OPTIONS, lambda: False)
    return 0


def contents(store, entry):
    return {
        table: {
            key: value
            for group in range(4)
            for rows in store.scan(entry.read_at(table), group)
            for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
        }
        for table, at in entry.tables.items()
    }


def rows_of_t(folder):
    """Read the versions of the rows of table t with plain SQL."""
    versions = set()
    for path in (folder / "store" / "n").glob("shard-*.sqlite"):
        with closing(sqlite3.connect(path)) as connection:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 't_t'").fetchone():
                versions |= {version for (version,) in connection.execute("SELECT version FROM t_t")}
    return versions


@pytest.mark.one_in(2)
@pytest.mark.parametrize("point", POINTS)
def test_killed_in_a_drop_i1_i2_i4(tmp_path, point):
    first = Forked(play, (str(tmp_path), point.replace("@", "=kill@")), tmp_path / "first")
    assert first.wait(120)
    assert first.exit_code == -9, first.output.read_text()
    with closing(open_store(f"sqlite://{tmp_path}/store", "n")) as store:
        for entry in store.catalog():
            assert contents(store, entry) == CONTENTS[entry.version]
    last = Forked(play, (str(tmp_path), ""), tmp_path / "last")
    assert last.wait(120)
    assert last.exit_code == 0, last.output.read_text()
    driver = driver_of(tmp_path)
    with closing(driver.log), closing(driver.store):
        (entry,) = driver.store.catalog()
        assert (entry.version, contents(driver.store, entry)) == (3, CONTENTS[3])
        assert driver.decisions.catch_up().last_version == 3
        assert verify(driver.log, driver.store).findings == []
    assert rows_of_t(tmp_path) == {3}
