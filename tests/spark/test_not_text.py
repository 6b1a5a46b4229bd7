"""A text that is not UTF-8 has no place in a value's JSON: its row is a bad one, never another text (T43)."""

from __future__ import annotations

import pytest

from tidegate.errors import BadRecordError

pytestmark = pytest.mark.spark

BAD = "CAST(X'61FF' AS STRING)"
HALVES = ["CAST(X'C3' AS STRING)", "CAST(X'A9' AS STRING)"]
INSIDE = {
    "text": BAD,
    "collated": f"{BAD} COLLATE UTF8_LCASE",
    "array": f"array('a', null, {BAD})",
    "map's key": f"map('a', 1, {BAD}, 2)",
    "map's value": f"map(1, {BAD})",
    "struct": f"named_struct('e0', 1, 'é', array(map('a', named_struct('x', {BAD}))))",
}
GOOD = "named_struct('x', 'é\ufffd', 'all', array(null, ''), 'none', CAST(NULL AS map<string, string>))"

CALLS = {
    "upsert": lambda txn, rows: txn.upsert("t", rows, "k"),
    "replace": lambda txn, rows: txn.replace("t", rows, "k"),
    "patch": lambda txn, rows: txn.patch("t", rows, "k"),
    "reduce": lambda txn, rows: txn.reduce("t", rows, "k", {"text": "max"}),
    "apply_changes": lambda txn, rows: txn.apply_changes("t", rows, "k", sequence_by="n"),
    "a delete's sequence": lambda txn, rows: txn.apply_changes(
        "t", rows.selectExpr("k", "text", "'d' AS op"), "k", sequence_by="text", op_column="op"
    ),
    "update": lambda txn, rows: txn.update("t", rows, "k", lambda *_: {"n": 1}, schema="n int"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("inside", INSIDE)
def test_wherever_such_a_text_is_it_is_told(stream, inside):
    """It was stored with U+FFFD in its place, without a word."""
    flights = stream("k string, n int")
    flights.add([{"k": "a", "n": 1}])
    told = "table t, key 'a': a text in its value is not valid UTF-8; nothing was decided; make it valid"

    def check(rows, batch_id):
        with pytest.raises(BadRecordError, match=told):
            flights.sink().each(
                lambda txn, _: txn.upsert("t", rows.selectExpr("*", f"{INSIDE[inside]} x"), "k")
            )(rows, batch_id)
        assert flights.decided() == 0
        flights.sink().each(lambda txn, _: txn.upsert("t", rows.selectExpr("*", f"{GOOD} x"), "k"))(
            rows, batch_id
        )

    flights.in_batch(check)
    assert flights.rows("t")["a"]["x"] == {"x": "é\ufffd", "all": [None, ""], "none": None}


def test_halves_of_a_character_in_two_columns_are_none(stream):
    flights = stream("k string, n int")
    flights.add([{"k": "a", "n": 1}])

    def check(rows, batch_id):
        halves = rows.selectExpr("k", f"{HALVES[0]} AS one", f"{HALVES[1]} AS other")
        with pytest.raises(BadRecordError, match="not valid UTF-8"):
            flights.sink().each(lambda txn, _: txn.upsert("t", halves, "k"))(rows, batch_id)
        flights.sink().each(lambda txn, _: txn.upsert("t", rows, "k"))(rows, batch_id)

    flights.in_batch(check)


@pytest.mark.one_in(2)
@pytest.mark.both_ways
def test_every_call_sets_such_rows_aside(stream):
    flights = stream("k string, n int")
    flights.add([{"k": "a", "n": 1}, {"k": "b", "n": 2}])
    text = f"IF(k = 'a', {BAD}, 'good') AS text"

    def kept(instance, rows, state, emit):
        return [*state, *map(str, rows)]

    def check(rows, batch_id):
        given = rows.selectExpr("*", text)
        for call in CALLS.values():
            with pytest.raises(
                BadRecordError, match="table t, key 'a': a text in its value is not valid UTF-8"
            ):
                flights.sink().each(lambda txn, _, call=call: call(txn, given))(rows, batch_id)
        with pytest.raises(BadRecordError, match=r"local state s.*not valid UTF-8"):
            flights.sink().each(lambda txn, _: txn.local_state("s", given, kept))(rows, batch_id)
        assert flights.decided() == 0
        tables = {f"t{number}": call for number, call in enumerate(CALLS.values())}

        def write(txn, _):
            for table, call in tables.items():
                call(Named(txn, table), given)
            txn.upsert("raw", given.select("k", "text"), "k", value="text")

        flights.sink(on_bad_record="quarantine").each(write)(rows, batch_id)

    flights.in_batch(check)
    aside = flights.rows("_quarantine").values()
    assert sorted(row["table"] for row in aside) == [f"t{number}" for number in range(len(CALLS))]
    assert {row["key"] for row in aside} == {b"a"}
    assert all(b'"a\xef\xbf\xbd"' in row["value"] for row in aside)
    assert flights.rows("t0") == {"b": {"n": 2, "text": "good"}}
    assert flights.rows("t6") == {"b": {"n": 1}}
    assert flights.rows("raw") == {"a": b"a\xff", "b": b"good"}, "bytes are kept as they are"


class Named:
    """A transaction, for calls that name another table."""

    def __init__(self, txn, table):
        self._txn, self._table = txn, table

    def __getattr__(self, kind):
        return lambda _, *given, **named: getattr(self._txn, kind)(self._table, *given, **named)
