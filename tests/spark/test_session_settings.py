"""Settings of the session that change what Spark's functions return change nothing that is stored or read."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import sys

import pytest
from differential.frames import frames_of
from pyspark import cloudpickle

from tidegate.spark import register

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests

pytestmark = pytest.mark.spark

LONG = "é" * 20_000
"""Longer than what the driver takes of a cell."""
ROWS = [
    {"k": "a", "b": b"\xff\x00", "d": 0.5, "x": "short"},
    {"k": "", "b": b"", "d": None, "x": None},
    {"k": "é,", "b": b"1:", "d": float("nan"), "x": LONG},
]
SETTINGS = {
    "spark.sql.function.concatBinaryAsString": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.session.timeZone": "Asia/Kolkata",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
}


def write(txn, rows):
    txn.upsert("one", rows, "k", order_by="d")
    txn.upsert("two", rows, ["k", "b"])
    txn.upsert("bytes", rows, "b", value="b")
    txn.reduce("sums", rows, ["k", "b"], {"d": "max", "x": "last"})
    changes = rows.selectExpr("*", "IF(d IS NULL, 'd', 'u') AS op")
    txn.apply_changes("changes", changes, "b", sequence_by="k", op_column="op")


@pytest.mark.one_in(12)
@pytest.mark.both_ways
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_of_the_session_changes_nothing_that_is_stored(stream, conf, setting):
    conf(setting, SETTINGS[setting])
    flights = stream("k string, b binary, d double, x string")
    flights.commit(flights.sink(parallelism=2).each(write), ROWS[:2], ROWS)
    found = flights.rows("one").items()
    assert {k: (row["b"], repr(row["d"]), row["x"]) for k, row in found} == {
        row["k"]: (row["b"], repr(row["d"]), row["x"]) for row in ROWS
    }
    texts = {(row["k"], row["b"]): row["x"] for row in ROWS}
    for table in ("two", "sums"):
        assert {key: row["x"] for key, row in flights.rows(table).items()} == texts
    assert flights.rows("bytes") == {row["b"]: row["b"] for row in ROWS}
    kept = {key: row["x"] for key, row in flights.rows("changes").items()}
    assert kept == {b"\xff\x00": "short", b"1:": LONG}


@pytest.mark.one_in(4)
@pytest.mark.both_ways
@pytest.mark.parametrize("value", [None, "x"])
def test_a_long_value_is_whole_where_bytes_are_joined_to_text(stream, conf, value):
    """The driver cut it off behind 16,385 characters, without a word."""
    conf("spark.sql.function.concatBinaryAsString", "true")
    flights = stream("k string, x string")
    sink = flights.sink(table="t", key="k", value=value)
    flights.commit(sink, [{"k": "a", "x": "short"}], [{"k": "b", "x": LONG}])
    found = flights.rows("t")["b"]
    assert found == (LONG.encode() if value else {"x": LONG})


# -- every byte that is stored, and every column that is read, under each setting ---------------------

UTC = datetime.timezone.utc
NOON = datetime.datetime(2024, 1, 1, 12, 0, 0, 1, UTC)
TYPED = (
    "k string, b binary, q boolean, i int, d double, f float, p decimal(20,9), day date, at timestamp_ltz,"
    " n timestamp_ntz, l array<struct<t: timestamp_ltz, x: double>>, m map<timestamp_ltz, decimal(5,2)>,"
    " mn map<timestamp_ntz, int>"
)
FIRST = {
    "k": "a", "b": b"\x00\xff", "q": True, "i": 1, "d": -0.0, "f": 0.1, "p": decimal.Decimal("0.000000100"),
    "day": datetime.date(2024, 1, 1), "at": NOON, "n": NOON.replace(tzinfo=None),
    "l": [{"t": NOON, "x": -0.0}], "m": [(NOON, decimal.Decimal("1.50"))],
    "mn": [(NOON.replace(tzinfo=None), 1)],
}  # fmt: skip
SECOND = {
    **FIRST, "k": "b", "b": None, "q": False, "i": None, "d": float("nan"), "f": float("-inf"), "p": None,
    "day": datetime.date(1, 1, 1), "at": NOON.replace(year=1), "n": None, "l": None,
}  # fmt: skip
ONE_BY_ONE = {
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.function.concatBinaryAsString": "true",
    "spark.sql.jsonGenerator.ignoreNullFields": "false",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.legacy.castComplexTypesToString.enabled": "true",
    "spark.sql.legacy.interval.enabled": "true",
    "spark.sql.retainGroupColumns": "false",
}
OTHERS = {
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.legacy.allowNegativeScaleOfDecimal": "true",
    "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": "true",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "true",
    "spark.sql.legacy.literal.pickMinimumPrecision": "false",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.legacy.disableMapKeyNormalization": "true",
    "spark.sql.legacy.followThreeValuedLogicInArrayExists": "false",
    "spark.sql.legacy.sizeOfNull": "true",
    "spark.sql.legacy.typeCoercion.datetimeToString.enabled": "true",
    "spark.sql.legacy.javaCharsets": "true",
    "spark.sql.legacy.codingErrorAction": "true",
    "spark.sql.legacy.charVarcharAsString": "true",
    "spark.sql.preserveCharVarcharTypeInfo": "true",
    "spark.sql.jsonGenerator.writeNullIfWithDefaultValue": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.ansi.enforceReservedKeywords": "true",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.sql.execution.arrow.maxBytesPerBatch": "64b",
    "spark.sql.execution.arrow.compression.codec": "zstd",
    "spark.sql.execution.arrow.pyspark.enabled": "false",
    "spark.sql.execution.arrow.pyspark.selfDestruct.enabled": "true",
    "spark.sql.execution.pyspark.binaryAsBytes": "false",
    "spark.sql.datetime.java8API.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
MEANINGS = {name: {name: value} for name, value in ONE_BY_ONE.items()} | {"all others": OTHERS}
"""Settings by the name of a batch; an older release ignores those that it does not know."""
ALL = {**ONE_BY_ONE, **OTHERS}


def write_typed(txn, rows, suffix):
    """Calls of all kinds that need no Python function, into tables with this suffix."""
    times = {"at": "max", "day": "min", "d": "min", "f": "max", "i": "sum"}
    txn.upsert(f"rows{suffix}", rows, ["k", "day"], order_by=["at", "d"], delete_when="i IS NULL AND d < 0")
    txn.upsert(f"few{suffix}", rows.where("p IS NOT NULL").select("p", "at"), "p", order_by="at")
    txn.delete(f"few{suffix}", rows.where("p < 0").select("p"), "p")
    txn.reduce(f"firsts{suffix}", rows, "k", dict.fromkeys(times, "first"), order_by="n")
    txn.reduce(f"most{suffix}", rows, "q", {**times, "k": "last"}, order_by="at")
    txn.replace(f"exact{suffix}", rows, "k", order_by="at")
    txn.apply_changes(f"changes{suffix}", rows, "k", sequence_by=["at", "day"])
    txn.upsert(f"naive{suffix}", rows.where("n IS NOT NULL"), "n")
    txn.apply_changes(f"kept{suffix}", rows, "k", sequence_by="at", keep_when={"i": 7}, ignore_nulls=["p"])


FRAMES = {}
"""The frames of one batch per setting, the first with Spark's own settings; by who staged the batches."""


