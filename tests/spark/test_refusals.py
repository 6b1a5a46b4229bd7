"""Calls that do not fit: a typed error that names cause and way out, and nothing written."""

from __future__ import annotations

import pickle

import pytest

from tidegate.errors import ConfigError, StoreUnavailableError, WalUnavailableError
from tidegate.spark import VersionedSink

pytestmark = pytest.mark.spark

SCHEMA = "tailnum string, n bigint, d double, tags map<string,int>"
ROW = {"tailnum": "N1", "n": 1, "d": 0.5, "tags": [("a", 1)]}

CALLS = {
    "column is missing": (lambda t, r: t.upsert("x", r, key="tailnumb"), "tailnumb.*did you mean 'tailnum'"),
    "order_by is missing": (
        lambda t, r: t.upsert("x", r, key="n", order_by="o"),
        "column 'o' is missing; the columns are",
    ),
    "value is missing": (lambda t, r: t.upsert("x", r, key="n", value="tailnun"), "did you mean 'tailnum'"),
    "float key (NaN)": (
        lambda t, r: t.upsert("x", r, key="d"),
        "key column d is double; NaN.*cast it to decimal",
    ),
    "map key": (lambda t, r: t.upsert("x", r, key=["n", "tags"]), "key column tags is map.*cast"),
    "struct key": (
        lambda t, r: t.upsert("x", r.selectExpr("named_struct('a', n) c"), key="c"),
        "c is struct.*a struct is no key",
    ),
    "key twice": (lambda t, r: t.upsert("x", r, key=["n", "n"]), "one or more different columns"),
    "value is no name": (lambda t, r: t.upsert("x", r, key="n", value=3), "value=3 must be a column's name"),
    "reducers are no mapping": (lambda t, r: t.reduce("x", r, "n", ["d"]), "at least one reducer, as in"),
    "outputs are no names": (
        lambda t, r: t.update("x", r, "n", lambda *_: None, schema="m int", outputs=3),
        "outputs=3 must name tables",
    ),
    "sequence_by is no name": (
        lambda t, r: t.apply_changes("x", r, "n", sequence_by=None),
        "sequence_by=None must be a column's name",
    ),
    "delete_values are no list": (
        lambda t, r: t.apply_changes("x", r, "n", sequence_by="d", op_column="tailnum", delete_values=3),
        "delete_values must be a list of texts",
    ),
    "by is no name": (
        lambda t, r: t.local_state("x", r, lambda *_: [], by=3),
        "by=3 must be a column's name",
    ),
    "no key": (lambda t, r: t.upsert("x", r, key=[]), "one or more different columns"),
    "order_by a map": (
        lambda t, r: t.upsert("x", r, key="n", order_by="tags"),
        "tags is a map, which has no order",
    ),
    "value is a number": (
        lambda t, r: t.upsert("x", r, key="n", value="d"),
        "value column d is double; it must be",
    ),
    "delete_when is no SQL": (lambda t, r: t.upsert("x", r, "n", delete_when="n >"), "table x.*delete_when"),
    "delete_when names no column": (
        lambda t, r: t.upsert("x", r, "n", delete_when="gone"),
        "table x.*delete_when",
    ),
    "delete_when is no boolean": (
        lambda t, r: t.upsert("x", r, "n", delete_when="d"),
        "delete_when.*double.*boolean",
    ),
    "column is repeated": (
        lambda t, r: t.upsert("x", r.select("n", "d", "d"), key="n"),
        "column 'd' is repeated",
    ),
    "column is repeated but for case": (
        lambda t, r: t.upsert("x", r.selectExpr("n", "d", "n AS D"), key="n"),
        "table x",
    ),
    "bad table name": (lambda t, r: t.upsert("a/b", r, key="n"), "table name 'a/b' is not allowed"),
    "table is no name": (lambda t, r: t.upsert("", r, key="n"), "table name '' is not allowed"),
    "rows are no DataFrame": (lambda t, _: t.upsert("x", [ROW], key="n"), "must be a DataFrame, not list"),
    "unknown table in delete": (
        lambda t, r: t.delete("aircrafd", r, key="tailnum"),
        "did you mean 'aircraft'",
    ),
    "delete with another key": (
        lambda t, r: t.delete("aircraft", r, key="n"),
        r"has the key \(tailnum string\)",
    ),
    "delete before the first upsert with another key": (
        lambda t, r: (t.delete("new", r, key="n"), t.upsert("new", r, key="tailnum")),
        "has the key",
    ),
    "upsert with another key": (lambda t, r: t.upsert("aircraft", r, key="n"), "key is fixed for life"),
    "column changed": (
        lambda t, r: t.upsert("aircraft", r.selectExpr("tailnum", "n", "string(d) d", "tags"), key="tailnum"),
        "table aircraft, column d: .* here, this call writes string: .*txn.replace, or write a new table",
    ),
    "bytes for json": (
        lambda t, r: t.upsert("aircraft", r, "tailnum", value="tailnum"),
        "json values of .* here, this call writes bytes values",
    ),
    "reduce after upsert": (
        lambda t, r: (t.upsert("x", r, "tailnum"), t.reduce("x", r, "tailnum", {"n": "sum"})),
        "upsert and reduce of one table do not mix",
    ),
    "delete after reduce": (
        lambda t, r: (t.reduce("x", r, "tailnum", {"n": "sum"}), t.delete("x", r, "tailnum")),
        "reduce and delete of one table do not mix",
    ),
    "no reducers": (lambda t, r: t.reduce("x", r, "tailnum", {}), "at least one reducer"),
    "unknown reducer": (
        lambda t, r: t.reduce("x", r, "tailnum", {"n": "avg"}),
        "'avg' is not a reducer; there are",
    ),
    "sum of text": (
        lambda t, r: t.reduce("x", r, "n", {"tailnum": "sum"}),
        r"sum of column tailnum.*cast it",
    ),
    "max of a map": (
        lambda t, r: t.reduce("x", r, "n", {"tags": "max"}),
        "max of column tags.*not supported",
    ),
    "a key reduced": (
        lambda t, r: t.reduce("x", r, "n", {"n": "sum"}),
        "n is a key column and cannot be reduced",
    ),
}


