"""Answers are by the keys that were asked. Readers refuse two that a dict does not tell apart."""

import asyncio
import datetime
import decimal
from zoneinfo import ZoneInfo

import pytest

import tidegate
import tidegate.aio
from tidegate.errors import ConfigError
from tidegate.wal.record import Column, TableSchema

UTC, BERLIN = datetime.timezone.utc, ZoneInfo("Europe/Berlin")
EARLY = datetime.datetime(2025, 10, 26, 2, 15, tzinfo=BERLIN)
LATE = EARLY.replace(fold=1)
"""Two instants of the repeated hour."""
ROWS = {
    "hours": {EARLY.astimezone(UTC): {"n": 1}, LATE.astimezone(UTC): {"n": 2}},
    "zones": {("a", EARLY.astimezone(UTC)): {"n": 3}, ("a", LATE.astimezone(UTC)): {"n": 4}},
    "prices": {decimal.Decimal("1.00"): {"n": 5}, decimal.Decimal("0.00"): {"n": 6}},
    "flags": {True: {"n": 7}, False: {"n": 8}},
    "days": {EARLY.replace(tzinfo=None): {"n": 9}},
}
KEYS = {
    "hours": [Column("at", "timestamp")],
    "zones": [Column("name", "string"), Column("at", "timestamp")],
    "prices": [Column("price", "decimal(5,2)")],
    "flags": [Column("flag", "boolean")],
    "days": [Column("at", "timestamp_ntz")],
}


@pytest.fixture
def url(writer):
    writer.schemas |= {name: TableSchema(tuple(key), (Column("n", "int"),)) for name, key in KEYS.items()}
    writer.write(ROWS)
    return writer.driver.endpoints.store


def of_table(url, table, keys):
    with tidegate.connect(url, "flights") as gate:
        return gate.table(table).get_many(keys)


def of_snapshot(url, table, keys):
    with tidegate.connect(url, "flights") as gate, gate.snapshot() as snapshot:
        return snapshot.table(table).get_many(keys)


def of_tables(url, table, keys):
    with tidegate.connect(url, "flights") as gate:
        return gate.get_many({table: keys})[table]


def of_mirror(url, table, keys):
    with tidegate.connect(url, "flights") as gate, gate.mirror(table) as mirror:
        return mirror.table(table).get_many(keys)


def of_mirror_view(url, table, keys):
    with tidegate.connect(url, "flights") as gate, gate.mirror(table) as mirror:
        return mirror.view().table(table).get_many(keys)


def awaited(read):
    def run(url, table, keys):
        async def main():
            async with await tidegate.aio.connect(url, "flights") as gate:
                return await read(gate, table, keys)

        return asyncio.run(main())

    return run


async def of_aio_table(gate, table, keys):
    return await gate.table(table).get_many(keys)


async def of_aio_tables(gate, table, keys):
    return (await gate.get_many({table: keys}))[table]


async def of_aio_mirror(gate, table, keys):
    async with gate.mirror(table) as mirror:
        return mirror.table(table).get_many(keys)


READERS = [of_table, of_snapshot, of_tables, of_mirror, of_mirror_view]
READERS += [awaited(of_aio_table), awaited(of_aio_tables), awaited(of_aio_mirror)]

REFUSED = [
    ("hours", [EARLY, LATE]),  # equal keys of different bytes
    ("hours", [LATE, EARLY]),
    ("zones", [("a", EARLY), ("a", LATE)]),
    ("zones", [["a", LATE], ("a", EARLY)]),
    ("hours", [LATE, LATE.astimezone(UTC)]),  # the same bytes, and the keys are not equal
    ("zones", [("a", EARLY.astimezone(UTC)), ("a", EARLY)]),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("table, keys", REFUSED)
def test_two_keys_that_a_dict_does_not_tell_apart_are_refused(url, read, table, keys):
    with pytest.raises(ConfigError, match=r"fold.*astimezone\(timezone.utc\)"):
        read(url, table, keys)


ANSWERED = [
    ("hours", [EARLY, EARLY], {EARLY: 1}),
    ("hours", [LATE], {LATE: 2}),
    (
        "hours",
        [EARLY.astimezone(UTC), LATE.astimezone(UTC)],
        {EARLY.astimezone(UTC): 1, LATE.astimezone(UTC): 2},
    ),
    ("zones", [("a", EARLY), ("b", LATE)], {("a", EARLY): 3}),
    ("prices", [1, decimal.Decimal(1), decimal.Decimal("1.0"), decimal.Decimal("-0")], {1: 5, 0: 6}),
    ("flags", [True, False, True], {True: 7, False: 8}),
    ("days", [EARLY.replace(tzinfo=None), LATE.replace(tzinfo=None)], {EARLY.replace(tzinfo=None): 9}),
]
"""Keys that are equal and have the same bytes: every one of them finds its row."""


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("table, keys, expected", ANSWERED)
def test_every_key_that_was_asked_finds_its_row(url, read, table, keys, expected):
    assert read(url, table, keys) == {key: {"n": number} for key, number in expected.items()}
