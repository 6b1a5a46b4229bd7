"""txn.apply_changes: captured changes in any order, within and across batches."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

import tidegate
from tidegate.errors import BadRecordError, ConfigError
from tidegate.spark.staging.job import warn_of_ties

pytestmark = pytest.mark.spark

SCHEMA = "id int, op string, lsn bigint, name string"


def row(key, op, lsn, name=None):
    return {"id": key, "op": op, "lsn": lsn, "name": name}


def apply(txn, rows):
    txn.apply_changes("people", rows, "id", sequence_by="lsn", op_column="op")


@pytest.mark.both_ways
def test_the_newest_change_of_a_key_stays_in_whatever_order_and_batch_it_comes(stream):
    people = stream(SCHEMA)
    batches = [
        [row(1, "u", 5, "new"), row(1, "c", 2, "old"), row(2, "c", 1, "b"), row(3, "d", 9)],
        [row(1, "u", 4, "late"), row(2, "d", 3), row(2, "u", 2, "late"), row(3, "c", 8, "late")],
        [row(2, "u", 2, "later still"), row(1, "d", 4)],
        [row(2, "c", 4, "back")],
    ]
    people.commit(people.sink(parallelism=2).each(apply), *batches)
    assert people.rows("people", 1) == {1: {"lsn": 5, "name": "new"}, 2: {"lsn": 1, "name": "b"}}
    assert people.rows("people", 2) == people.rows("people", 3) == {1: {"lsn": 5, "name": "new"}}
    assert people.rows("people") == {1: {"lsn": 5, "name": "new"}, 2: {"lsn": 4, "name": "back"}}
    assert people.rows("_deleted.people") == {2: {"lsn": 3}, 3: {"lsn": 9}}
    with people.gate() as gate:
        assert [info.changes.get("people", 0) for info in gate.history()] == [3, 1, 0, 1], "late: not written"


def test_columns_are_added_while_changes_go_on_and_others_are_refused_before_staging(stream):
    def each(txn, rows):
        match txn.batch_id:
            case 0:
                apply(txn, rows)
            case 1:
                apply(txn, rows.selectExpr("*", "id * 10 AS score"))
            case _:
                for wrong in ("id, op, lsn, 1 AS name", "name AS id, op, lsn, name"):
                    with pytest.raises(ConfigError, match=r"column name: string here|fixed for life"):
                        apply(txn, rows.selectExpr(*wrong.split(", ")))

    people = stream(SCHEMA)
    batches = [row(1, "c", 1, "a"), row(2, "c", 1, "b")], [row(1, "u", 2, "a")], [row(1, "u", 3, "x")]
    people.commit(people.sink().each(each), *batches)
    assert people.rows("people", 1)[1] == {"lsn": 1, "name": "a"}
    assert people.rows("people") == {
        1: {"lsn": 2, "name": "a", "score": 10},
        2: {"lsn": 1, "name": "b", "score": None},
    }
    with people.gate() as gate:
        for version, columns in ((1, ["lsn", "name"]), (3, ["lsn", "name", "score"])):
            with gate.snapshot(version=version) as snap:
                assert [column.name for column in snap.table("people").schema().value] == columns


def test_changes_that_cannot_be_ordered_are_refused(stream):
    people = stream(SCHEMA)
    people.add([row(1, "c", None, "a"), row(1, "c", 2, "b")])
    ran = people.run(people.sink().each(apply))
    assert isinstance(ran.error, BadRecordError)
    assert "key 1: its sequence_by column lsn is null" in str(ran.error)
    assert people.decided() == 0

    def wrong(rows, batch_id):
        def each(txn, rows):
            for message, keywords in (
                ("sequence_by column lsn2", {"sequence_by": "lsn2"}),
                ("is a key or the operation", {"sequence_by": "op"}),
                ("must be a string column", {"op_column": "name2"}),
                ("must be a list of texts", {"delete_values": "d"}),
            ):
                rows2 = rows.selectExpr("*", "double(lsn) AS lsn2", "lsn AS name2")
                with pytest.raises(ConfigError, match=message):
                    txn.apply_changes(
                        "people", rows2, "id", **{"sequence_by": "lsn", "op_column": "op", **keywords}
                    )

        people.sink().each(each)(rows, batch_id)

    people.in_batch(wrong)


@pytest.mark.both_ways
def test_a_tie_of_a_row_and_a_delete_is_counted_in_the_history_and_told(stream, caplog):
    """Within a batch, with the stored row, and with a delete that is remembered."""
    people = stream(SCHEMA)
    batches = [
        [row(1, "c", 5, "x"), row(1, "d", 5), row(2, "c", 5, "x"), row(2, "d", 6), row(3, "c", 1, "x")],
        [row(3, "d", 1), row(4, "d", 2)],
        [row(4, "c", 2, "y"), row(1, "c", 6, "z")],
    ]
    warn_of_ties.cache_clear()
    with caplog.at_level("WARNING", logger="tidegate"):
        people.commit(people.sink(parallelism=2).each(apply), *batches)
    assert people.rows("people") == {1: {"lsn": 6, "name": "z"}}
    told = [record.message for record in caplog.records if "same sequence" in record.message]
    assert len(told) == 1
    assert "such as the record's offset" in told[0]
    url = f"file://{people.folder}/wal"
    with tidegate.connect(people.store, namespace="flights", wal=url) as gate:
        ties = [step.ties for version in (1, 2, 3) for step in gate.job(version)]
    assert ties == [1, 1, 1]


def test_the_example_writes_what_a_kafka_topic_of_json_holds(stream):
    """What Spark's Kafka source gives: the record's bytes in the column value."""
    path = Path(__file__).parents[2] / "examples/cdc/customers.py"
    spec = importlib.util.spec_from_file_location("customers", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    def records(*changes):
        return [{"value": json.dumps(change).encode()} for change in changes]

    topic = stream("value binary")
    topic.commit(
        topic.sink().each(example.write),
        records(
            {"op": "c", "id": 1, "lsn": 10, "name": "Ada"}, {"op": "c", "id": 2, "lsn": 11, "name": "Bo"}
        ),
        records({"op": "u", "id": 1, "lsn": 9, "name": "late"}, {"op": "d", "id": 2, "lsn": 12}),
    )
    assert topic.rows("customers") == {1: {"lsn": 10, "name": "Ada"}}
