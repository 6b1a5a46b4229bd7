"""examples/cdc/shapes.py: records as each tool writes them: tombstones, ties, values that are not there."""

from __future__ import annotations

import importlib.util
import json
from functools import partial
from pathlib import Path

import pytest

from tidegate.errors import BadRecordError

pytestmark = pytest.mark.spark

GONE = "__debezium_unavailable_value"


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parents[2] / "examples/cdc/shapes.py"
    spec = importlib.util.spec_from_file_location("shapes", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(number, name, mail="m"):
    return {"id": number, "name": name, "mail": mail}


def debezium(op, place, before=None, after=None, *, with_schema=False):
    envelope = {"op": op, "before": before, "after": after, "source": place, "ts_ms": 1, "transaction": None}
    return {"schema": {"type": "struct"}, "payload": envelope} if with_schema else envelope


def lsn(number):
    return {"lsn": number, "snapshot": "false"}


def binlog(file, pos, number=0):
    return {"file": f"binlog.{file:06}", "pos": pos, "row": number}


def sql_server(commit, change):
    return {"commit_lsn": commit, "change_lsn": change}


def maxwell(kind, position, data=None, old=None):
    event = {"database": "shop", "type": kind, "ts": 7, "data": data}
    return event | {name: one for name, one in (("position", position), ("old", old)) if one is not None}


def canal(kind, *rows, ddl=False, old=None):
    cells = [{name: str(cell) for name, cell in one.items()} for one in rows]
    return {"type": kind, "isDdl": ddl, "es": 1, "data": cells or None, "old": old, "pkNames": ["id"]}


def golden(kind, pos, before=None, after=None):
    return {"op_type": kind, "pos": f"{pos:020}", "before": before, "after": after}


def mongo(kind, at, key, document=None, updated=None, removed=()):
    event = {"operationType": kind, "documentKey": {"_id": key}}
    event["clusterTime"] = {"$timestamp": dict(zip("ti", at, strict=True))}
    if document is not None:
        event["fullDocument"] = document
    if updated is not None:
        event["updateDescription"] = {"updatedFields": updated, "removedFields": [*removed]}
    return event


BATCHES = {
    "debezium-postgresql": [
        [
            debezium("r", {"lsn": None, "snapshot": "true"}, after=row(1, "snapshot", "long text")),
            debezium("r", lsn(5), after=row(2, "snapshot"), with_schema=True),
            debezium("c", lsn(6), after=row(3, "first")),
            debezium("d", lsn(6), before=row(3, None, None)),
            None,
            debezium("c", lsn(6), after=row(3, "again")),
        ],
        [
            debezium("u", lsn(8), after=row(1, "changed", GONE)),
            debezium("d", lsn(9), before=row(2, None, None), with_schema=True),
            None,
            debezium("u", lsn(5), after=row(3, "sent twice")),
            debezium("c", lsn(10), after=row(4, "new") | {"added later": 1}),
        ],
    ],
    "debezium-mysql": [
        [
            debezium("r", binlog(999_999, 4), after=row(1, "snapshot")),
            debezium("c", binlog(999_999, 90), after=row(2, "deleted later")),
            debezium("c", binlog(999_999, 90, 1), after=row(3, "stays")),
        ],
        [
            debezium("u", binlog(1_000_000, 4), after=row(1, "of the next file")),
            debezium("u", binlog(999_999, 100), after=row(1, "sent twice")),
            debezium("d", binlog(1_000_000, 90), before=row(2, "deleted later")),
            None,
        ],
    ],
    "debezium-sqlserver": [
        [debezium("r", sql_server("00000027:00000758:0005", None), after=row(1, "snapshot"))],
        [
            debezium("u", sql_server("00000027:00000758:0005", "00000027:00000758:0003"), after=row(1, "a")),
            debezium("u", sql_server("00000027:00000758:0005", "00000027:00000758:0003"), after=row(1, "b")),
            debezium("d", sql_server("00000028:00000010:0001", "00000028:00000010:0001"), before=row(2, "x")),
            debezium(
                "c", sql_server("00000027:00000758:0005", "00000027:00000758:0004"), after=row(2, "late")
            ),
        ],
    ],
    "debezium-oracle": [
        [debezium("c", {"scn": "999", "commit_scn": "999"}, after=row(1, "first", "long text"))],
        [
            debezium("u", {"scn": "1000", "commit_scn": "1001"}, after=row(1, "second", GONE)),
            debezium("u", {"scn": "998", "commit_scn": "998"}, after=row(1, "sent twice")),
        ],
    ],
    "maxwell": [
        [
            maxwell("bootstrap-start", None),
            maxwell("bootstrap-insert", None, row(1, "bootstrap")),
            maxwell("bootstrap-insert", None, row(2, "bootstrap")),
            maxwell("bootstrap-complete", None),
        ],
        [
            maxwell("update", "binlog.000023:99", row(1, "new")),
            maxwell("update", "binlog.000009:900", row(1, "sent twice")),
            maxwell("delete", "binlog.000023:100", row(2, "bootstrap")),
            maxwell("insert", "binlog.000023:100", row(3, "x")),
            maxwell("update", "binlog.000023:101", row(4, "x"), {"id": 3}),
            maxwell("update", "binlog.000023:102", row(4, "moved"), {"name": "x"}),
        ],
    ],
    "canal": [
        [canal("INSERT", row(1, "a"), row(2, "b")), canal("CREATE", ddl=True)],
        [
            canal("UPDATE", row(1, "a2"), old=[{"name": "a"}]),
            canal("DELETE", row(1, "a2")),
            canal("INSERT", row(1, "a3")),
            canal("UPDATE", row(2, "b2"), row(5, "b"), old=[{"name": "b"}, {"id": "2"}]),
            canal("UPDATE", row(6, "a3"), old=[{"id": "1"}]),
        ],
    ],
    "goldengate": [
        [golden("I", 1, after=row(1, "a")), golden("I", 2, after=row(2, "b"))],
        [
            golden("U", 3, {"id": 1}, {"id": 1, "mail": "new"}),
            golden("U", 10, {"id": 1}, {"id": 1, "name": "a2"}),
            golden("D", 11, before=row(2, "b")),
            golden("I", 12, after=row(3, "c")),
            golden("U", 13, row(3, "c"), row(4, "moved")),
        ],
    ],
    "mongodb": [
        [
            mongo("insert", (5, 1), 1, {"_id": 1, "name": "a", "mail": "m"}),
            mongo("insert", (5, 2), 2, {"_id": 2, "name": "b", "mail": "m"}),
        ],
        [
            mongo("update", (6, 1), 1, updated={"name": "a2"}),
            mongo("update", (6, 1), 1, updated={"mail": "new"}),
            mongo("delete", (6, 1), 2),
            mongo("insert", (7, 1), 3, {"_id": 3, "name": "c", "mail": "m"}),
            mongo("insert", (7, 1), 4, {"_id": 4, "name": "d", "mail": "m"}),
            mongo("insert", (7, 1), 5, {"_id": 5, "name": "e", "mail": "m"}),
        ],
        [
            mongo("replace", (8, 1), 3, {"_id": 3, "name": "whole"}),
            mongo("update", (8, 2), 4, updated={"name": None}),
            mongo("update", (8, 3), 5, updated={}, removed=["mail"]),
        ],
    ],
}
EXPECTED = {
    "debezium-postgresql": {1: ("changed", "long text"), 3: ("again", "m"), 4: ("new", "m")},
    "debezium-mysql": {1: ("of the next file", "m"), 3: ("stays", "m")},
    "debezium-sqlserver": {1: ("b", "m")},
    "debezium-oracle": {1: ("second", "long text")},
    "maxwell": {1: ("new", "m"), 4: ("moved", "m")},
    "canal": {5: ("b", "m"), 6: ("a3", "m")},
    "goldengate": {1: ("a2", "new"), 4: ("moved", "m")},
    "mongodb": {1: ("a2", "new"), 3: ("whole", None), 4: (None, "m"), 5: ("e", None)},
}


def test_every_shape_has_records_here(example):
    assert BATCHES.keys() == EXPECTED.keys() == example.SHAPES.keys()


@pytest.mark.parametrize("shape", BATCHES)
def test_records_of_each_shape_leave_the_database_s_rows(stream, example, shape):
    topic, offset, batches = stream("value binary, offset bigint"), 0, []
    for records in BATCHES[shape]:
        values = [None if one is None else json.dumps(one).encode() for one in records]
        batches.append([{"value": value, "offset": offset + place} for place, value in enumerate(values)])
        offset += len(records)
    topic.commit(topic.sink().each(partial(example.write, shape=shape)), *batches)
    rows = topic.rows("customers")
    assert {key: (each["name"], each["mail"]) for key, each in rows.items()} == EXPECTED[shape]


WITHOUT_A_KEY = {
    "debezium-postgresql": [b"no json", debezium("t", lsn(5))],
    "maxwell": [b'{"type":"insert"', maxwell("table-drop", None)],
    "canal": [b"no json", canal("TRUNCATE", ddl=True), canal("ERASE", ddl=True), canal("INSERT")],
    "goldengate": [b"no json", golden("T", 1)],
    "mongodb": [b"no json", mongo("drop", (1, 1), None)],
}


@pytest.mark.parametrize("shape", WITHOUT_A_KEY)
def test_a_record_that_is_no_row_is_refused_and_not_left_out(stream, example, shape):
    """Red before in Maxwell's and Canal's shapes: a truncated table kept its rows, a change was lost."""
    topic = stream("value binary, offset bigint")
    for record in WITHOUT_A_KEY[shape]:
        value = record if isinstance(record, bytes) else json.dumps(record).encode()
        topic.add([{"value": value, "offset": 0}])

        def refused(rows, batch_id):
            with pytest.raises(BadRecordError):
                topic.sink().each(partial(example.write, shape=shape))(rows, batch_id)

        topic.in_batch(refused)
    assert topic.decided() == 0
