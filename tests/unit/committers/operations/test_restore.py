"""Restore: an older version as a new one, and which batches may come again afterwards."""

import datetime
import json

import pytest
from typer.testing import CliRunner

import tidegate
from support.places import appended_nothing, driver_at, new_place, rows_by_table
from tidegate.cli import app
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations import restore as restoring
from tidegate.committers.operations.restore import restore
from tidegate.committers.operations.restore_plan import plan_restore
from tidegate.committers.operations.verify import verify
from tidegate.errors import ConfigError, FencedError, LineageError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.example import LINEAGE, Example
from tidegate.wal.fold import last_batch_within, replay_of
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Column, LoadOrigin, TableSchema
from tidegate.wal.staging.own_tables import INSTANCES_SCHEMA, ITEM_KEY

LOCAL_ITEMS = TableSchema(ITEM_KEY, (Column("value", "binary"),), "bytes")


def plane(flights):
    return {"carrier": "UA", "flights": flights}


class Place:
    """A namespace in files, and its writers, one after the other."""

    def __init__(self, folder):
        self.wal, self.store = f"file://{folder}/wal", f"sqlite://{folder}/store"
        self.options = [f"--wal={self.wal}", f"--store={self.store}", "--namespace=flights"]

    def write(self, *batches, starts=frozenset(), schemas=None):
        example = Example(self.wal, self.store, options=Options(key_groups=4))
        example.schemas.update(schemas or {})
        versions = [example.write(rows, starts) for rows in batches]
        example.close()
        return versions

    def driver(self):
        log, store = open_log(self.wal, "flights"), open_store(self.store, "flights")
        return Coordinator(Endpoints("flights", self.wal, self.store), log, store)

    def restore(self, version, **how):
        driver = self.driver()
        plan = plan_restore(driver, version, **how)
        done = restore(driver, plan)
        driver.store.close()
        driver.log.close()
        return plan, done

    def folded(self):
        driver = self.driver()
        driver.decisions.catch_up()
        return driver.folded

    def content(self, version=None):
        return rows_by_table(self.store, version=version)


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    place.write(
        {"aircraft": {"a": plane(1), "b": plane(1), "c": plane(1)}, "airports": {}},
        {"aircraft": {"a": plane(2), "b": None, "d": plane(2)}},
        {"legs": {("EWR", 1): {"dest": "IAH"}}, "aircraft": {"c": plane(3), "b": plane(3), "a": plane(1)}},
    )
    return place


@pytest.mark.parametrize("to", [1, 2])
def test_a_restored_version_holds_what_the_old_one_held(place, to):
    before, three = place.content(to), place.content(3)
    _, done = place.restore(to)
    assert (done.made, done.visible, done.generation) == (4, 4, None)
    assert place.content() == {"legs": {}, **before}
    assert place.content(3) == three  # nothing that was visible changes
    assert place.content(to) == before


def test_a_restored_version_writes_what_differs_only_i11(place):
    place.restore(2)
    with tidegate.connect(place.store, "flights") as gate:
        (info,) = gate.history(limit=1)
    assert (info.origin, info.changes) == ("restore of version 2", {"aircraft": 3, "legs": 1})


def test_a_local_state_that_began_later_begins_again_and_comes_back_with_its_version(place):
    """Its items' table without the rows of its instances would be taken as damage by the next batch."""
    schemas = {"_local": INSTANCES_SCHEMA, "_local.one": LOCAL_ITEMS, "_local.two": LOCAL_ITEMS}

    def of(name, items):
        rows = {(0, number): b"i" for number in range(items)}
        return {"_local": {(name, 0): {"items": items, "parallelism": 1}}, f"_local.{name}": rows}

    place.write(of("one", 1), of("two", 2), schemas=schemas)
    before = place.content()
    assert place.restore(4)[1].made == 6
    assert place.content() == place.content(4)
    assert place.restore(3)[1].made == 7
    assert place.folded().tables.keys() == {"aircraft", "airports", "legs"}
    place.write(of("one", 3), schemas=schemas)
    assert place.content()["_local"] == {("one", 0): {"items": 3, "parallelism": 1}}
    assert place.restore(5)[1].made == 9
    assert place.content() == before
    driver = place.driver()
    assert verify(driver.log, driver.store).findings == []
    driver.log.close()
    driver.store.close()


def test_what_cannot_be_restored_is_refused_before_anything_is_written(place, tmp_path):
    records = len(list(place.driver().log.decisions()))
    for version, message in ((4, "no version 4"), (3, "already"), (0, "no version 0")):
        with pytest.raises(ConfigError, match=message):
            place.restore(version)
    assert len(list(place.driver().log.decisions())) == records


# -- which batches may come again -----------------------------------------------------------------


