"""The vectors in docs/storage-format.md are what the code makes."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path

import pytest

from tidegate.base.names import escape
from tidegate.keys.groups import encode_key, key_group
from tidegate.wal.record import DecidedVersion, Folded

PAGE = (Path(__file__).parents[3] / "docs" / "storage-format.md").read_text()


INSTANT = datetime.datetime(2026, 11, 21, 10, 0, 0, 7, datetime.timezone.utc)
WALL_CLOCK = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001


@pytest.mark.parametrize("name", ["flights", "Daily.Top-10", "a_b", "a.b", "A.b"])
def test_names(name: str) -> None:
    assert f"| `{name}` | `{escape(name)}` |" in PAGE
    assert f"`{escape('x' * 41)}`" in PAGE


@pytest.mark.parametrize(
    "shown,values,types",
    [
        ("`N14228`", ["N14228"], ["string"]),
        ("`-7`", [-7], ["int"]),
        ("`true`", [True], ["boolean"]),
        ("`2013-01-31`", [datetime.date(2013, 1, 31)], ["date"]),
        ("`2026-11-21T10:00:00.000007Z`", [INSTANT], ["timestamp"]),
        ("`1969-12-31T23:59:59.999999`", [WALL_CLOCK], ["timestamp_ntz"]),
        ("`1.5`", [decimal.Decimal("1.5")], ["decimal(10,2)"]),
        ("`-0.0000001`", [decimal.Decimal("-0.0000001")], ["decimal(20,10)"]),
        ("`EWR`, `IAH`", ["EWR", "IAH"], ["string", "string"]),
        ("(empty), `7`", ["", 7], ["string", "bigint"]),
    ],
)
def test_keys(shown: str, values: list[object], types: list[str]) -> None:
    key = encode_key(values, types)
    row = (
        f"| {shown} | {', '.join(types)} | `{key.decode()}` | {key_group(key, 128)} | {key_group(key, 100)} |"
    )
    assert row in PAGE


def test_the_state_of_a_summary() -> None:
    """A log that was cut begins with it."""
    section = PAGE.partition("### The state of a Summary\n")[2].partition("\n## ")[0]
    for field in (*Folded.__struct_fields__, *DecidedVersion.__struct_fields__):
        assert f"`{field}`" in section


def test_the_empty_key() -> None:
    assert f"| (empty) | string | | {key_group(b'', 128)} | {key_group(b'', 100)} |" in PAGE
