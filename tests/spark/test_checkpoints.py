"""A checkpoint, a log or a store that is not the one it should be: refused aloud, nothing written (I10)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil

import pytest

from support.cli import done, options_for
from support.wait import wait_until
from tidegate.base.source_offsets import offsets_in
from tidegate.errors import ConfigError, LineageError, WalGapError
from tidegate.sinks.open_store import open_store
from tidegate.spark import batch

pytestmark = pytest.mark.spark

SCHEMA = "k string, n int"


def batches(count, start=0):
    return [[{"k": f"k{n}", "n": n}] for n in range(start, start + count)]


def content(count):
    return {f"k{n}": {"n": n} for n in range(count)}


def refused(flights, error, pattern, **options):
    """The query fails with this error, and the log holds not a byte more than before."""
    before = flights.records()
    version = flights.version()
    with contextlib.closing(
        open_store(flights.store, "flights")
    ) as store:  # else it is refused as a second one
        wait_until(lambda: store.pointer().heartbeat_age_s is None, "the query before is noted as ended")
    ran = flights.run(flights.sink(table="t", key="k", **options))
    with pytest.raises(error, match=pattern):
        raise ran.error or AssertionError("the query went on")
    assert type(ran.error).__name__ in str(ran.exception)
    assert flights.records() == before
    assert flights.version() == version


def test_a_deleted_checkpoint_is_refused_and_both_ways_out_are_named_i10_t4(stream):
    flights = stream(SCHEMA)
    flights.commit(flights.sink(table="t", key="k"), *batches(2))
    kept = flights.folder / "kept"
    flights.checkpoint.rename(kept)
    refused(
        flights, LineageError, r"deleted or replaced.*Put the old.*tidegate adopt --lineage.*new namespace"
    )
    shutil.rmtree(flights.checkpoint)
    kept.rename(flights.checkpoint)
    flights.commit(flights.sink(table="t", key="k"), *batches(1, start=2))
    assert flights.rows("t") == content(3)


def test_an_older_checkpoint_with_the_same_batches_is_caught_up_without_writing_t5_i2(stream):
    flights = stream(SCHEMA)
    flights.commit(flights.sink(table="t", key="k"), *batches(1))
    shutil.copytree(flights.checkpoint, flights.folder / "old")
    flights.commit(flights.sink(table="t", key="k"), *batches(2, start=1))
    shutil.rmtree(flights.checkpoint)
    (flights.folder / "old").rename(flights.checkpoint)
    ran = flights.commit(flights.sink(table="t", key="k"), *batches(1, start=3))
    assert ran.batches == [1, 2, 3]
    assert (flights.version(), flights.decided()) == (4, 4)
    assert flights.rows("t") == content(4)


def test_an_older_checkpoint_whose_batches_are_planned_otherwise_is_refused_i10_t5(stream):
    """A file source's offsets are numbers only: the files behind them are part of the fingerprint."""
    flights = stream(SCHEMA)
    flights.commit(flights.sink(table="t", key="k"), *batches(1))
    shutil.copytree(flights.checkpoint, flights.folder / "old")
    flights.commit(flights.sink(table="t", key="k"), *batches(2, start=1))
    shutil.rmtree(flights.checkpoint)
    (flights.folder / "old").rename(flights.checkpoint)
    for path in flights.input.iterdir():
        if path.name == "0002.parquet":  # looks newest now, so batch 1 is planned with the file after it
            os.utime(path, (1_700_000_000, 1_700_000_000))
    refused(flights, LineageError, r"batch 1 of query .* other source offsets.*older copy.*tidegate adopt")
    assert flights.rows("t") == content(3)


def test_a_deleted_log_under_a_store_is_refused_i10(stream):
    flights = stream(SCHEMA)
    flights.commit(flights.sink(table="t", key="k"), *batches(2))
    flights.add(*batches(1, start=2))
    with flights.log.away():
        refused(
            flights,
            WalGapError,
            r"does not belong to, or is behind, the store.*tidegate relog.*restore the log",
        )
    flights.commit(flights.sink(table="t", key="k"))
    assert flights.rows("t") == content(3)


