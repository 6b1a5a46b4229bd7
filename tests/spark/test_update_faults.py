"""Functions that fail, and calls that cannot be: nothing is decided, and the error says what to do (I5)."""

from __future__ import annotations

import sys

import pytest
from pyspark import cloudpickle

from tidegate.errors import BadRecordError, ConfigError, FunctionError, StoreUnavailableError
from tidegate.spark.staging import first_stage

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import the tests

SCHEMA = "k string, n int"
ROWS = [{"k": f"k{n}", "n": n} for n in range(20)]


def raises(key, rows, state, emit):
    if key == "k7":
        message = "the seventh\nfails"
        raise ValueError(message)


def forever(key, rows, state, emit):
    while True:
        pass


def emits(*what):
    def fn(key, rows, state, emit):
        emit(*what)

    return fn


FAULTS = {
    "raises": (
        raises,
        FunctionError,
        "table t, key 'k7', batch 0: raises raised ValueError: the seventh fails",
    ),
    "never returns": (forever, FunctionError, "forever did not return within function_deadline_s, 5 s"),
}
"""Through Spark; what else a function may do wrong is in tests/unit/spark/state/test_update.py."""


@pytest.fixture
def attempts(monkeypatch, tmp_path):
    """The first stage's tasks that ran, and how often."""
    original = first_stage._functions
    seen = tmp_path / "attempts"
    seen.mkdir()

    def noting(*arguments):
        run = original(*arguments)

        def task(batches):
            from pyspark import TaskContext

            context = TaskContext.get()
            (seen / f"{context.stageId()}-{context.partitionId()}-{context.attemptNumber()}").touch()
            yield from run(batches)

        return task

    monkeypatch.setattr(first_stage, "_functions", noting)
    return lambda: [path.name.rpartition("-")[2] for path in seen.iterdir()]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("policy", ["fail", "quarantine"])
def test_what_a_function_does_wrong_fails_its_batch_at_once_i5(stream, attempts, policy):
    """Whatever on_bad_record says: it is no record that is wrong. No task is tried again."""
    flights = stream(SCHEMA)
    flights.add(ROWS)
    sink = flights.sink(
        on_bad_record=policy, function_deadline_s=5
    )  # the others take no time, but on a loaded machine
    null_key = (emits("out", None, {"x": 1}), BadRecordError, "emits to table out, key None")
    cases = FAULTS if policy == "fail" else {"emits a null key": null_key}

    def check(rows, batch_id):
        for case, (fn, error, message) in cases.items():

            def each(txn, batch, fn=fn):
                txn.upsert("other", batch, "k")
                outputs = {"out": ("key string", "x int")}
                txn.update("t", batch, "k", fn, schema="n int, s string", outputs=outputs)

            with pytest.raises(error, match=message):
                sink.each(each)(rows, batch_id)
            assert flights.decided() == flights.version() == 0, case
        assert set(attempts()) == {"0"}
        sink.each(lambda txn, batch: txn.update("t", batch, "k", raises_not, schema="n int"))(rows, batch_id)

    flights.in_batch(check)
    assert flights.rows("t") == {row["k"]: {"n": 1} for row in ROWS}


def raises_not(key, rows, state, emit):
    return {"n": sum(1 for _ in rows)}


@pytest.mark.slow
def test_a_function_that_fails_early_in_a_large_batch_ends_it_and_the_query_stops_i5(stream):
    """Most rows are not read any more; the next run of the query makes the version."""
    flights = stream(SCHEMA)
    flights.add(ROWS[:1])

    def each(fn):
        def write(txn, rows):
            many = rows.sparkSession.range(200_000).selectExpr(
                "CAST(id % 1000 AS STRING) k", "repeat('x', 100) s"
            )
            txn.update("t", many, "k", fn, schema="n int")

        return write

    ran = flights.run(flights.sink().each(each(emits("nowhere", 1, 2))))
    assert isinstance(ran.error, FunctionError)
    assert "FunctionError" in str(ran.exception)
    assert flights.decided() == 0
    flights.commit(flights.sink().each(each(raises_not)))
    assert flights.rows("t") == {str(n): {"n": 200} for n in range(1000)}


def test_rows_without_a_key_are_bad_records_as_in_any_call_t43_t46(stream):
    flights = stream(SCHEMA)
    rows = [{"k": "a", "n": 1}, {"k": None, "n": 2}, {"k": None, "n": 3}, {"k": "x" * 50, "n": 4}]
    flights.add(rows)

    def each(txn, batch):
        txn.update("t", batch, "k", raises_not, schema="n int")

    ran = flights.run(flights.sink(key_bytes_max=40, parallelism=1).each(each))
    assert isinstance(ran.error, BadRecordError)
    assert "table t" in str(ran.error)
    assert flights.decided() == 0
    flights.commit(flights.sink(key_bytes_max=40, on_bad_record="quarantine").each(each))
    assert flights.rows("t") == {"a": {"n": 1}}
    found = sorted((row["cause"], row["table"], row["value"]) for row in flights.rows("_quarantine").values())
    assert found == [
        ("its key is null", "t", b'{"k":null,"n":2}'),
        ("its key is null", "t", b'{"k":null,"n":3}'),
        ("its key takes 50 bytes, 40 are allowed", "t", b'{"k":"%s","n":4}' % (b"x" * 50)),
    ]


