"""The JVM's key bytes, key groups and tasks are the same as Python's (readers compute them alone)."""

from __future__ import annotations

import datetime
import decimal
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions, types

from tidegate.keys import groups as key_groups
from tidegate.spark.calls.columns import column, key_bytes, key_group, task_of

pytestmark = pytest.mark.spark

ROWS = 1_500
GROUPS = (1, 2, 7, 100, 128, 1_000, 32_768)


def text(chance):
    alphabet = ["a", "Z", "0", "ä", "ß", "😀", "\u0000", "\n", '"', ",", ":", "", "\u2028", "\uff46"]
    return "".join(chance.choice(alphabet) for _ in range(chance.randrange(12)))


def digits(chance, precision, scale):
    whole = chance.choice([0, 1, chance.randrange(10**precision), 10**precision - 1, 10 ** (precision // 2)])
    return decimal.Decimal(chance.choice([whole, -whole])).scaleb(-scale, decimal.Context(prec=precision))


def moment(chance, zone=None):
    """A time at either end of Python's years, or within an hour that a time zone has twice or never."""
    micros = chance.randrange(1_000_000)
    return chance.choice(
        [
            datetime.datetime(1, 1, 1, tzinfo=zone),
            datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, zone),
            datetime.datetime(1969, 12, 31, 23, 59, 59, micros, zone),
            datetime.datetime(1582, 10, 15, 1, 2, 3, micros, zone),
            datetime.datetime(2026, 3, 29, 2, 30, 0, micros, zone),
            datetime.datetime(2026, 10, 25, chance.randrange(4), 30, 0, micros, zone),
        ]
    )


def integer(chance, bits):
    limit = 2 ** (bits - 1)
    return chance.choice([0, -1, limit - 1, -limit, chance.randrange(-limit, limit)])


MAKERS = {
    "string": (pa.string(), text),
    "binary": (pa.binary(), lambda chance: chance.randbytes(chance.choice([0, 1, 7, 33]))),
    "tinyint": (pa.int8(), lambda chance: integer(chance, 8)),
    "smallint": (pa.int16(), lambda chance: integer(chance, 16)),
    "int": (pa.int32(), lambda chance: integer(chance, 32)),
    "bigint": (pa.int64(), lambda chance: integer(chance, 64)),
    "boolean": (pa.bool_(), lambda chance: chance.random() < 0.5),
    "date": (
        pa.date32(),
        lambda chance: datetime.date.fromordinal(chance.choice([1, 366, 719_163, 3_652_059])),
    ),
    "timestamp": (pa.timestamp("us", "UTC"), lambda chance: moment(chance, datetime.timezone.utc)),
    "timestamp_ntz": (pa.timestamp("us"), moment),
    "decimal(10,2)": (pa.decimal128(10, 2), lambda chance: digits(chance, 10, 2)),
    "decimal(38,18)": (pa.decimal128(38, 18), lambda chance: digits(chance, 38, 18)),
    "decimal(5,0)": (pa.decimal128(5, 0), lambda chance: digits(chance, 5, 0)),
    "decimal(38,38)": (pa.decimal128(38, 38), lambda chance: digits(chance, 38, 38)),
}


def as_arrow(rows):
    """The rows as a table, also of Spark 3.5."""
    return pa.Table.from_batches(rows._collect_as_arrow())


@pytest.mark.parametrize("ansi,zone", [("true", "Asia/Kathmandu"), ("false", "Europe/Berlin")])
def test_keys_and_key_groups_are_the_same_in_the_jvm_and_in_python_t43(spark, conf, tmp_path, ansi, zone):
    """Every key type with extreme and random values, alone and all together; not only powers of two."""
    conf("spark.sql.ansi.enabled", ansi)
    conf("spark.sql.session.timeZone", zone)
    conf("spark.sql.parquet.datetimeRebaseModeInRead", "CORRECTED")
    chance = random.Random(5)
    arrays = {
        kind: pa.array([make(chance) for _ in range(ROWS)], arrow) for kind, (arrow, make) in MAKERS.items()
    }
    schema = ", ".join(f"`{kind}` {kind if kind != 'timestamp' else 'timestamp_ltz'}" for kind in MAKERS)
    pq.write_table(pa.table(arrays), tmp_path / "rows.parquet")
    rows = spark.read.schema(schema).parquet(str(tmp_path / "rows.parquet"))
    fields = rows.schema.fields
    assert [f.dataType.simpleString() for f in fields] == list(MAKERS)
    keys = {f.name: key_bytes([f]) for f in fields} | {"all": key_bytes(fields), "two": key_bytes(fields[:2])}
    found = rows.select(
        *(column(kind).alias(f"in_{kind}") for kind in MAKERS), *(k.alias(n) for n, k in keys.items())
    ).select(
        "*",
        *(key_group(column(n), g).alias(f"{n} mod {g}") for n in ("string", "binary", "all") for g in GROUPS),
    )
    found = as_arrow(found)
    kinds = list(MAKERS)
    place = kinds.index("timestamp")  # in the session's zone some are not of Python's years
    found = found.set_column(place, "in_timestamp", found["in_timestamp"].cast(MAKERS["timestamp"][0]))
    found = found.to_pydict()
    for row in range(ROWS):
        values = [found[f"in_{kind}"][row] for kind in kinds]
        expected = {
            kind: key_groups.encode_key([value], [kind]) for kind, value in zip(kinds, values, strict=True)
        }
        expected["all"] = key_groups.encode_key(values, kinds)
        expected["two"] = key_groups.encode_key(values[:2], kinds[:2])
        assert {name: found[name][row] for name in expected} == expected
        for name in ("string", "binary", "all"):
            groups = [found[f"{name} mod {g}"][row] for g in GROUPS]
            assert groups == [key_groups.key_group(expected[name], g) for g in GROUPS], expected[name]
        decoded = key_groups.decode_key(expected["all"], kinds)
        assert decoded == tuple(values)


def test_a_null_in_any_key_column_makes_the_key_null(spark):
    rows = spark.createDataFrame([("a", 1), (None, 1), ("a", None)], "s string, n int")
    fields = rows.schema.fields
    found = as_arrow(
        rows.select(key_bytes(fields).alias("two"), key_bytes(fields[:1]).alias("one"))
    ).to_pydict()
    assert found == {"two": [b"1:a,1:1,", None, None], "one": [b"a", None, b"a"]}


def test_the_jvm_and_python_give_a_key_group_to_the_same_task(spark):
    pairs = [(p, g) for g in GROUPS for p in (1, 2, 3, 5, 7, 64, 100, g - 1, g) if 1 <= p <= g]
    groups = spark.range(max(GROUPS)).withColumn("id", functions.col("id").cast(types.IntegerType()))
    owners = [task_of(functions.col("id"), p, g).alias(f"{p}/{g}") for p, g in dict.fromkeys(pairs)]
    found = as_arrow(groups.select(*owners))
    for p, g in pairs:
        in_jvm = found[f"{p}/{g}"].to_pylist()[:g]
        assert in_jvm == [key_groups.task_of(group, p, g) for group in range(g)], (p, g)
        assert all(group in key_groups.groups_of(task, p, g) for group, task in enumerate(in_jvm))