@contextlib.contextmanager
def settings_of(session, settings):
    """Change these options of a session; it need not know them."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.unset(name) if value is None else session.conf.set(name, value)


def frames_by_setting(stream):
    """Run one query whose batches differ in the settings of the batch's session alone."""
    flights = stream(TYPED)
    sink, settings = flights.sink(parallelism=2, key_groups=8), [None, *MEANINGS]

    def write(rows, batch_id):
        with settings_of(rows.sparkSession, MEANINGS.get(settings[batch_id], {})):
            sink.each(lambda txn, rows: write_typed(txn, rows, batch_id))(rows, batch_id)

    flights.commit(write, *[[FIRST, SECOND]] * len(settings))
    with flights.log.opened("flights") as log:
        frames = [frames_of(log, version)[1] for version in flights.view().state.recent]
    return {
        name: {table.rstrip("0123456789"): rows for table, rows in of.items()}
        for name, of in zip(settings, frames, strict=True)
    }


@pytest.mark.slow
@pytest.mark.timeout(1200)  # its query is run by the first one
@pytest.mark.both_ways
@pytest.mark.parametrize("setting", MEANINGS)
def test_a_setting_changes_no_stored_byte(stream, setting, request):
    way = request.node.callspec.params["stream"]
    if way not in FRAMES:
        FRAMES[way] = {}  # a failure is not repeated for each setting
        FRAMES[way] = frames_by_setting(stream)
    assert FRAMES[way][setting] == FRAMES[way][None]
    assert len(FRAMES[way][None]) == 8
    for frames in FRAMES.values():
        assert frames[setting] == FRAMES[way][None], "the job and the driver store the same bytes"


