"""One task of ``migrate_state``: rows in their new form, with the flags and the expiry that they had."""

import contextlib

import msgspec
import pyarrow as pa
import pytest

from tidegate.sinks.records import ReadAt
from tidegate.spark.calls.migrate_state import MigrationWork, migrate_groups
from tidegate.values.state_versions import next_state, plain
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging.spec import StageSpec
from tidegate.wal.value_flags import REFUSED

KEY = (Column("k", "string"),)
FIRST = TableSchema(KEY, (Column("n", "int"),))
SECOND = next_state("t", FIRST, TableSchema(KEY, (Column("n", "string"),), state_version=2))
NOW = 1_000
EARLY, LATE = ((NOW + more).to_bytes(8, "big") for more in (0, 1))
ROWS = {
    b"a": b'+{"n":1}',
    b"b": b"e" + LATE + b'{"n":2}',
    b"c": b"e" + EARLY + b'{"n":3}',
    b"d": b"-",
    b"e": b'+{"n@2":"five"}',
    b"f": b"x" + LATE + b'\x01z{"n":6}',
}


class Scanned:
    """A store with the rows, all in its key group 1."""

    def scan_groups_stored(self, at, groups):
        assert at == ReadAt("t", 7, 3)
        for group in groups:
            if group == 1:
                columns = pa.array([*ROWS], pa.binary()), pa.array([*ROWS.values()], pa.binary())
                yield group, pa.record_batch(dict(zip(("key", "value"), columns, strict=True)))


def migrated(migrate, value_bytes_max=100):
    spec = StageSpec("uuid", "", ("t",), (("string",),), 1000, 40, value_bytes_max, 8)
    where = contextlib.nullcontext()  # tasks alone open the store
    work = MigrationWork(where, spec, "t", 3, 7, NOW, SECOND, plain(SECOND, 2), 60.0, 2)
    batches = migrate_groups(work, migrate, Scanned(), range(4))
    return {row["key"]: row["value"] for batch in batches for row in batch.to_pylist()}


def spelled(state, version):
    assert version == 1
    return None if state["n"] == 6 else {"n": str(state["n"])}


def test_live_rows_are_in_their_new_form_with_their_expiry():
    assert migrated(spelled) == {
        b"a": b'+{"n":"1"}',
        b"b": b"e" + LATE + b'{"n":"2"}',
        b"e": b'+{"n":"five"}',
    }
    assert migrated(lambda *_: {"n": "x"})[b"f"] == b"x" + LATE + b'\x01z{"n":"x"}'


@pytest.mark.parametrize(
    "migrate, message",
    [
        (
            lambda *_: 1 / 0,
            "table t, key 'a', migrate_state, state of version 1: <lambda> raised",
        ),
        (lambda *_: {"n": 5}, "returned a state that is none of version 2"),
        (lambda *_: {"n": "x" * 100}, "the state takes 108 bytes, 100 are allowed"),
    ],
)
def test_a_refusal_is_the_only_row(migrate, message):
    (value,) = migrated(migrate).values()
    assert message in msgspec.json.decode(value.removeprefix(REFUSED))[1]
