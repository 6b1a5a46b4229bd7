"""All kinds of state in one version over unusual rows and rescales, beside a fold in Python (I1, I2)."""

from __future__ import annotations

import random
import sys
from collections import Counter

import pytest
from pyspark import cloudpickle

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import the tests

SCHEMA = "k binary, u string, o bigint, n bigint, s string, l array<int>, st struct<a: int, b: string>"
KEYS = [b"", b"\x00", b"\xff\xfe", "ключ".encode(), b"k" * 300, b":,", b"7"]
NAMES = ["", "ß", "😀", "a\u0000b", "nul\\", '"', "x" * 500]
STEPS = [1, 3, 1, 3, 1]
KEY_GROUPS = 3


def random_batch(chance, size, start):
    def maybe(value):
        return None if chance.random() < 0.4 else value

    return [
        {
            "k": chance.choice(KEYS),
            "u": chance.choice(NAMES),
            "o": start + at,
            "n": maybe(chance.randrange(-5, 5)),
            "s": maybe(chance.choice(NAMES)),
            "l": maybe([maybe(1), 2][: chance.randrange(3)]),
            "st": maybe({"a": maybe(1), "b": maybe("ü")}),
        }
        for at in range(size)
    ]


def last_two(key, rows, state, emit):
    """The last two rows' texts; none when the last is null, which tells another table."""
    texts = [*(state["texts"] if state else []), *(row["s"] for row in rows)]
    if texts[-1] is None:
        emit("ended", (key, len(texts)), {"before": texts[-2] if len(texts) > 1 else None})
        return None
    return {"texts": texts[-2:]}


def numbers(instance, rows, state, emit):
    return [*state, *({"o": row["o"], "l": row["l"], "st": row["st"]} for row in rows)]


def write(txn, rows):
    txn.update(
        "last", rows, "k", last_two, schema="texts array<string>", order_by="o",
        outputs={"ended": ("k binary, n int", "before string")},
    )  # fmt: skip
    txn.reduce("sums", rows, ["k", "u"], {"n": "sum", "s": "last", "l": "count"}, order_by="o")
    txn.patch("patched", rows.select("u", "o", "s"), "u", order_by="o")
    txn.local_state("all", rows, numbers, schema="o bigint, l array<int>, st struct<a: int, b: string>")


class Fold:
    """The same, row by row."""

    def __init__(self):
        self.last, self.ended, self.sums, self.patched, self.all = {}, {}, {}, {}, []

    def add(self, batch):
        for key in {row["k"] for row in batch}:
            mine = [row for row in batch if row["k"] == key]
            new = last_two(
                key, mine, self.last.pop(key, None), lambda _, at, value: self.ended.update({at: value})
            )
            self.last |= {} if new is None else {key: new}
        for row in batch:
            state = self.sums.setdefault((row["k"], row["u"]), {"n": None, "s": None, "l": 0})
            if row["n"] is not None:
                state["n"] = (state["n"] or 0) + row["n"]
            state["s"] = state["s"] if row["s"] is None else row["s"]
            state["l"] += row["l"] is not None
            self.patched[row["u"]] = {"o": row["o"], "s": row["s"]}
            self.all.append({name: row[name] for name in ("o", "l", "st")})


def plain(items):
    return Counter(map(repr, items))


@pytest.mark.parametrize("seed", [1, 2])
def test_unusual_rows_over_rescales_are_folded_as_python_would_i1_i2(stream, seed):
    chance, fold = random.Random(seed), Fold()
    flights = stream(SCHEMA)
    for version, parallelism in enumerate(STEPS, 1):
        batch = random_batch(chance, 0 if version == 3 else chance.choice([1, 40]), 100 * version)
        sink = flights.sink(parallelism=parallelism, key_groups=KEY_GROUPS, ttl={"sums": "1 day"})
        flights.commit(sink.each(write), batch)
        sink.close()
        fold.add(batch)
        for table in ("last", "ended", "sums", "patched"):
            assert flights.rows(table) == getattr(fold, table), (seed, version, table)
        assert plain(flights.rows("_local.all").values()) == plain(fold.all), (seed, version)
