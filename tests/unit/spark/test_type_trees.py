"""The trees of types in the vectors of readers are Spark's own."""

import pytest

from tidegate.spark.calls.columns import types
from tidegate.testing.conformance.vectors.schemas import TREES
from tidegate.testing.conformance.vectors.values import TREE


@pytest.mark.parametrize("name", TREES)
def test_a_tree_is_what_spark_writes_for_the_type(name):
    kind = types._parse_datatype_json_value(TREES[name])
    assert kind.simpleString() == name
    assert kind.jsonValue() == TREES[name]


def test_the_tree_of_a_column_of_the_vectors():
    assert types.ArrayType(types.LongType()).jsonValue() == TREE