def test_an_error_of_the_store_is_not_the_functions(stream, monkeypatch):
    flights = stream(SCHEMA)
    flights.commit(flights.sink().each(lambda t, r: t.update("t", r, "k", raises_not, schema="n int")), ROWS)
    flights.add(ROWS)
    monkeypatch.setattr(first_stage, "_functions", without_store(first_stage._functions))
    sink = flights.sink(state_cache_bytes=0)
    ran = flights.run(sink.each(lambda t, r: t.update("t", r, "k", raises_not)))
    assert isinstance(ran.error, StoreUnavailableError), ran.error
    assert flights.decided() == 1


def without_store(original):
    def make(*arguments):
        run = original(*arguments)

        def task(batches):
            from tidegate.sinks.sqlite.store import SqliteStore

            def away(*_):
                message = "the store is away"
                raise StoreUnavailableError(message)

            before, SqliteStore.get_stored = SqliteStore.get_stored, away
            try:
                yield from run(batches)
            finally:
                SqliteStore.get_stored = before

        return task

    return make


def test_calls_that_cannot_be_are_refused_before_anything_runs(stream):
    flights = stream(SCHEMA)
    flights.add([{"k": "a", "n": 1}])
    sink = flights.sink()
    ok, two = raises_not, lambda *_, rows: rows
    two.__name__ = "two"
    cases = [
        (lambda t, r: t.update("t", r, "k", ok), 'not known yet: pass schema=, as in schema="count'),
        (lambda t, r: t.update("t", r, "k", 7, schema="n int"), "fn is 7; update needs a function"),
        (lambda t, r: t.update("t", r, "k", two, schema="n int"), r"as two\(key, rows, state, emit"),
        (lambda t, r: t.update("t", r, "k", lambda *_: r.count(), schema="n int"), "Spark cannot send "),
        (lambda t, r: t.update("t", r, "k", ok, schema="n nothing"), "'n nothing' does not name"),
        (lambda t, r: t.update("t", r, "k", ok, schema="n int, n int"), "column 'n' is repeated"),
        (lambda t, r: t.update("t", r, "k", ok, schema="k string"), "k is a key column, leave it out"),
        (lambda t, r: t.update("t", r, "k", ok, schema="v map<binary,int>"), "column v: .*cast"),
        (lambda t, r: t.update("t", r, "n2", ok, schema="n int"), "'n2' is missing"),
        (
            lambda t, r: t.update("t", r.selectExpr("k", "map(X'FF', 1) m"), "k", ok, schema="n int"),
            "column m: .*cast",
        ),
        (lambda t, r: t.update("t", r.select("k"), "k", ok, schema="n int", outputs="u"), "u is not known"),
        (lambda t, r: out(t, r, {"u": "k string"}), r"an output is a pair, \(key columns, value columns\)"),
        (lambda t, r: out(t, r, {"u": ("k double", "n int")}), "key column k is double"),
        (lambda t, r: out(t, r, {"u": ("", "n int")}), "name at least one key column"),
        (lambda t, r: out(t, r, {"t": ("k string", "n int")}), "does not emit to its own state"),
        (lambda t, r: out(t, r, {"_u": ("k string", "n int")}), "reserved"),
        (
            lambda t, r: (out(t, r, {"u": ("k string", "n int")}), t.reduce("u", r, "k", {"n": "sum"})),
            "table u: emit and reduce of one table do not mix",
        ),
        (
            lambda t, r: (t.upsert("t", r, "k"), out(t, r, {"u": ("k string", "n int")})),
            "table t: upsert and update of one table do not mix",
        ),
        (
            lambda t, r: (t.upsert("u", r, "k"), out(t, r, {"u": ("k int", "n int")})),
            r"table u has the key \(k string\), this emit has \(k int\)",
        ),
        (
            lambda t, r: (t.upsert("u", r, "k"), out(t, r, {"u": ("k string", "n string")})),
            "table u, column n: int here, this call writes string: ",
        ),
        (lambda t, r: t.patch("t", r, "x"), "'x' is missing"),
        (
            lambda t, r: (t.upsert("t", r, "k"), t.patch("t", r.select("k"), "k")),
            "table t: upsert and patch of one table do not mix",
        ),
    ]  # fmt: skip

    def out(txn, rows, outputs):
        txn.update("t", rows.select("k", "n"), "k", ok, schema="n int", outputs=outputs)

    def check(rows, batch_id):
        for each, message in cases:
            with pytest.raises(ConfigError, match=message):
                sink.each(each)(rows, batch_id)
        assert flights.decided() == 0
        sink.each(lambda txn, batch: out(txn, batch, {"u": ("k string", "n int")}))(rows, batch_id)

    flights.in_batch(check)
    assert flights.rows("t") == {"a": {"n": 1}}
    assert flights.rows("u") == {}
