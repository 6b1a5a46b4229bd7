"""States whose form changes incompatibly: touched rows are migrated, the others stay as they were written."""

from __future__ import annotations

import sys

import pytest
from pyspark import cloudpickle

from tidegate.errors import BadRecordError, ConfigError, FunctionError
from tidegate.spark import register

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import the tests

SCHEMA = "k string, n bigint"
FIRST, SECOND, THIRD = "n int", "n string, at struct<x:bigint>", "n double"


def rows_of(**numbers):
    return [{"k": key, "n": n} for key, n in numbers.items()]


def count(key, rows, state, emit):
    """Version 1: an int."""
    return {"n": (state["n"] if state else 0) + sum(row["n"] for row in rows)}


def spell(key, rows, state, emit):
    """Version 2: text, and a struct; a state of another form would fail."""
    before = state["n"] if state else ""
    assert isinstance(before, str)
    return {"n": before + "".join(f"+{row['n']}" for row in rows), "at": {"x": len(before)}}


def to_text(state, version):
    assert version == 1
    return {"n": f"={state['n']}", "at": None}


def half(key, rows, state, emit):
    return {"n": (state["n"] if state else 0.0) + sum(row["n"] for row in rows) / 2}


def to_half(state, version):
    return {"n": float({1: lambda: state["n"], 2: lambda: len(state["n"])}[version]())}


def updates(fn, **arguments):
    return lambda txn, rows: txn.update("t", rows, "k", fn, **arguments)


VERSION_1 = updates(count, schema=FIRST)
VERSION_2 = updates(spell, schema=SECOND, state_version=2, migrate=to_text)
VERSION_3 = updates(half, schema=THIRD, state_version=3, migrate=to_half)


def in_order(*functions):
    return lambda txn, rows: functions[txn.batch_id](txn, rows)


def test_touched_rows_are_migrated_and_others_stay(stream):
    ours = stream(SCHEMA)
    function = in_order(VERSION_1, VERSION_2, VERSION_3)
    ours.commit(ours.sink().each(function), rows_of(a=1, b=2, c=3), rows_of(b=5, d=6), rows_of(a=7, d=8))
    assert ours.rows("t", 1) == {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}
    second = ours.rows("t", 2)
    assert second == {
        "a": {"n": 1},
        "b": {"n": "=2+5", "at": {"x": 2}},
        "c": {"n": 3},
        "d": {"n": "+6", "at": {"x": 0}},
    }
    assert {key: getattr(row, "state_version", 2) for key, row in second.items()} == {
        "a": 1,
        "b": 2,
        "c": 1,
        "d": 2,
    }
    third = ours.rows("t", 3)
    assert third == {"a": {"n": 4.5}, "b": second["b"], "c": {"n": 3}, "d": {"n": 6.0}}
    with ours.gate() as gate:
        found = gate.table("t").scan().to_arrow().sort_by("k")
        assert found.column_names == ["k", "n", "n@1", "n@2", "at@2"]
        assert found["n"].to_pylist() == [4.5, None, None, 6.0]
        assert found["n@1"].to_pylist() == [None, None, 3, None]
        assert found["n@2"].to_pylist() == [None, "=2+5", None, None]


def test_the_rest_is_migrated_in_one_version(stream, spark):
    ours = stream(SCHEMA)
    sink = ours.sink(ttl={"t": "30 days"})
    ours.commit(sink.each(in_order(VERSION_1, VERSION_2)), rows_of(a=1, b=2, c=3), rows_of(b=5))
    newest = {"a": {"n": "=1", "at": None}, "b": {"n": "=2+5", "at": {"x": 2}}, "c": {"n": "=3", "at": None}}
    assert sink.migrate_state("t", migrate=to_text, state_version=2) == 3
    assert sink.migrate_state("t", migrate=to_text, state_version=2) is None
    assert ours.rows("t") == newest
    assert ours.rows("t", 2)["a"] == {"n": 1}, "an older version stays"
    with ours.gate() as gate:
        schema = gate.table("t").schema()
        assert (schema.state_version, schema.older or (), schema.value_format) == (2, (), "json")
    # The query continues without a function that migrates; and to another version, which it migrates first.
    going_on = updates(spell, state_version=2)
    ours.commit(sink.each(going_on), rows_of(c=1))
    assert ours.rows("t")["c"] == {"n": "=3+1", "at": {"x": 2}}
    assert sink.migrate_state("t", migrate=to_half, state_version=3, schema=THIRD) == 5
    assert ours.rows("t") == {"a": {"n": 2.0}, "b": {"n": 4.0}, "c": {"n": 4.0}}
    sink.close()
    register(spark)
    frame = spark.read.format("tidegate").options(namespace="flights", store=ours.store, table="t").load()
    assert dict(frame.dtypes) == {"k": "string", "n": "double"}