def test_another_number_of_key_groups_is_refused(stream):
    flights = stream(SCHEMA)
    flights.commit(flights.sink(table="t", key="k", key_groups=100), *batches(1))
    flights.add(*batches(1, start=1))
    refused(flights, ConfigError, r"key_groups=100, 128 was asked for.*leave the option out", key_groups=128)
    flights.commit(flights.sink(table="t", key="k"))
    assert flights.rows("t") == content(2)


def test_one_sink_does_not_take_over_a_namespace_with_another_query_i10(stream):
    """The sink is open for one query when another one's batch comes: its checkpoint is checked too."""
    flights, other = stream(SCHEMA), stream(SCHEMA, "other")
    sink = flights.sink(table="t", key="k")
    flights.commit(sink, *batches(1))
    other.add(*batches(1, start=1))
    ran = other.run(sink)
    assert isinstance(ran.error, LineageError)
    flights.commit(sink, *batches(1, start=1))
    assert flights.rows("t") == content(2)


@pytest.mark.parametrize("window", [1, 400, batch.NOTE_BYTES])
def test_the_files_behind_an_offset_are_found_for_every_source_and_after_compaction_t5(
    stream, conf, monkeypatch, window
):
    """Two file sources, one without data at first; Spark folds its notes at every second offset.

    I11: a folded note is read from its end, a window at a time.
    """
    monkeypatch.setattr(batch, "NOTE_BYTES", window)
    conf("spark.sql.streaming.fileSource.log.compactInterval", 2)
    flights, other = stream(SCHEMA), stream(SCHEMA, "other")
    found = {}

    def both(*files):
        for added in files:
            added[0].add(*added[1])
            sources = [
                s.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(s.input))
                for s in (flights, other)
            ]
            query = (
                sources[0]
                .unionByName(sources[1])
                .writeStream.foreachBatch(note)
                .option("checkpointLocation", str(flights.checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

    def note(rows, batch_id):
        context = batch.batch_context(rows, batch_id)
        session = rows.sparkSession
        query = batch._running(session, context.lineage).query
        lines = list(batch._files_of(session, query, context.source_offsets))
        found[batch_id] = sorted(json.loads(line)["path"].split("/")[-2:] for line in lines)
        fingerprints.add(context.fingerprint)

    fingerprints = set()
    both((flights, batches(3)), (other, batches(1)), (flights, batches(1)))
    assert [found[n] for n in range(3)] == [[["input", f"{n + 1:04}.parquet"]] for n in range(3)]
    assert ["input", "0001.parquet"] in found[3]
    assert ["input", "0004.parquet"] in found[4]
    assert len(fingerprints) == len(found) == 5


def test_offsets_of_any_source_are_told_apart():
    assert list(offsets_in('[{"logOffset":0}, -, 7]')) == [{"logOffset": 0}, None, 7]
    assert list(offsets_in('[-1, {"t":{"0":5}}]')) == [-1, {"t": {"0": 5}}]
    assert list(offsets_in("[not JSON, {}]")) == []
    assert list(offsets_in("[]")) == []


@pytest.mark.only_log("file")
def test_a_log_and_a_store_that_are_gone_are_not_made_again_by_a_later_batch_i10_t79(stream):
    """A disk that is not mounted, another database number, a typing error in the name."""
    flights = stream(SCHEMA)
    flights.commit(flights.sink(table="t", key="k"), *batches(2))
    shutil.rmtree(flights.folder / "wal")
    shutil.rmtree(flights.folder / "store")
    flights.add(*batches(2, start=2))
    for _ in range(2):
        ran = flights.run(flights.sink(table="t", key="k"))
        with pytest.raises(LineageError, match=r"continues with batch 2: .*`tidegate adopt --lineage"):
            raise ran.error or AssertionError("the query went on")
        assert not (flights.folder / "wal").exists()
        assert not (flights.folder / "store").exists()
    done("init", *options_for(flights.folder))
    done("adopt", "--checkpoint", flights.checkpoint, *options_for(flights.folder))
    flights.commit(flights.sink(table="t", key="k"))
    assert flights.rows("t") == {"k2": {"n": 2}, "k3": {"n": 3}}
