"""Rows that expire, from a sink: each way of writing, state that starts anew, and what is refused."""

from __future__ import annotations

import logging

import pytest

from tidegate.errors import ConfigError

pytestmark = pytest.mark.spark

SCHEMA = "k string, n bigint"


def test_each_way_of_writing_sets_the_expiry_and_state_that_expired_starts_anew(stream, pass_by):
    flights = stream(SCHEMA)

    def write(txn, rows):
        txn.upsert("upserted", rows, key="k")
        txn.upsert("for_ever", rows, key="k")
        txn.reduce("sums", rows, key="k", reducers={"n": "sum"})
        txn.replace("top", rows, key="k")

    ttl = dict.fromkeys(["upserted", "sums", "top"], "10 min")
    sink = flights.sink(ttl=ttl, parallelism=2, on_bad_record="quarantine").each(write)
    flights.commit(sink, [{"k": "a", "n": 1}, {"k": "b", "n": 1}])
    pass_by(6)
    flights.commit(sink, [{"k": "a", "n": 2}])
    pass_by(6)
    flights.commit(sink, [{"k": "c", "n": 3}])
    assert flights.rows("for_ever") == {"a": {"n": 2}, "b": {"n": 1}, "c": {"n": 3}}
    assert flights.rows("upserted") == {"a": {"n": 2}, "c": {"n": 3}}
    assert flights.rows("sums") == {"a": {"n": 3}, "c": {"n": 3}}
    assert flights.rows("top") == {"c": {"n": 3}}
    assert flights.rows("upserted", 2) == {"a": {"n": 2}, "b": {"n": 1}}
    assert flights.rows("sums", 2) == {"a": {"n": 3}, "b": {"n": 1}}
    pass_by(12)
    # Version 3 still shows them: it was decided before. What is written now is as of now.
    assert set(flights.rows("sums")) == {"a", "c"}
    flights.commit(sink, [{"k": "a", "n": 10}])
    assert flights.rows("sums") == flights.rows("upserted") == {"a": {"n": 10}}


def test_the_one_table_form_takes_one_duration_and_a_misspelt_table_is_told_of(stream, pass_by, caplog):
    flights = stream(SCHEMA)
    sink = flights.sink(table="t", key="k", ttl=600)
    flights.commit(sink, [{"k": "a", "n": 1}])
    assert "ttl names" not in caplog.text
    pass_by(11)
    with caplog.at_level(logging.WARNING, "tidegate"):
        flights.commit(flights.sink(table="t", key="k", ttl={"tt": "1 day"}), [{"k": "b", "n": 1}])
    assert "ttl names tt, not a table at version 2; the tables are t" in caplog.text
    assert flights.rows("t") == {"b": {"n": 1}}


def test_what_is_no_time_to_live_is_refused_when_the_sink_is_made(stream):
    flights = stream(SCHEMA)
    for ttl, match in (("soon", "ttl of table t is 'soon'"), ({"t": 0}, "1 second"), ({"t": "7"}, "as in")):
        with pytest.raises(ConfigError, match=match):
            flights.sink(table="t", key="k", ttl=ttl)
    with pytest.raises(ConfigError, match="per table"):
        flights.sink(ttl="7 days")
