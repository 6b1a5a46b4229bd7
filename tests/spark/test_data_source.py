"""spark.read.format("tidegate"): one table at one version as a DataFrame."""

from __future__ import annotations

import contextlib
import datetime
import decimal

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import StructType

import tidegate
from tidegate.committers.operations.alias import checked_target, set_alias
from tidegate.errors import ConfigError
from tidegate.options.endpoints import parse_store
from tidegate.sinks.open_store import open_store
from tidegate.spark import register
from tidegate.spark.source.data_source import TidegateSource
from tidegate.testing.example import Example, write_flights

pytestmark = pytest.mark.spark

UTC = datetime.timezone.utc
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
NAIVE = datetime.datetime(1969, 1, 2, 3, 0, 0, 5)  # noqa: DTZ001 - timestamp_ntz
SCHEMA = """k string, n int, big bigint, f float, d double, dec decimal(12,3), b boolean, day date,
    at timestamp, naive timestamp_ntz, raw binary, l array<struct<t:timestamp,x:double>>, m map<string,int>"""
ROWS = [
    {
        "k": "a", "n": 1, "big": 2**60, "f": 0.1, "d": float("inf"), "dec": decimal.Decimal("-1.250"),
        "b": True, "day": datetime.date(2023, 1, 2), "at": datetime.datetime(2023, 1, 2, 3, tzinfo=UTC),
        "naive": NAIVE, "raw": b"\x00\xff", "m": {"x": 1},
        "l": [{"t": datetime.datetime(2023, 1, 2, tzinfo=UTC), "x": 0.5}, None],
    },
    {"k": 'ü"\\\n', "n": None},
]  # fmt: skip


@pytest.fixture(scope="module")
def flights(spark, tmp_path_factory):
    """Three versions of typed tables, written without Spark."""
    folder = tmp_path_factory.mktemp("flights")
    store = f"sqlite://{folder}/store"
    write_flights(wal=f"file://{folder}/wal", store=store)
    register(spark)
    return store


def read(spark, store, table, schema=None, **options):
    reader = spark.read.format("tidegate").options(namespace="flights", store=store, table=table)
    return (reader.schema(schema) if schema else reader).options(**options).load()


def test_a_table_is_read_at_its_newest_version_with_its_own_schema(spark, flights):
    aircraft = read(spark, flights, "aircraft")
    assert aircraft.schema.simpleString() == "struct<tailnum:string,carrier:string,flights:int>"
    with tidegate.connect(flights, "flights") as gate, gate.snapshot() as snap:
        wanted = {(key, *value.values()) for key, value in snap.table("aircraft").scan()}
        legs = {(*key, *value.values()) for key, value in snap.table("legs").scan()}
    assert {tuple(row) for row in aircraft.collect()} == wanted
    assert {tuple(row) for row in read(spark, flights, "legs").collect()} == legs


def test_every_type_comes_back_as_it_was_written(spark, stream):
    """Flat types by Arrow's parser, the others by the decoder: both ways beside each other."""
    flat = "k", "n", "big", "f", "d", "b", "day", "at"

    def each(txn, rows):
        txn.upsert("all", rows, "k")
        txn.upsert("flat", rows.select(*flat), "k")
        txn.upsert(
            "typed_key", rows.select("k", "raw", "day", "dec", "n").where("n > 0"), ["dec", "day", "k", "n"]
        )

    namespace = stream(SCHEMA)
    namespace.commit(namespace.sink().each(each), ROWS)
    register(spark)
    for table, names in (("all", spark.createDataFrame([], SCHEMA).columns), ("flat", flat)):
        rows = {row["k"]: row.asDict(recursive=True) for row in read(spark, namespace.store, table).collect()}
        own = read(spark, namespace.store, table).schema
        again = read(spark, namespace.store, table, schema=own).collect()
        assert {row["k"]: row.asDict(recursive=True) for row in again} == rows
        wanted = spark.read.parquet(str(namespace.input)).select(*names)
        assert rows == {row["k"]: row.asDict(recursive=True) for row in wanted.collect()}
    (one,) = read(spark, namespace.store, "typed_key").collect()
    assert (one.dec, one.day, one.k, one.n, one.raw) == (
        decimal.Decimal("-1.250"),
        datetime.date(2023, 1, 2),
        "a",
        1,
        b"\x00\xff",
    )


