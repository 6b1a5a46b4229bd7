"""The calls of a transaction as steps of their version: names, and measures that equal a recount."""

from __future__ import annotations

import pytest

import tidegate
from tidegate.errors import ConfigError
from tidegate.keys.groups import encode_key

pytestmark = pytest.mark.spark


def steps(stream, version=1):
    with tidegate.connect(stream.store, "flights", **stream.log.keywords) as gate:
        return {step.name: step for step in gate.job(version)}


def weight(pairs):
    """The bytes of these keys and stored values."""
    return sum(len(encode_key((key,), ["string"])) + len(value) for key, value in pairs)


ROWS = [{"k": "a", "n": 1}, {"k": "b", "n": 22}, {"k": "a", "n": 333}, {"k": "cc", "n": 4}]


@pytest.mark.both_ways
def test_each_call_has_its_rows_and_bytes_by_whoever_stages_it(stream):
    def each(txn, rows):
        txn.upsert("all", rows, "k", order_by="n")
        txn.delete("all", rows.where("k = 'cc'"), "k")
        txn.upsert("few", rows.where("n > 100"), "k", name="large")
        txn.upsert("few", rows.where("n < 2"), "k")
        txn.upsert("few", rows.where("false"), "k")
        txn.reduce("sums", rows, "k", reducers={"n": "sum"})

    flow = stream("k string, n bigint")
    by_tasks = {"driver_apply_max_changes": 0} if flow.staged_by == "job" else {}
    sink = flow.sink(parallelism=2, **by_tasks)
    flow.commit(sink.each(each), ROWS)
    last, who = sink.last_commit, "driver" if flow.staged_by == "driver" else "tasks"
    assert (last.staged_by, last.applied_by) == (who, who)
    found = steps(flow)
    assert list(found) == ["upsert.all", "delete.all", "large", "upsert.few", "upsert.few.2", "reduce.sums"]
    every = [(row["k"], b'+{"n":%d}' % row["n"]) for row in ROWS]
    expected = {
        "upsert.all": every,
        "delete.all": [("cc", b"-")],
        "large": every[2:3],
        "upsert.few": every[:1],
        "upsert.few.2": [],
    }
    for name, pairs in expected.items():
        assert (found[name].rows, found[name].bytes) == (len(pairs), weight(pairs)), name
        assert found[name].seconds == 0.0
    assert found["reduce.sums"].rows == 3  # one for each key: the JVM has combined them
    assert found["reduce.sums"].seconds > 0.0
    assert {step.tables for step in found.values()} == {("all",), ("few",), ("sums",)}
    tasks = 0 if flow.staged_by == "driver" else 2
    assert {step.parallelism for step in found.values()} == {tasks}
    assert {step.frames for step in found.values()} <= {1, tasks}


def test_rows_that_only_spark_can_order_are_counted_by_call_too(stream):
    def each(txn, rows):
        txn.upsert("t", rows, "k", order_by="o")
        txn.delete("t", rows.where("n = 4"), "k")

    flow = stream("k string, n bigint, o array<int>")
    flow.commit(flow.sink().each(each), [{**row, "o": [row["n"]]} for row in ROWS])
    found = steps(flow)
    assert (found["upsert.t"].rows, found["delete.t"].rows) == (4, 1)
    assert found["delete.t"].bytes == weight([("cc", b"-")])


def test_functions_are_steps_with_the_tables_to_which_they_emit(stream):
    def count(key, rows, state, emit):
        number = sum(1 for _ in rows)
        emit("seen", key, {"n": number})
        return {"n": (state or {"n": 0})["n"] + number}

    def keep(instance, rows, state, emit):
        return [b"x" for _ in rows]

    def each(txn, rows):
        txn.update("counts", rows, "k", count, schema="n bigint", outputs={"seen": ("k string", "n bigint")})
        txn.local_state("kept", rows, keep)

    flow = stream("k string, n bigint")
    flow.commit(flow.sink(parallelism=2).each(each), ROWS)
    found = steps(flow)
    assert list(found) == ["update.counts", "local_state.kept"]
    update = found["update.counts"]
    assert (update.call, update.tables, update.rows) == ("update", ("counts", "seen"), 6)
    pairs = [("a", 2), ("b", 1), ("cc", 1)]
    assert update.bytes == 2 * weight([(key, b'+{"n":%d}' % number) for key, number in pairs])
    assert all(step.seconds > 0.0 for step in found.values())


def test_a_name_is_one_calls_own(stream):
    messages = []

    def each(txn, rows):
        txn.upsert("t", rows, "k", name="mine")
        for name in ("mine", "a b", ""):
            with pytest.raises(ConfigError) as caught:
                txn.delete("t", rows, "k", name=name)
            messages.append(str(caught.value))

    flow = stream("k string, n bigint")
    flow.commit(flow.sink().each(each), ROWS)
    assert "table t: an earlier call of this transaction has the name 'mine'" in messages[0]
    assert "call name 'a b' is not allowed" in messages[1]
    assert list(steps(flow)) == ["mine"]
