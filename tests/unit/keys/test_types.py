"""Types as text and as trees, and what a store has of a schema."""

import json

import pytest

from tidegate.keys.types import is_nested, parse, text_of, tree_of
from tidegate.sinks.rules.schemas import stored_schema
from tidegate.testing.conformance.vectors.schemas import TREES
from tidegate.wal.record import Column, StateColumns, TableSchema


@pytest.mark.parametrize("name", TREES)
def test_a_type_is_parsed_and_written_as_spark_does(name):
    assert tree_of(parse(name)) == TREES[name]
    assert text_of(parse(name)) == name
    assert is_nested(name) == isinstance(TREES[name], dict)


def test_a_store_has_the_trees_of_nested_types():
    days, flat = Column("days", "map<date,int>"), Column("n", "int")
    older = (StateColumns(1, (Column("days@1", "array<int>"),)),)
    schema = TableSchema((Column("k", "string"),), (flat, days), "json_states", 2, older)
    stored = json.loads(stored_schema(schema))
    assert stored["value"] == [
        {"name": "n", "type": "int"},
        {"name": "days", "type": "map<date,int>", "tree": TREES_OF_DAYS},
    ]
    assert stored["older"][0]["value"][0]["tree"] == TREES["array<int>"]
    assert stored["key"] == [{"name": "k", "type": "string"}]


TREES_OF_DAYS = {"type": "map", "keyType": "date", "valueType": "integer", "valueContainsNull": True}


def test_a_schema_without_nested_types_is_stored_as_it_is_logged():
    schema = TableSchema((Column("k", "string"),), (Column("n", "int"),))
    assert json.loads(stored_schema(schema)) == {
        "key": [{"name": "k", "type": "string"}],
        "value": [{"name": "n", "type": "int"}],
        "value_format": "json",
    }
