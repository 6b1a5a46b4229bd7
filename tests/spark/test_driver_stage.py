"""Small batches, staged by the driver: the same rows as the job stages, bounded whatever comes (I11)."""

from __future__ import annotations

import os

import pytest
from differential.frames import frames_of

from tidegate.base import failpoints
from tidegate.errors import WalUnavailableError
from tidegate.spark import Locality
from tidegate.spark.session.jvm import NoArrowBatchesError
from tidegate.spark.staging import collect as collected
from tidegate.spark.staging import on_driver, small_batches
from tidegate.spark.staging.on_driver import KeptLog
from tidegate.wal.file.log import FileLog

pytestmark = pytest.mark.spark


def staged(stream):
    """Of each version: how many tasks staged it, and its rows by table, as they lie in its frames."""
    with stream.log.opened("flights") as log:
        return [frames_of(log, version) for version in stream.view().state.recent]


def tasks(stream):
    return [parallelism for parallelism, _ in staged(stream)]


def rows_of(*ids, x="x"):
    return [{"id": one, "x": x} for one in ids]


def test_a_batch_that_is_larger_than_expected_is_staged_by_the_job_whole_i11(stream):
    """One that was cut is dropped and goes by the job; then small ones are waited for, longer each time."""
    flights = stream("id int, x string", staged_by="driver")
    sink = flights.sink(table="t", key="id", parallelism=2, driver_stage_max_rows=10)
    sizes = [10, 10 * small_batches.SPREAD + 1, 5, 5, 30, 5]
    batches = [rows_of(*range(100 * at, 100 * at + size)) for at, size in enumerate(sizes)]
    flights.commit(sink, *batches)
    assert set(flights.rows("t")) == {row["id"] for batch in batches for row in batch}
    assert tasks(flights) == [1, 2, 2, 1, 2, 2]


@pytest.mark.parametrize("long", [small_batches.CELL_BYTES - 50, small_batches.CELL_BYTES + 50])
def test_rows_that_are_too_long_are_not_pulled(stream, long):
    flights = stream("id int, x string", staged_by="driver")
    flights.commit(flights.sink(table="t", key="id", parallelism=2), [*rows_of(1), *rows_of(2, x="y" * long)])
    assert {key: len(value["x"]) for key, value in flights.rows("t").items()} == {1: 1, 2: long}
    assert tasks(flights) == [1 if long < small_batches.CELL_BYTES else 2]


def test_many_rows_are_pulled_if_their_cells_are_short(stream):
    """Once 5,000 were too few; a longer cell is cut then, and the job stages its batch whole."""
    flights = stream("id int, x string", staged_by="driver")
    ids, long = range(small_batches.FEW_ROWS + 1), small_batches.CELL_BYTES // 10
    batches = [rows_of(*ids, x=str(at)) for at in range(4)]
    batches[3][7] = {"id": 7, "x": "y" * long}
    flights.commit(flights.sink(table="t", key="id", parallelism=2), *batches)
    rows = flights.rows("t")
    assert rows.pop(7) == {"x": "y" * long}
    assert rows == {key: {"x": "3"} for key in ids if key != 7}
    assert tasks(flights) == [2, 2, 1, 2]


def test_a_batch_that_was_too_much_for_the_driver_goes_by_the_job_next_time(stream, monkeypatch):
    """As where it is more than spark.driver.maxResultSize: the same sink in the same process tries again."""
    flights, collect = stream("id int, x string", staged_by="driver"), on_driver.collect
    sink = flights.sink(table="t", key="id", parallelism=2)

    def too_much(*given):
        collect(*given)
        raise MemoryError("more than fits")

    monkeypatch.setattr(on_driver, "collect", too_much)
    flights.add(rows_of(1, 2))
    assert flights.run(sink).error is not None
    flights.commit(sink)
    assert set(flights.rows("t")) == {1, 2}
    assert tasks(flights) == [2]


def test_a_spark_that_gives_no_arrow_batches_has_the_job_stage_all(stream, monkeypatch):
    """As 4.1 does."""

    def gives_none(*_):
        raise NoArrowBatchesError

    monkeypatch.setattr(collected, "ArrowBatches", gives_none)
    flights = stream("id int, x string", staged_by="driver")
    flights.commit(flights.sink(table="t", key="id", parallelism=2), rows_of(1), rows_of(2))
    assert set(flights.rows("t")) == {1, 2}
    assert tasks(flights) == [2, 2]