def test_without_reprocess_undone_batches_do_not_come_again(place):
    place.restore(1)
    state = place.folded()
    assert replay_of(state, batch(LINEAGE, 2)).version == 3
    assert replay_of(state, batch(LINEAGE, 3)) is None


def test_with_reprocess_undone_batches_come_again_and_no_others_i2(place):
    plan, done = place.restore(1, reprocess=True)
    assert (done.generation, plan.kept.origin.batch_id) == (1, 0)
    state = place.folded()
    assert replay_of(state, batch(LINEAGE, 1, "other", generation=1)) is None
    assert replay_of(state, batch(LINEAGE, 0, generation=1)).version == 1  # the state holds it: not run again
    with pytest.raises(LineageError, match="set it back to right behind batch 0"):
        replay_of(state, batch(LINEAGE, 0, "other", generation=1))


def test_an_undone_batch_that_comes_again_makes_a_version(place):
    place.restore(1, reprocess=True)
    example = Example(place.wal, place.store, options=Options(key_groups=4))
    assert example.write({"aircraft": {"z": plane(7)}}, batch_id=1) == 5
    example.close()
    state = place.folded()
    assert state.last_batch == (1, 1)
    assert replay_of(state, batch(LINEAGE, 1, generation=1)).version == 5
    assert replay_of(state, batch(LINEAGE, 2, generation=1)) is None


def test_a_restore_of_a_restore_holds_what_that_held(place):
    place.restore(2)
    place.restore(3)
    place.restore(4)
    assert last_batch_within(place.folded(), 6).batch_id == 1


def test_a_restore_that_another_writer_overtakes_is_told_so(place, monkeypatch):
    """I6: the other one published behind the restore's open, and before it looked at what is visible."""
    place.write({"aircraft": {"N1": plane(1)}}, {"aircraft": {"N1": plane(2)}})

    class Slow(restoring.VersionPin):
        def __init__(self, *given):
            super().__init__(*given)
            place.write({"aircraft": {"N1": plane(3)}})

    monkeypatch.setattr(restoring, "VersionPin", Slow)
    with pytest.raises(FencedError):
        place.restore(1)
    assert place.content()["aircraft"]["N1"] == plane(3)


def test_a_restore_that_was_cut_short_before_its_second_record_is_repeated(place, monkeypatch):
    monkeypatch.setattr("tidegate.committers.operations.restore.append_rewound", lambda *_: 0)
    place.restore(1, reprocess=True)
    monkeypatch.undo()
    assert place.folded().generation == 0
    _, done = place.restore(1, reprocess=True)
    assert (done.made, done.visible, done.generation) == (None, 4, 1)
    assert place.restore(1, reprocess=True)[1].generation == 1  # and no further


# -- the command ----------------------------------------------------------------------------------


def run(place, *arguments, code=0):
    result = CliRunner().invoke(app, [*arguments, *place.options], prog_name="tidegate")
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_restore_asks_or_is_told(place):
    assert "changes of versions 2 to 3 of namespace flights would be undone: add --yes" in run(
        place, "restore", "--to", "1", code=2
    )
    told = json.loads(run(place, "restore", "--to", "1", "--yes", "--reprocess", "--json"))
    assert datetime.datetime.fromisoformat(told.pop("decided_at")).utcoffset() == datetime.timedelta()
    two = {"aircraft": 3}
    three = {"aircraft": 3, "legs": 1}
    assert told == {
        "namespace": "flights",
        "restored": 1,
        "visible": 4,
        "recovered": [],
        "generation": 1,
        "last_batch": 0,
        "source_offsets": None,
        "undone": [
            {"version": 2, "batch": 1, "changes": 3, "tables": two, "source_offsets": None},
            {"version": 3, "batch": 2, "changes": 4, "tables": three, "source_offsets": None},
        ],
        "undone_others": [],
        "returned": [],
    }
    assert "batches above 0 may be replayed" in run(place, "restore", "--to", "1", "--yes", "--reprocess")


@pytest.mark.parametrize("to,told", [("3", "shows version 3 already"), ("9", "there is no version 9")])
def test_restore_asks_nothing_where_nothing_would_be_undone(place, to, told):
    """It asked whether what changed from version 10 to 3 is to be undone, and refused behind the answer."""
    assert told in run(place, "restore", "--to", to, code=2)


def test_a_namespace_that_follows_no_query_replays_nothing():
    driver = driver_at(new_place())
    open_namespace(driver, None)
    commit(driver, ArrowBarrier(driver.log, {"t": {b"k": b"v"}}, LoadOrigin("once"), 4))
    words = "follows no query, so there is nothing to replay: leave --reprocess out"
    appended_nothing(driver, lambda: plan_restore(driver, 1, reprocess=True), ConfigError, words)
