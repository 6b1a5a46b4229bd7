"""One query, one log, two stores: the first is waited for, the other follows by itself."""

from __future__ import annotations

import shutil

import pytest
from sink_threads import sink_threads

import tidegate
from tidegate.errors import ConfigError

pytestmark = pytest.mark.spark

SCHEMA = "k string, n long"
LARGE = 0  # changes that a driver applies itself: none, so the executors apply for every store


def batches(count, start=0):
    return [[{"k": f"k{n % 5}", "n": n}, {"k": "all", "n": n}] for n in range(start, start + count)]


def rows(url, version=None):
    with tidegate.connect(url, namespace="flights") as gate, gate.snapshot(version=version) as snapshot:
        return snapshot.version, dict(snapshot.table("t").scan())


def urls(flights):
    return [flights.store, f"sqlite://{flights.folder}/copy"]


def test_both_stores_get_every_version_and_state_is_read_from_the_first(stream, poll):
    flights = stream(SCHEMA)
    first, second = urls(flights)
    sink = flights.sink(store=[f"main={first}", f"copy={second}"], driver_apply_max_changes=LARGE)

    def total(txn, batch_df):
        txn.reduce("t", batch_df, key="k", reducers={"n": "sum"})

    flights.commit(sink.each(total), *batches(4))
    poll(lambda: all(standing.visible == 4 for standing in sink.standings), "the copy is level")
    assert [standing.name for standing in sink.standings] == ["copy"]
    assert rows(first) == rows(second) == (4, {**{f"k{n}": {"n": n} for n in range(4)}, "all": {"n": 6}})
    assert rows(second, 2)[1]["all"] == {"n": 1}
    assert flights.view().state.stores == ("copy", "main")
    with pytest.raises(ConfigError, match=r"copy is not given.*tidegate store remove copy"):
        flights.commit(flights.sink(store=[f"main={first}"], table="t", key="k"), *batches(1, 4))
    sink.close()


def test_a_store_that_is_down_stops_no_batch_and_catches_up_when_it_is_back(stream, poll):
    flights = stream(SCHEMA)
    first, second = urls(flights)
    sink = flights.sink(store=[f"main={first}", f"copy={second}"], table="t", key="k")
    flights.commit(sink, *batches(2))
    poll(lambda: sink.standings[0].visible == 2, "the copy is level")
    sink.close()
    away = flights.folder / "away"
    shutil.move(flights.folder / "copy", away)
    (flights.folder / "copy").write_text("no folder: the store cannot be opened")
    flights.commit(sink, *batches(3, 2))
    assert rows(first)[0] == 5
    poll(lambda: sink.standings[0].error != "", "the copy's error is told")
    sink.close()
    (flights.folder / "copy").unlink()
    shutil.move(away, flights.folder / "copy")
    flights.commit(sink, *batches(1, 5))
    poll(lambda: sink.standings[0].visible == 6, "the copy is level again")
    assert rows(first) == rows(second)
    sink.close()
    assert not sink_threads()
