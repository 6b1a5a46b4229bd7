"""An error of an unreadable row shows its place and its form, and nothing of its value."""

import traceback

import pytest

from tidegate.errors import CorruptError
from tidegate.values.decode import values_of
from tidegate.values.kinds import SIMPLE
from tidegate.wal.record import Column, TableSchema

SECRET = "ward 7, diagnosis"
TYPES = [
    *SIMPLE,
    *("decimal(10,2)", "array<float>", "array<date>", "struct<a:double>", "struct<a:struct<b:int>>"),
    *(f"map<{key},int>" for key in ("int", "double", "boolean", "date", "timestamp", "decimal(5,1)")),
]
FORMS = [
    *('"%s"', '["%s"]', '{"a":"%s"}', '{"%s":1}', '{"a":{"b":"%s"}}', '"%s - at `$.v`"', '"%s', "%s"),
    '{"1":"%s"}',
]


@pytest.mark.parametrize("kind", TYPES)
def test_a_value_that_cannot_be_read_is_not_shown(kind):
    values, shown = values_of(TableSchema((Column("k", "int"),), (Column("v", kind),))), []
    for form in FORMS:
        for text in (SECRET, SECRET + "x" * 100_000):
            try:
                values.decode(b'{"v":' + (form % text).encode() + b"}")
            except CorruptError as error:
                shown += [str(error), "".join(traceback.format_exception(error))]
    assert len(shown) >= 4
    assert not [text for text in shown if "diagnosis" in text or "ward" in text]
    assert max(map(len, shown[::2])) < 600