def test_an_older_version_by_number_and_by_time(spark, flights):
    with tidegate.connect(flights, "flights") as gate:
        second = gate.history()[1]
        with gate.snapshot(version=2) as snap:
            wanted = {(key, *value.values()) for key, value in snap.table("aircraft").scan()}
    for named in ({"versionAsOf": 2}, {"timestampAsOf": second.decided_at.isoformat()}):
        assert {tuple(row) for row in read(spark, flights, "aircraft", **named).collect()} == wanted


@pytest.fixture(params=["true", "false"])
def pushdown(spark, request):
    """Spark's filter push-down for Python data sources, which other sources of a session may need."""
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param == "true"
    spark.conf.unset(PUSHDOWN)


@pytest.mark.parametrize("adaptive", ["true", "false"])
@pytest.mark.usefixtures("pushdown")
def test_each_scan_of_a_dataframe_has_its_own_rows_whatever_another_scan_filters(spark, flights, adaptive):
    """Spark keeps one plan of the parts for all scans of a DataFrame, and takes the last one made."""
    legs = read(spark, flights, "legs", parallelism=3)
    every = {tuple(row) for row in read(spark, flights, "legs").collect()}
    first, second = (("EWR", 1545, "IAH"), ("LGA", 1714, "IAH"))
    assert {first, second} <= every

    def only(key, rows=legs):
        return rows.where(f"origin = '{key[0]}' AND flight = {key[1]}")

    def rows_of(frame):
        return sorted(map(tuple, frame.collect()))

    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        assert rows_of(only(first)) == [first]
        assert rows_of(legs) == sorted(every), "a scan after a filtered one"
        assert rows_of(only(second)) == [second], "another key after the first"
        assert rows_of(legs.union(only(first))) == sorted([*every, first])
        assert rows_of(only(first).union(legs)) == sorted([first, *every])
        assert rows_of(only(first).union(only(second))) == sorted([first, second]), "two keys in one plan"
        assert rows_of(legs.join(only(first), ["origin", "flight", "dest"])) == [first]
        assert rows_of(legs.subtract(only(first))) == sorted(every - {first})
        keys = ["origin", "flight"]
        assert rows_of(legs.join(only(second), keys, "left_anti")) == sorted(every - {second})
        legs.createOrReplaceTempView("legs")
        (counts,) = spark.sql(
            "SELECT (SELECT count(*) FROM legs), (SELECT count(*) FROM legs WHERE origin = 'EWR' AND flight"
            " = 1545), (SELECT count(*) FROM legs WHERE flight IN (1714) AND origin <=> 'LGA')"
        ).collect()
        assert tuple(counts) == (len(every), 1, 1)
        cached = only(first).cache()
        assert rows_of(cached) == [first]
        assert rows_of(legs) == sorted(every), "beside a cached one"
        cached.unpersist()
        planned = only(second)
        assert planned.rdd.getNumPartitions() == legs.rdd.getNumPartitions() == 3
        assert rows_of(only(first)) == [first]
        assert rows_of(planned) == [second], "planned before another one, and read after it"
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")


@pytest.mark.usefixtures("pushdown")
@pytest.mark.parametrize("schema", [None, "tailnum string, carrier string"])
def test_all_scans_of_a_dataframe_read_one_version(spark, tmp_path, schema):
    """Also with a schema of the caller's, with which Spark never asks for that of the source."""
    store = f"sqlite://{tmp_path}/store"
    with contextlib.closing(Example(f"file://{tmp_path}/wal", store)) as writer:
        writer.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
        reader = spark.read.format("tidegate").options(namespace="flights", store=store, table="aircraft")
        aircraft = (reader.schema(schema) if schema else reader).load()
        assert [row.carrier for row in aircraft.collect()] == ["UA"]
        writer.write({"aircraft": {"N1": {"carrier": "DL", "flights": 2}}})
        one = aircraft.where("tailnum = 'N1'")
        assert [row.carrier for row in one.collect()] == ["UA"]
        assert [row.carrier for row in aircraft.union(one).collect()] == ["UA", "UA"]
        newer = (reader.schema(schema) if schema else reader).load().where("tailnum = 'N1'")
        assert sorted(row.carrier for row in aircraft.union(newer).collect()) == ["DL", "UA"], "load() again"