def test_every_call_that_does_not_fit_is_refused_and_nothing_is_decided_i5(stream, spark):
    """All of them in one batch, which makes its version in the end."""
    flights = stream(SCHEMA)
    flights.add([ROW], [ROW])
    sink, ended = flights.sink(), []
    each = sink.each(lambda t, r: (t.upsert("aircraft", r, key="tailnum"), ended.append(t)))
    streaming = spark.readStream.format("rate").load()

    def check(rows, batch_id):
        if batch_id == 0:
            return each(rows, batch_id)
        for case, (call, pattern) in CALLS.items():
            with pytest.raises(ConfigError, match=pattern) as caught:
                sink.each(call)(rows, batch_id)
            assert "\n" not in str(caught.value).strip(), case
            assert flights.decided() == 1, case
        with pytest.raises(ConfigError, match="streaming DataFrame; use the one the function is given"):
            sink.each(lambda t, _: t.upsert("x", streaming, key="value"))(rows, batch_id)
        with pytest.raises(ConfigError, match="the transaction of batch 0 has ended"):
            ended[0].upsert("aircraft", rows, key="tailnum")
        with pytest.raises(ZeroDivisionError):
            sink.each(lambda t, r: (t.upsert("aircraft", r, key="tailnum"), 1 // 0))(rows, batch_id)
        assert flights.decided() == 1
        each(rows, batch_id)
        with pytest.raises(ConfigError, match="batch 1 has its version already: one transaction per batch"):
            each(rows, batch_id)
        assert flights.decided() == flights.version() == 2
        return None

    flights.in_batch(check)
    with flights.gate() as gate:
        assert gate.tables() == ["aircraft"]
    assert (ended[1].batch_id, ended[1].base_version) == (1, 1)


def test_an_added_column_is_accepted_and_older_values_have_none_t45(stream):
    flights = stream("k string, n int, m int")
    rows = [{"k": "a", "n": 1, "m": 2}]

    def each(txn, batch):
        txn.upsert("t", batch.drop("m") if txn.batch_id == 0 else batch, key="k")

    flights.commit(flights.sink().each(each), rows, [{"k": "b", "n": 3, "m": 4}])
    assert flights.rows("t") == {"a": {"n": 1, "m": None}, "b": {"n": 3, "m": 4}}
    assert flights.rows("t", 1) == {"a": {"n": 1}}


def test_an_error_in_the_body_ends_the_query_as_it_is_and_decides_nothing_i5(stream):
    flights = stream(SCHEMA)
    flights.add([ROW])

    def each(txn, rows):
        txn.upsert("aircraft", rows, key="tailnum")
        message = "the user's own"
        raise KeyError(message)

    ran = flights.run(flights.sink().each(each))
    assert isinstance(ran.error, KeyError)
    assert "KeyError" in str(ran.exception)
    assert "the user's own" in str(ran.exception)
    assert flights.decided() == 0


@pytest.mark.parametrize(
    "options,pattern",
    [
        ({"key_groups": 0}, "key_groups is 0; it must be a whole number"),
        ({"key_groups": 32_769}, "it must be 1 to 32768"),
        ({"key_groups": True}, "key_groups is True"),
        ({"parallelism": 0}, "parallelism is 0"),
        ({"keep_versions": 0}, "keep_versions is 0; it must be a whole number, 1 or more"),
        ({"small_batch_rows": -1}, "small_batch_rows"),
        ({"wait_replicas": 1.5}, "wait_replicas"),
        ({"frame_bytes": 1.5}, "frame_bytes"),
        ({"value_bytes_max": "1"}, "value_bytes_max"),
        ({"apply_deadline_s": 0}, "apply_deadline_s is 0; it must be a number of seconds above 0"),
        ({"alarm_s": float("nan")}, "alarm_s is nan"),
        ({"paralelism": 2}, "unknown option paralelism; the options are.*; did you mean 'parallelism'"),
        ({"namespace": "a b"}, "namespace name 'a b' is not allowed"),
        ({"namespace": "x" * 65}, "is not allowed"),
        ({"table": "t"}, "table and key go together"),
        ({"key": "k"}, "table and key go together"),
        ({"table": "t/", "key": "k"}, "table name 't/'"),
        ({"order_by": "n"}, "belong to the one-table form"),
        ({"table": "_t", "key": "k"}, "table _t: names that start with an underscore are reserved"),
        ({"table": "t", "key": []}, r"table t: key=\[\] must name one or more different columns"),
        ({"table": "t", "key": 5}, "table t: key=5 must be"),
        ({"table": "t", "key": "k", "order_by": 5}, "table t: order_by=5 must be"),
        ({"wal": "ftp://host/wal"}, "known are .*file:///path"),
        ({"wal": "relative/wal"}, "is not a URL of a log"),
        ({"wal": None}, "the log's URL is NoneType; it must be text"),
        ({"store": "ftp://host/store"}, "unknown scheme; known are"),
        ({"store": "/data/store"}, "unknown scheme; .*a folder is sqlite:// and its absolute path"),
        ({"store": {"copy": "sqlite:///x"}}, "store is dict; it must be a URL, or a list of"),
        ({"store": None}, "store is NoneType; it must be a URL, or a list of"),
        ({"store": "sqlite://relative"}, "write sqlite:///absolute/path"),
        ({"wal_options": {"speed": 1}}, "unknown option speed"),
        ({"store_options": {"speed": 1}}, "unknown option speed"),
    ],
)
def test_options_out_of_range_are_refused_before_anything_is_made(tmp_path, options, pattern):
    given = {
        "namespace": "n",
        "wal": f"file://{tmp_path}/wal",
        "store": f"sqlite://{tmp_path}/store",
        **options,
    }
    with pytest.raises(ConfigError, match=pattern):
        VersionedSink(**given)
    assert list(tmp_path.iterdir()) == []


def test_a_pickled_sink_is_its_arguments_and_shows_no_password_t48(tmp_path):
    sink = VersionedSink(namespace="n", wal=f"file://{tmp_path}/wal", store=f"sqlite://{tmp_path}/store")
    copy = pickle.loads(pickle.dumps(sink))
    assert copy is not sink
    assert repr(copy) == repr(sink)
    settings = sink._writing.settings
    hidden = type(settings.endpoints)("n", "kafka://me:secret@host", "redis://:secret@host:6379/0")
    sink._writing.settings = settings._replace(endpoints=hidden)
    assert "secret" not in repr(sink)
    with pytest.raises(ConfigError) as caught:
        VersionedSink(namespace="n", wal="kafka://me:secret@host", store="redis://:secret@host")
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_sink_outside_of_foreach_batch_is_refused(spark, tmp_path):
    where = {"namespace": "n", "wal": f"file://{tmp_path}/wal", "store": f"sqlite://{tmp_path}/store"}
    sink = VersionedSink(**where, table="t", key="id")
    with pytest.raises(ConfigError, match=r"no streaming query runs in this thread.*foreachBatch"):
        sink(spark.range(1), 0)
    bare = VersionedSink(**where)
    with pytest.raises(ConfigError, match="this sink has no table"):
        bare(spark.range(1), 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", [pytest.param("wal", marks=pytest.mark.only_log("file")), "store"])
def test_a_folder_that_cannot_be_made_is_refused_and_named(stream, part):
    """Root may write anywhere, so a file stands where the folder should."""
    flights = stream("k string")
    flights.add([{"k": "a"}])
    (flights.folder / part).write_text("not a folder")
    ran = flights.run(flights.sink(table="t", key="k"))
    with pytest.raises((ConfigError, WalUnavailableError, StoreUnavailableError), match=f"stream/{part}/.*"):
        raise ran.error
    assert (flights.folder / part).read_text() == "not a folder"
    if part == "wal":
        assert not (flights.folder / "store").exists()
    else:
        assert flights.decided() == 0
