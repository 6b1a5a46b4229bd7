"""A table that was emptied, or dropped and made again with another key or other key groups (T68).

Rows are by key group and key. A table's earlier rows are in other key groups, or under other keys: nothing
that compares several versions takes them for rows that readers lack.
"""

import contextlib
import sqlite3
from pathlib import Path

import pytest

import tidegate
from support.places import new_place, rows_by_table
from tidegate.committers.exports.export import export
from tidegate.committers.exports.import_rows import import_rows, read_whole
from tidegate.committers.operations.local_coordinator import coordinator_for, followers_in
from tidegate.committers.operations.restore import restore
from tidegate.committers.operations.restore_plan import plan_restore
from tidegate.committers.operations.verify import verify
from tidegate.committers.repair.below_horizon import repair_all
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.transfer.rekey.move import finish, follow
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints, StoreRef
from tidegate.sinks.memory import store as memory_store
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import SCHEMAS, Example
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Column, TableSchema

KEY_GROUPS = 8
OTHER_KEY = TableSchema((Column("number", "int"),), SCHEMAS["airports"].value)
HORIZONS = (7, 4, 2, 1)
"""Numbers of versions that are kept, so that 1, 4, 6 and 7 are the horizon."""
MADE = {
    "8 to 2": (8, 2, None),
    "2 to 8": (2, 8, None),
    "2 to 4": (2, 4, None),
    "another key": (8, 8, OTHER_KEY),
    "another key, 4 to 8": (4, 8, OTHER_KEY),
}


def rows_of(keys, departures):
    return {key: {"departures": departures, "delay": 0.5} for key in keys}


class Place:
    """A namespace whose table ``airports`` is made, emptied, dropped, and made again; store b lags."""

    def __init__(self, kind, folder, before, after, schema):
        name = new_place()
        self.wal = f"memory://{name}" if kind == "memory" else f"file://{folder}/wal"
        self.stores = {
            at: f"memory://{name}-{at}" if kind == "memory" else f"sqlite://{folder}/{at}" for at in "ab"
        }
        self.groups, self.schema = before, SCHEMAS["airports"]
        self.example = self.opened()
        names = [f"A{number}" for number in range(40)]
        self.write(rows_of(names, 1))
        self.write({**rows_of(names[:9], 2), **dict.fromkeys(names[30:])})
        self.write(rows_of(names[5:25], 3), starts=frozenset({"airports"}))
        self.write(rows_of(names[20:30], 4))
        self.catch_up()
        self.write(None, drops=frozenset({"airports"}))
        self.groups = after
        self.example.close()
        self.example = self.opened()
        if schema is not None:
            self.schema = self.example.schemas["airports"] = schema
            names = range(40)
        self.write(rows_of(names[:35], 6))
        self.write({**rows_of(names[:5], 7), **dict.fromkeys(names[30:35])})
        self.content = {**rows_of(names[:30], 6), **rows_of(names[:5], 7)}

    def catch_up(self):
        """Bring store b up to date."""
        (follower,) = followers_in(self.example.driver)
        assert follower.catch_up().error == ""
        follower.store.close()

    def opened(self):
        options = Options(
            key_groups=KEY_GROUPS, keep_versions=100, table_key_groups={"airports": self.groups}
        )
        stores = [StoreRef(name, url) for name, url in self.stores.items()]
        return Example(self.wal, stores, options=options)

    def write(self, rows, **how):
        notes = {b"%d" % (self.example.driver.folded.last_version + 1): b"note"}
        return self.example.write({"notes": notes} | ({} if rows is None else {"airports": rows}), **how)

    def retire(self, keep, name="a"):
        driver = self.example.driver
        with contextlib.closing(open_store(self.stores[name], "flights")) as store:
            retire_up_to(driver.log, store, driver.folded, Options(keep_versions=keep), lambda: False)

    def found(self, name="a"):
        with contextlib.closing(open_store(self.stores[name], "flights")) as store:
            return verify(self.example.driver.log, store).findings

    def lose(self, *keys):
        """Delete the rows of some keys of ``airports`` from store a, by hand."""
        lost = [self.example._key("airports", key) for key in keys]
        if self.wal.startswith("memory"):
            space = memory_store._spaces[self.stores["a"].removeprefix("memory://"), "flights"]
            for (table, _), rows in space.rows.items():
                for key in lost if table == "airports" else ():
                    rows.pop(key, None)
            return
        for path in Path(self.stores["a"].removeprefix("sqlite://")).glob("flights/shard-*.sqlite"):
            with contextlib.closing(sqlite3.connect(path)) as connection, contextlib.suppress(sqlite3.Error):
                connection.executemany("DELETE FROM t_airports WHERE key = ?", [(key,) for key in lost])
                connection.commit()


