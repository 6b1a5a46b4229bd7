"""txn.patch: some columns are set, the others keep what they hold at the base version."""

from __future__ import annotations

import datetime

import pytest

from tidegate.errors import BadRecordError, ConfigError

pytestmark = pytest.mark.spark

UTC = datetime.timezone.utc
SCHEMA = "k string, o int, n int, s string, d decimal(10,3), l array<struct<t:timestamp>>"


def row(k, **columns):
    return {"o": 0, "n": None, "s": None, "d": None, "l": None, "k": k, **columns}


def test_patches_that_cannot_be(stream):
    flights = stream(SCHEMA)
    flights.add([row("a", n=1, s="x")], [row("a", s="y" * 60)])
    sink = flights.sink(value_bytes_max=50)

    def check(rows, batch_id):
        if batch_id == 0:
            sink.each(
                lambda t, r: (t.upsert("t", r.select("k", "n", "s"), "k"), t.upsert("b", r, "k", value="s"))
            )(rows, 0)
            return
        for patch, error, message in (
            (
                lambda t, r: t.patch("t", r.selectExpr("k", "s AS n"), "k"),
                ConfigError,
                r"column n: int here, this call writes string",
            ),
            (lambda t, r: t.patch("b", r.select("k", "s"), "k"), ConfigError, "bytes values of"),
            (
                lambda t, r: t.patch("t", r.select("k", "s"), "k"),
                BadRecordError,
                r"table t, key 'a': its value takes",
            ),
        ):
            with pytest.raises(error, match=message):
                sink.each(patch)(rows, batch_id)
            assert flights.decided() == 1
        sink.each(lambda t, r: t.patch("t", r.select("k"), "k"))(rows, batch_id)

    flights.in_batch(check)
    assert flights.rows("t") == {"a": {"n": 1, "s": "x"}}