def test_a_version_that_goes_back_or_has_no_function_is_refused_before_the_batch(stream):
    ours = stream(SCHEMA)

    def each(txn, rows):
        match txn.batch_id:
            case 0:
                VERSION_1(txn, rows)
            case 1:
                with pytest.raises(ConfigError, match=r"state version 1, .* state_version=2: pass migrate"):
                    updates(spell, schema=SECOND, state_version=2)(txn, rows)
                with pytest.raises(ConfigError, match="of bytes, does not show its version"):
                    updates(spell, schema="bytes", state_version=2, migrate=to_text)(txn, rows)
                with pytest.raises(ConfigError, match=r"cannot be called as spell\(state, version\)"):
                    updates(spell, schema=SECOND, state_version=2, migrate=spell)(txn, rows)
                with pytest.raises(ConfigError, match="column n@1: two have this name"):
                    updates(spell, schema="`n@1` int", state_version=2, migrate=to_text)(txn, rows)
                for wrong in (0, True, "2"):
                    with pytest.raises(ConfigError, match="state_version is"):
                        updates(spell, schema=SECOND, state_version=wrong, migrate=to_text)(txn, rows)
                VERSION_2(txn, rows)
            case 2:
                with pytest.raises(
                    ConfigError, match=r"versions 1, 2, .* state_version=1: .* never goes back"
                ):
                    VERSION_1(txn, rows)
                with pytest.raises(ConfigError, match=r"versions 1, 2, .* state_version=2: pass migrate"):
                    updates(spell, state_version=2)(txn, rows)
                for call in (txn.upsert, txn.patch):
                    with pytest.raises(ConfigError, match=r"which (upsert|patch) cannot read"):
                        call("t", rows.selectExpr("k", "string(n) n"), key="k")
                updates(spell, state_version=2, migrate=to_text)(txn, rows)
            case 3:
                txn.replace("t", rows.selectExpr("k", "string(n) n"), key="k")
            case _:
                updates(spell, schema=SECOND, state_version=2)(txn, rows)

    batches = (rows_of(a=1, b=2), rows_of(a=3), rows_of(b=4), rows_of(z=1), rows_of(z=2))
    ours.commit(ours.sink().each(each), *batches)
    assert ours.rows("t", 3) == {"a": {"n": "=1+3", "at": {"x": 2}}, "b": {"n": "=2+4", "at": {"x": 2}}}
    assert ours.rows("t") == {"z": {"n": "1+2", "at": {"x": 1}}}, "a replaced table keeps its state version"


def wrong(state, version):
    return {"n": 3}


def broken(state, version):
    raise ValueError("no such state")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "migrate, error, message",
    [
        (wrong, BadRecordError, r"key 'a', batch 1, state of version 1: wrong returned .* none of version 2"),
        (broken, FunctionError, r"key 'a', batch 1, state of version 1: broken raised ValueError: no such"),
    ],
)
def test_a_state_that_cannot_be_migrated_fails_its_batch(stream, migrate, error, message):
    ours = stream(SCHEMA)
    sink = ours.sink()
    ours.commit(sink.each(VERSION_1), rows_of(a=1, b=2))
    ours.add(rows_of(a=1))
    ran = ours.run(sink.each(updates(spell, schema=SECOND, state_version=2, migrate=migrate)))
    with pytest.raises(error, match=message):
        raise ran.error
    with pytest.raises(error, match=message.replace("batch 1, state", "migrate_state, state")):
        sink.migrate_state("t", migrate=migrate, state_version=2, schema=SECOND)
    sink.close()
    assert ours.rows("t") == {"a": {"n": 1}, "b": {"n": 2}}
    assert ours.decided() == 1


def keep(instance, rows, state, emit):
    return [*state, *(b"%d" % row["n"] for row in rows)]


def keep_columns(instance, rows, state, emit):
    return [*state, *({"n": row["n"]} for row in rows)]


def from_bytes(item, version):
    return {"n": int(item) * 10}


def test_a_local_state_is_migrated_as_a_whole_also_while_it_is_rescaled(stream):
    ours = stream(SCHEMA)
    second = {"schema": "n bigint", "state_version": 2, "migrate": from_bytes}

    def each(fn, **arguments):
        return lambda txn, rows: txn.local_state("s", rows, fn, **arguments)

    ours.commit(ours.sink(parallelism=2).each(each(keep)), rows_of(a=1, b=2, c=3))
    with pytest.raises(ConfigError, match="state version 1"):
        raise ours.commit(
            ours.sink(parallelism=3).each(each(keep_columns, schema="n bigint", state_version=2)),
            rows_of(d=4),
        )
    ours.commit(ours.sink(parallelism=3).each(each(keep_columns, **second)))
    ours.commit(ours.sink(parallelism=3).each(each(keep_columns, **second)), rows_of(e=5))
    assert sorted(row["n"] for row in ours.rows("_local.s").values()) == [4, 5, 10, 20, 30]
    assert sorted(ours.rows("_local.s", 1).values()) == [b"1", b"2", b"3"]
    with ours.gate() as gate:
        assert gate.table("_local.s").schema().state_version == 2
