"""txn.upsert with newer_by: late rows lose, within and across batches."""

from __future__ import annotations

import pytest

from tidegate.errors import BadRecordError, ConfigError

pytestmark = pytest.mark.spark

SCHEMA = "id int, at bigint, seat string"


def row(key, at, seat):
    return {"id": key, "at": at, "seat": seat}


def test_order_by_orders_a_batch_and_newer_by_all_of_them(stream):
    def each(txn, rows):
        txn.upsert("ordered", rows, "id", order_by="at")
        txn.upsert("newest", rows, "id", newer_by="at")

    seats = stream(SCHEMA)
    seats.commit(seats.sink().each(each), [row(1, 3, "new"), row(1, 2, "old")], [row(1, 0, "late")])
    assert seats.rows("ordered") == {1: {"at": 0, "seat": "late"}}
    assert seats.rows("newest") == {1: {"at": 3, "seat": "new"}}


def test_a_null_is_a_bad_row(stream):
    seats = stream(SCHEMA)
    seats.add([row(1, 3, "a"), row(2, None, "b")])
    ran = seats.run(seats.sink(table="seats", key="id", newer_by="at"))
    assert isinstance(ran.error, BadRecordError)
    assert "table seats, key 2: column at of newer_by is null in it" in str(ran.error)
    assert seats.decided() == 0
    sink = seats.sink(table="seats", key="id", newer_by="at", on_bad_record="quarantine")
    assert seats.run(sink).error is None
    assert seats.rows("seats") == {1: {"at": 3, "seat": "a"}}
    (refused,) = seats.rows("_quarantine").values()
    assert (refused["key"], refused["value"]) == (b"2", b'{"at":null,"seat":"b"}')
    assert refused["cause"].startswith("column at of newer_by is null")


def test_calls_that_do_not_fit_are_refused_and_nothing_is_decided(stream):
    seats = stream(SCHEMA)
    with pytest.raises(ConfigError, match="newer_by and delete_when do not go together: a late row"):
        seats.sink(table="seats", key="id", newer_by="at", delete_when="seat IS NULL")
    with pytest.raises(ConfigError, match="newer_by belong to the one-table form"):
        seats.sink(newer_by="at")
    cases = (
        ({"newer_by": "at", "order_by": "at"}, "newer_by and order_by do not go together"),
        ({"newer_by": "at", "value": "seat"}, "newer_by and value do not go together"),
        ({"newer_by": "id"}, "must be one column outside the key; those are at, seat"),
        ({"newer_by": ["at"]}, "must be one column outside the key"),
        ({"newer_by": "score"}, "newer_by column score is double; a sequence is"),
    )

    def check(rows, batch_id):
        for arguments, message in cases:
            used = rows.selectExpr("*", "0.5D AS score") if arguments["newer_by"] == "score" else rows
            with pytest.raises(ConfigError, match=message):
                seats.sink().each(lambda t, _, a=arguments, r=used: t.upsert("seats", r, "id", **a))(rows, 0)

        def mixed(txn, _):
            txn.upsert("seats", rows, "id", newer_by="at")
            txn.delete("seats", rows, "id")

        with pytest.raises(ConfigError, match=r"upsert\(newer_by\) and delete of one table do not mix"):
            seats.sink().each(mixed)(rows, batch_id)

    seats.add([row(1, 1, "a")])
    seats.in_batch(check)
    assert seats.decided() == 0