def test_what_is_read_is_held_by_a_lease_until_it_runs_out(spark, flights):
    store = open_store(flights, "flights")
    try:
        before = {lease.lease_id for lease in store.leases()}
        old = read(spark, flights, "aircraft", versionAsOf=1, leaseSeconds=600)
        (mine,) = [lease for lease in store.leases() if lease.lease_id not in before]
        assert mine.version == 1
        assert mine.expires_in_s > 300
        assert store.announce(3) == 1, "the horizon does not pass the version that is read"
        count = old.count()
        assert {lease.lease_id for lease in store.leases()} - before == {mine.lease_id}, (
            "tasks give theirs back"
        )
        store.release(mine.lease_id)
        assert store.announce(3) > 1
    finally:
        store.close()
    assert count
    with pytest.raises(Exception, match=r"SnapshotExpiredError.*was retired|SnapshotExpiredError.*no lease"):
        old.where("carrier IS NOT NULL").collect()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"table": "aircrafts"}, "ConfigError: there is no table 'aircrafts'.*the tables there are"),
        ({"versionAsOf": "99"}, "ConfigError: version 99 .* is not visible yet"),
        ({"versionOf": "1"}, "ConfigError: .*no option 'versionof'.*did you mean 'versionAsOf'"),
        ({"startingVersion": "1"}, "ConfigError: the option startingVersion is for spark.readStream"),
        ({"schema": "carrier int"}, "ConfigError: .*'carrier' is string, and .schema.. names int: leave"),
        ({"schema": "flights date"}, "ConfigError: .*'flights' is int, and .schema.. names date"),
        ({"schema": "flights array<int>"}, "ConfigError: .*'flights' is int, and .schema.. names array<int>"),
        ({"schema": "flights interval day"}, "ConfigError: .*'flights' is int, and .schema.. names dur"),
        ({"schema": "nothing int"}, "ConfigError: .*no column 'nothing'; it has tailnum, carrier, flights"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_next_step(spark, flights, options, message):
    given = {"namespace": "flights", "store": flights, "table": "aircraft", **options}
    schema, reader = given.pop("schema", None), spark.read.format("tidegate").options(**given)
    with pytest.raises(PySparkException, match=f"(?is){message}"):
        (reader.schema(schema) if schema else reader).load().collect()


def test_a_stream_refuses_options_and_columns_that_are_not_its_own(spark, flights):
    given = {"namespace": "flights", "store": flights, "table": "aircraft", "wal": "file:///nowhere"}
    with pytest.raises(ConfigError, match=r"option versionAsOf is for spark\.read, which reads one"):
        TidegateSource({**given, "versionasof": "1"}).streamReader(StructType())
    with pytest.raises(ConfigError, match=r"'_version' is bigint, and \.schema\(\) names string"):
        TidegateSource(given).streamReader(StructType().add("_version", "string"))


def test_an_alias_is_followed_when_the_read_is_made_and_refused_for_a_stream(spark, flights, tmp_path):
    """What was planned stays in its namespace, whatever the alias names when the tasks run."""
    store = flights
    at, wal = parse_store(store), f"file://{tmp_path}/wal"
    set_alias(at, "live", checked_target(at, "live", "flights"))
    blue = read(spark, store, "aircraft", namespace="live")
    wanted = read(spark, store, "aircraft").count()
    green = Example(wal, store, "green")
    green.write({"aircraft": {"N1": {"carrier": "green", "flights": 1}}})
    green.close()
    set_alias(at, "live", checked_target(at, "live", "green"))
    assert [row.carrier for row in blue.collect()] == ["UA"] * wanted
    assert [row.carrier for row in read(spark, store, "aircraft", namespace="live").collect()] == ["green"]
    stream = spark.readStream.format("tidegate").options(
        namespace="live", store=store, table="aircraft", wal=wal
    )
    with pytest.raises(AnalysisException, match="'live' is an alias of namespace green"):
        stream.load()
