"""``replace`` through table starts, ``load`` once per token, and refused rows beside (I1, I2, T42, T46)."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from tidegate.errors import ConfigError

pytestmark = pytest.mark.spark

SCHEMA = "k string, n int"


def rows(*pairs):
    return [{"k": k, "n": n} for k, n in pairs]


def test_replace_leaves_exactly_the_new_rows_and_older_versions_as_they_were(stream):
    """I1: both tables move in one version, and a reader at an older one sees what it saw."""
    top = stream(SCHEMA)
    sink = top.sink()

    def write(txn, batch):
        txn.replace("top", batch, key="k")
        txn.upsert("all", batch, key="k")

    top.commit(sink.each(write), rows(("a", 1), ("b", 2)), rows(("b", 3)), [], rows(("c", 4), ("d", 5)))
    expected = [
        {"a": {"n": 1}, "b": {"n": 2}},
        {"b": {"n": 3}},
        {},
        {"c": {"n": 4}, "d": {"n": 5}},
    ]
    for version, content in enumerate(expected, 1):
        assert top.rows("top", version) == content
    assert set(top.rows("all")) == {"a", "b", "c", "d"}
    with top.gate() as gate, gate.snapshot() as snapshot:
        assert snapshot.table("top").get("a") is None
        assert snapshot.table("top").get_many(["b", "c"]) == {"c": {"n": 4}}


@pytest.mark.parametrize("other", ["upsert", "delete", "replace"])
def test_replace_does_not_mix_with_other_calls_on_its_table(stream, other):
    top = stream(SCHEMA)
    sink = top.sink()

    def write(txn, batch):
        txn.replace("top", batch, key="k")
        getattr(txn, other)("top", batch, key="k")

    top.add(rows(("a", 1)))
    ran = top.run(sink.each(write))
    assert isinstance(ran.error, ConfigError)
    assert "do not mix" in str(ran.error)
    assert top.decided() == 0


def test_a_load_is_one_version_once_per_token(stream, spark):
    """I2: the same token again, in the same process or a new one, makes nothing."""
    loaded = stream(SCHEMA)
    sink = loaded.sink()
    table = spark.createDataFrame(rows(("a", 1), ("b", 2)), SCHEMA)
    assert sink.load({"t": table, "u": table}, token="one", key={"t": "k", "u": ["k", "n"]}) == 1
    assert sink.load({"t": table}, token="one", key="k") == 1
    again = loaded.sink()
    assert again.load({"t": table}, token="one", key="k") == 1
    assert again.load({"t": table.where("n = 1")}, token="two", key="k", replace=True) == 2
    assert loaded.rows("t", 1) == {"a": {"n": 1}, "b": {"n": 2}}
    assert loaded.rows("u", 2) == {("a", 1): {}, ("b", 2): {}}
    assert loaded.rows("t") == {"a": {"n": 1}}
    for one in (sink, again):
        one.close()


def test_a_stream_goes_on_after_a_load_and_a_load_beside_it(stream, spark):
    loaded = stream(SCHEMA)
    sink = loaded.sink(table="t", key="k")
    assert sink.load({"t": spark.createDataFrame(rows(("a", 1)), SCHEMA)}, token="first") == 1
    loaded.commit(sink, rows(("b", 2)))
    assert sink.load({"t": spark.createDataFrame(rows(("c", 3)), SCHEMA)}, token="second") == 3
    loaded.commit(sink, rows(("d", 4)))
    assert set(loaded.rows("t")) == {"a", "b", "c", "d"}
    assert loaded.version() == 4


def test_a_load_within_a_batch_of_the_same_sink_is_refused_and_does_not_wait_for_itself(stream, spark):
    top = stream(SCHEMA)
    sink = top.sink()

    def write(txn, batch):
        txn.upsert("all", batch, key="k")
        for call in (lambda: sink.load({"other": batch}, token="t", key="k"), sink.recover, sink.close):
            with pytest.raises(ConfigError, match="in the middle of a batch or a load"):
                call()

    top.commit(sink.each(write), rows(("a", 1)))
    assert top.rows("all") == {"a": {"n": 1}}
    assert sink.load({"other": spark.createDataFrame([("b", 2)], SCHEMA)}, token="t", key="k") == 2


def test_a_load_without_a_token_or_a_key_is_refused_and_writes_nothing(stream, spark):
    loaded = stream(SCHEMA)
    sink = loaded.sink()
    table = spark.createDataFrame(rows(("a", 1)), SCHEMA)
    for given, words in (
        ({"tables": {"t": table}, "token": "", "key": "k"}, "name of its own"),
        ({"tables": {"t": table}, "token": 20261121, "key": "k"}, "token=20261121: .* a text of 1 to 200"),
        ({"tables": {}, "token": "x", "key": "k"}, "nothing to load"),
        ({"tables": table, "token": "x", "key": "k"}, "DataFrame: pass {table name: DataFrame}"),
        ({"tables": {"t": [1]}, "token": "x", "key": "k"}, "table t: rows must be a DataFrame, not list"),
        (
            {"tables": {"t": pd.DataFrame({"k": ["a"]})}, "token": "x", "key": "k"},
            r"not pandas.*DataFrame: spark.createDataFrame\(rows\) makes one",
        ),
        ({"tables": {"t": table}, "token": "x"}, "which column is its key"),
        ({"tables": {"t": table}, "token": "x", "key": "nope"}, "'nope' is missing"),
    ):
        with pytest.raises(ConfigError, match=words):
            sink.load(**given)
    assert loaded.decided() == 0
    sink.close()


@pytest.mark.one_in(2)
@pytest.mark.both_ways
def test_refused_rows_go_beside_in_the_same_version(stream):
    """T46: one poison record does not hold the line; it is kept, with its cause."""
    flights = stream(SCHEMA)
    sink = flights.sink(table="t", key="k", on_bad_record="quarantine", key_bytes_max=3)
    flights.commit(sink, rows(("a", 1), (None, 2), ("toolong", 3)), rows(("b", 4)), rows((None, 5), ("a", 6)))
    assert flights.rows("t") == {"a": {"n": 6}, "b": {"n": 4}}
    assert flights.rows("t", 1) == {"a": {"n": 1}}
    told = flights.rows("_quarantine", 1)
    assert {json.loads(row["value"])["n"]: (row["table"], row["key"]) for row in told.values()} == {
        2: ("t", None),
        3: ("t", b"toolong"),
    }
    assert {row["cause"] for row in told.values()} == {
        "its key is null",
        "its key takes 7 bytes, 3 are allowed",
    }
    beside = flights.rows("_quarantine")
    assert len(beside) == 3
    with flights.gate() as gate, gate.snapshot() as snapshot:
        assert all(snapshot.table("_quarantine").get(name) == row for name, row in beside.items())