def last_row(key, rows, state, emit):
    *_, row = rows
    return {name: cell for name, cell in row.items() if name != "k"} | {"text": repr(row)}


def texts_of_rows(instance, rows, state, emit):
    return [*state, *(repr(row).encode() for row in rows)]


def write_by_functions(txn, rows):
    schema = f"{TYPED.partition(',')[2]}, text string"
    txn.update("updated", rows, "k", last_row, schema=schema, order_by="at")
    txn.local_state("seen", rows, texts_of_rows, by="k", order_by="at")


@pytest.mark.only_log("file")
def test_no_setting_changes_a_byte_that_a_function_is_given_or_returns(stream):
    frames = []
    for name, settings in {"plain": {}, "changed": ALL}.items():
        flights = stream(TYPED, name)
        sink = flights.sink(parallelism=2, key_groups=8)

        def write(rows, batch_id, sink=sink, settings=settings):
            with settings_of(rows.sparkSession, settings):
                sink.each(write_by_functions)(rows, batch_id)

        flights.commit(write, [FIRST, SECOND])
        with flights.log.opened("flights") as log:
            (version,) = flights.view().state.recent
            frames.append(frames_of(log, version)[1])
    assert frames[0] == frames[1]
    assert {"updated", "_local", "_local.seen"} <= frames[0].keys()


ALONE = ("spark.sql.timestampType", "spark.sql.session.timeZone", "spark.sql.legacy.timeParserPolicy")
READ_UNDER = [
    *({name: ONE_BY_ONE[name]} for name in ALONE),
    {name: value for name, value in ALL.items() if name not in ALONE},
]
MICROSECONDS = ("unix_micros(at)", "unix_micros(l[0].t)", "unix_micros(map_keys(m)[0])")


@pytest.mark.slow
@pytest.mark.only_log("file")
def test_a_setting_changes_nothing_that_is_read(stream, spark):
    flights = stream(TYPED)
    flights.commit(flights.sink(table="t", key="k"), [FIRST, SECOND])
    register(spark)
    options = {"namespace": "flights", "store": flights.store, "table": "t", "parallelism": "1"}

    def read():
        rows = spark.read.format("tidegate").options(**options).load()
        feed = spark.readStream.format("tidegate").options(wal=flights.log.keywords["wal"], **options).load()
        equal = "at = TIMESTAMP_LTZ'2024-01-01T12:00:00.000001Z' AS equal"
        numbers = rows.selectExpr("k", equal, *MICROSECONDS)
        cells = rows.select("k", "b", "q", "i", "d", "f", "p", "day", "n").collect()
        cells = [[bytes(cell) if isinstance(cell, bytearray) else cell for cell in row] for row in cells]
        return [*map(str, (rows.dtypes, feed.dtypes, sorted(numbers.collect()), sorted(cells, key=str)))]

    expected = read()
    assert "Row(k='a'" in expected[2]
    assert "equal=True" in expected[2]
    for settings in READ_UNDER:
        with settings_of(spark, settings):
            assert read() == expected, settings
