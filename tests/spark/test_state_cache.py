"""The cache of state under a query: the same comes out with it and without, whatever becomes of it."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest

from tidegate.committers import commit as committing
from tidegate.errors import WalUnavailableError
from tidegate.options.state_spill import StateSpill

pytestmark = pytest.mark.spark

SCHEMA = "k string, n bigint"
KEYS = 200


def rows_of(batch, keys=range(KEYS)):
    return [{"k": f"k{key}", "n": batch + key} for key in keys]


def sums(*batches):
    total = Counter()
    for batch in batches:
        for row in batch:
            total[row["k"]] += row["n"]
    return {key: {"n": number} for key, number in total.items()}


def write(txn, rows):
    txn.reduce("sums", rows, key="k", reducers={"n": "sum"})


@pytest.fixture
def noted():
    """Makes a function for foreachBatch that notes how each batch read its state: (hits, absent, misses)."""
    reads = []

    def wrap(sink, function=write):
        each = sink.each(function)

        def run(rows, batch_id):
            each(rows, batch_id)
            reads.append((sink.last_state.hits, sink.last_state.absent, sink.last_state.misses))

        run.reads = reads
        return run

    return wrap


def test_a_stable_query_reads_from_the_cache_and_a_new_sink_goes_on_with_it(stream, noted, tmp_path):
    flights = stream(SCHEMA)
    batches = [rows_of(n) for n in range(3)]
    run = noted(flights.sink(parallelism=2, local_dir=str(tmp_path / "local")))
    flights.commit(run, *batches)
    assert run.reads == [(0, 0, 0), (KEYS, 0, 0), (KEYS, 0, 0)]
    batches += [rows_of(3, range(KEYS + 10)), rows_of(4)]
    run = noted(flights.sink(parallelism=3, local_dir=str(tmp_path / "local")))  # restarted, and rescaled
    flights.commit(run, *batches[3:])
    assert run.reads[3:] == [(KEYS, 0, 10), (KEYS, 0, 0)]
    assert flights.rows("sums") == sums(*batches)


def test_what_the_function_of_an_update_reads_is_counted_once(stream, noted):
    """It reads in a stage of its own; each of its tasks tells all staging tasks."""
    flights = stream(SCHEMA)

    def total(key, rows, state, emit):
        return {"n": (state["n"] if state else 0) + sum(row["n"] for row in rows)}

    def updating(txn, rows):
        txn.update("sums", rows, "k", total, schema="n bigint")

    batches = [rows_of(0), rows_of(1), rows_of(2, range(KEYS + 10))]
    run = noted(flights.sink(parallelism=2), updating)
    flights.commit(run, *batches)
    assert run.reads == [(0, 0, 0), (KEYS, 0, 0), (KEYS, 0, 10)]
    assert flights.rows("sums") == sums(*batches)


def test_without_a_cache_the_same_comes_out(stream, noted):
    flights = stream(SCHEMA)
    batches = [rows_of(n) for n in range(2)]
    run = noted(flights.sink(state_cache_bytes=0))
    flights.commit(run, *batches)
    assert run.reads == [(0, 0, 0), (0, 0, KEYS)]
    assert flights.rows("sums") == sums(*batches)


def test_what_was_staged_and_not_decided_is_not_in_the_cache_t6(stream, noted, tmp_path, monkeypatch):
    """The first try of batch 1 has other rows; its tasks kept what they wrote, and nobody takes it."""
    flights = stream(SCHEMA)
    sink = flights.sink(parallelism=2, local_dir=str(tmp_path / "local"))
    flights.commit(noted(sink), rows_of(0))

    def other(txn, rows):
        write(txn, rows.selectExpr("k", "1000 * n AS n"))

    def refused(*_):
        raise WalUnavailableError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(committing, "decide", refused)
        flights.add(rows_of(1))
        assert isinstance(flights.run(sink.each(other)).error, WalUnavailableError)
    kept = list((tmp_path / "local").rglob("2-*.index"))
    assert len(kept) == 2, "the first try kept nothing, so there was nothing to leak"
    run = noted(sink)
    flights.commit(run, rows_of(2))
    assert run.reads[-2:] == [(KEYS, 0, 0)] * 2
    assert flights.rows("sums") == sums(rows_of(0), rows_of(1), rows_of(2))


@pytest.mark.one_in(2)
@pytest.mark.both_ways
def test_deletes_upserts_and_replaces_between_are_followed(stream, tmp_path):
    flights = stream(SCHEMA)
    sink = flights.sink(parallelism=2, local_dir=str(tmp_path / "local"))
    flights.commit(sink.each(write), rows_of(0))
    flights.commit(sink.each(lambda txn, rows: txn.delete("sums", rows, key="k")), rows_of(0, range(20)))
    assert len(flights.rows("sums")) == KEYS - 20
    flights.commit(sink.each(write), rows_of(1))
    expected = sums(rows_of(0, range(20, KEYS)), rows_of(1))
    assert flights.rows("sums") == expected
    upsert = sink.each(lambda txn, rows: txn.upsert("sums", rows, key="k"))
    flights.commit(upsert, [{"k": "k3", "n": 7}])
    flights.commit(sink.each(write), [{"k": "k3", "n": 1}, {"k": "k4", "n": 1}])
    assert flights.rows("sums")["k3"] == {"n": 8}
    assert flights.rows("sums")["k4"] == {"n": expected["k4"]["n"] + 1}
    replace = sink.each(lambda txn, rows: txn.replace("sums", rows, key="k"))
    flights.commit(replace, [{"k": "k1", "n": 1}])
    flights.commit(sink.each(write), rows_of(0, range(3)))
    assert flights.rows("sums") == {"k0": {"n": 0}, "k1": {"n": 2}, "k2": {"n": 2}}


def test_a_folder_that_is_deleted_or_damaged_costs_reads_and_nothing_else(stream, noted, tmp_path):
    flights = stream(SCHEMA)
    local = tmp_path / "local"
    run = noted(flights.sink(parallelism=2, local_dir=str(local), state_memory_bytes=0))
    batches = [rows_of(n) for n in range(5)]
    flights.commit(run, batches[0])
    shutil.rmtree(local)
    flights.commit(run, batches[1], batches[2])
    on_disk = list(local.rglob("*.disk"))
    assert on_disk
    for path in on_disk:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    flights.commit(run, batches[3], batches[4])
    assert run.reads[1:] == [(0, 0, KEYS), (KEYS, 0, 0), (0, 0, KEYS), (KEYS, 0, 0)]
    assert flights.rows("sums") == sums(*batches)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("memory_bytes", [0, 20_000])
def test_with_little_memory_state_is_on_several_disks_and_read_from_there(
    stream, noted, tmp_path, memory_bytes
):
    flights = stream(SCHEMA)
    disks = [str(tmp_path / name) for name in ("disk0", "disk1")]
    bands = StateSpill(spill_above=0.01, spill_to=0, load_to=0, load_below=0)
    sink = flights.sink(parallelism=2, local_dir=disks, state_memory_bytes=memory_bytes, state_spill=bands)
    run, moved = noted(sink), Counter()
    batches = [rows_of(n) for n in range(5)]
    for rows in batches:
        flights.commit(run, rows)
        moved.update(sink.last_state.moved)
    assert run.reads == [(0, 0, 0)] + [(KEYS, 0, 0)] * 4
    assert flights.rows("sums") == sums(*batches)
    assert list(tmp_path.rglob("disk*/**/*.disk"))
    assert set(moved) == {"budget"} if memory_bytes else not moved


def test_a_version_without_changes_and_one_without_state_keep_it(stream, noted, tmp_path):
    flights = stream(SCHEMA)
    sink = flights.sink(parallelism=2, local_dir=str(tmp_path / "local"))
    run = noted(sink)
    flights.commit(run, rows_of(0))
    flights.commit(noted(sink, lambda _txn, _rows: None), rows_of(1))
    flights.commit(noted(sink, lambda txn, rows: txn.upsert("other", rows, key="k")), rows_of(1))
    flights.commit(run, rows_of(2))
    assert run.reads[-1] == (KEYS, 0, 0)
    assert flights.rows("sums") == sums(rows_of(0), rows_of(2))