def test_bytes_to_order_by_that_are_no_text_are_compared_as_spark_does(stream):
    """Spark cuts a text by what begins a character, or might: bytes in which nothing does are cut, too."""
    long = b"\x80" * (small_batches.CELL_BYTES + 1)
    short = {b"a": "first", b"a\xe4\x01": "last", b"a\xe4": "middle"}
    others = {long: "first", long + b"\x02": "last", long + b"\x01": "middle"}
    batches = [[{"id": 1, "b": b, "x": x} for b, x in rows.items()] for rows in (short, others)]
    flights = stream("id int, b binary, x string", staged_by="driver")

    def each(txn, rows):
        texts = rows.withColumn("s", rows.b.cast("string"))  # no JSON has them
        txn.upsert(f"t{txn.batch_id}", texts, "id", order_by="s", value="x")

    flights.commit(flights.sink(parallelism=2).each(each), *batches)
    assert [flights.rows(table)[1] for table in ("t0", "t1")] == [b"last", b"last"]
    assert tasks(flights) == [1, 2]


def test_after_few_rows_that_change_large_states_the_job_stages_i11(stream, monkeypatch):
    """The input's bytes do not show the frames': a row of one column rewrites a value of many."""
    held = []
    original = KeptLog.stage

    def stage(log, segment, blobs):
        addresses = original(log, segment, blobs)
        held.append(sum(map(len, log._coordinator.held.values())))
        return addresses

    monkeypatch.setattr(KeptLog, "stage", stage)
    flights = stream("id int, x string", staged_by="driver")
    limits = {"driver_stage_max_bytes": 3_000, "driver_apply_max_bytes": 3_000}
    sink = flights.sink(key_groups=4, frame_bytes=1_000, parallelism=2, **limits)
    large = [{"id": key, "x": f"{key}" + os.urandom(400).hex()} for key in range(10)]

    def write(txn, rows):
        if txn.batch_id < 2:
            txn.upsert(f"t{txn.batch_id}", rows, "id")
        else:
            txn.patch("t0", rows.selectExpr("id", "1 AS n"), "id")

    flights.commit(sink.each(write), large, rows_of(1), large, rows_of(1), rows_of(1))
    assert {value["n"] for value in flights.rows("t0").values()} == {1}
    assert tasks(flights) == [1, 2, 1, 2, 1]
    assert held[:-1] == [0, 0]
    assert held[-1] > 0


def test_what_arrow_does_not_sort_as_spark_does_goes_by_the_job(stream):
    flights = stream("id int, o array<int>", staged_by="driver")
    sink = flights.sink(table="t", key="id", parallelism=2, order_by="o")
    flights.commit(sink, [{"id": 1, "o": [2]}, {"id": 1, "o": [10]}, {"id": 1, "o": [9, 9]}])
    assert flights.rows("t") == {1: {"o": [10]}}
    assert tasks(flights) == [2]


@pytest.mark.only_log("file")
def test_rows_are_collected_once_whatever_fails_then_i3_t6(stream, monkeypatch):
    """The log fails behind the first frames: the same rows are written again, under another name."""
    flights = stream("id int, x string", staged_by="driver")
    original, failing, segments = FileLog.stage, [3], []

    def stage(log, segment, blobs):
        if not segment.endswith("manifest"):
            segments.append(segment)
            blobs = list(blobs)
            if failing[0]:
                failing[0] -= 1
                raise WalUnavailableError("no room")
        return original(log, segment, blobs)

    collected, collect = [], on_driver.collect
    monkeypatch.setattr(FileLog, "stage", stage)
    monkeypatch.setattr(on_driver, "collect", lambda *given: collected.append(1) or collect(*given))
    sink = flights.sink(table="t", key="id", parallelism=2)
    flights.commit(sink, rows_of(1, 2))
    assert (len(collected), len(segments), len(set(segments))) == (1, 4, 4)
    assert (tasks(flights), set(flights.rows("t"))) == ([1], {1, 2})

    failing[0] = on_driver.TRIES
    flights.add(rows_of(3))
    ran = flights.run(sink)
    assert isinstance(ran.error, WalUnavailableError)
    assert flights.decided() == 1
    assert set(flights.rows("t")) == {1, 2}
    flights.commit(sink)
    assert set(flights.rows("t")) == {1, 2, 3}


@pytest.mark.parametrize("place", ["stage.before_write", "stage.before_ack", "manifest.after_write"])
def test_a_driver_that_fails_while_it_stages_is_tried_again_i2_i5(stream, place):
    flights = stream("id int, x string", staged_by="driver")
    sink = flights.sink(table="t", key="id")
    flights.commit(sink, rows_of(1))
    flights.add(rows_of(2))
    failpoints.arm(f"{place}=raise@1")
    try:
        assert flights.run(sink).error is not None
    finally:
        failpoints.arm(None)
    assert (flights.decided(), flights.version()) == (1, 1)
    flights.commit(sink, rows_of(3))
    assert set(flights.rows("t")) == {1, 2, 3}
    assert tasks(flights) == [1, 1, 1]


def test_a_location_provider_that_fails_costs_no_batch(stream):
    class Provider:
        def location_id(self):
            raise OSError("no metadata service")

    flights = stream("id int, x string", staged_by="driver")
    sink = flights.sink(table="t", key="id", locality=Locality(provider=Provider()))
    flights.commit(sink, rows_of(1))
    assert (tasks(flights), set(flights.rows("t"))) == ([1], {1})