@pytest.fixture(params=["memory", "sqlite"])
def kind(request):
    return request.param


@pytest.fixture(params=MADE)
def place(request, kind, tmp_path):
    made = Place(kind, tmp_path, *MADE[request.param])
    yield made
    made.example.close()


def test_verify_and_repair_at_every_horizon(place):
    """Also of a row that was deleted by hand, the only thing that they find."""
    keys = list(place.content)
    for keep in HORIZONS:
        place.retire(keep)
        assert place.found() == []
        place.lose(keys[3], keys[8])
        assert all("table airports" in finding.where for finding in place.found())
        assert place.found()
        assert repair_all(place.example.driver).put_back
        assert place.found() == []
    assert not repair_all(place.example.driver).put_back
    assert rows_by_table(place.stores["a"])["airports"] == place.content


@pytest.mark.parametrize("lost", [False, True], ids=["it lags", "it is filled again"])
def test_another_store(place, lost):
    if lost:
        with contextlib.closing(open_store(place.stores["b"], "flights")) as store:
            store.drop()
    place.catch_up()
    for keep in HORIZONS:
        place.retire(keep, "b")
        assert place.found("b") == []
    assert rows_by_table(place.stores["b"])["airports"] == place.content


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
def test_readers_and_the_log(place):
    """A diff within one making, the changes of each version, and a mirror over all of them."""
    with tidegate.connect(place.stores["a"], "flights", wal=place.wal) as gate:
        assert {change.key for change in gate.diff(3, 4, "airports")} == {f"A{n}" for n in range(20, 30)}
        rows = {}
        for version in range(1, 8):
            entry = gate.history()[version - 1]
            if "airports" in entry.dropped:
                rows.clear()
                continue
            with gate.changes(version, "airports") as changes:
                rows = {} if changes.emptied else rows
                rows |= {row.key: row.value for row in changes}
        assert {key: value for key, value in rows.items() if value is not None} == place.content
        with gate.mirror(["airports"]) as mirror:
            place.write(None, drops=frozenset({"airports"}))
            mirror.wait_for(8)
            place.example.close()
            place.groups = 8
            place.example = place.opened()
            place.example.schemas["airports"] = SCHEMAS["airports"]
            place.write(rows_of(["B1"], 9))
            mirror.wait_for(9)
            assert dict(mirror.table("airports").scan()) == rows_of(["B1"], 9)


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
def test_a_restore_from_the_log_and_an_export(place, tmp_path):
    """Versions whose rows are only in the log, and an export into a namespace with other key groups."""
    driver = place.example.driver
    place.write(rows_of(list(place.content)[:1], 8))
    place.retire(1)
    restore(driver, plan_restore(driver, 7))
    assert rows_by_table(place.stores["a"])["airports"] == place.content
    with contextlib.closing(open_store(place.stores["a"], "flights")) as store:
        export(store, store.identity(), 9, tmp_path / "export")
    other = Example(place.wal, place.stores["a"], "other", options=Options(key_groups=6))
    manifest, token = read_whole(tmp_path / "export")
    import_rows(other.driver, tmp_path / "export", manifest, token)
    other.close()
    assert rows_by_table(place.stores["a"], "other")["airports"] == place.content
    assert place.found() == []


@pytest.mark.parametrize("begun", [4, 7])
@pytest.mark.parametrize("made", MADE)
def test_a_rekey_that_follows_or_begins_after_it(tmp_path, made, begun, monkeypatch):
    copied = []

    def follow_to(place):
        stores = [StoreRef(name, url) for name, url in place.stores.items()]
        where = [Endpoints.of(name, place.wal, stores) for name in ("flights", "copy")]
        with coordinator_for(where[0]) as old, coordinator_for(where[1], Options(key_groups=16)) as new:
            copied.append(follow(old, new))
            if copied[-1].copied == 7:
                finish(old, new, copied[-1].source, lambda _, __: None)

    if begun == 4:
        caught_up = Place.catch_up
        monkeypatch.setattr(Place, "catch_up", lambda self: (caught_up(self), follow_to(self)))
    place = Place("memory", tmp_path, *MADE[made])
    follow_to(place)
    assert copied[0].copied == begun
    assert rows_by_table(place.stores["a"], "copy")["airports"] == place.content
    with contextlib.closing(open_store(place.stores["a"], "copy")) as store:
        assert verify(open_log(place.wal, "copy"), store).findings == []
    place.example.close()
