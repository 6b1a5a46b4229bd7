"""The trees of types in the vectors of readers are Spark's own."""

import pytest

from tidegate.errors import ConfigError
from tidegate.spark.calls.checks import check_value_type
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


class Vector(types.UserDefinedType):
    """As that of Spark ML."""

    def simpleString(self):  # noqa: N802
        return "vector"


NESTED = {
    "itself": lambda vector: vector,
    "array": types.ArrayType,
    "struct": lambda vector: types.StructType([types.StructField("v", vector)]),
    "map": lambda vector: types.MapType(types.StringType(), vector),
}


@pytest.mark.parametrize("where", NESTED)
def test_the_advice_for_a_vector_makes_an_array_of_it(where):
    kind = NESTED[where](Vector())
    with pytest.raises(ConfigError, match=r"table t: column c: .*vector_to_array"):
        check_value_type("t", types.StructField("c", kind))


def test_the_advice_for_other_types_has_no_vector():
    with pytest.raises(ConfigError, match=r"cast others to string or binary$"):
        check_value_type("t", types.StructField("c", types.VariantType()))
