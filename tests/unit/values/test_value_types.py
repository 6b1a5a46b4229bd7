"""Types of value columns that would be stored and not be read as they were (I10); no session."""

from __future__ import annotations

import pytest

from tidegate.errors import ConfigError
from tidegate.spark.calls.checks import check_value_type
from tidegate.spark.calls.columns import types

INT = types.IntegerType()
STRUCT = types.StructType


@pytest.mark.parametrize(
    "wrap",
    [
        lambda struct: struct,
        types.ArrayType,
        lambda struct: types.MapType(types.StringType(), struct),
        lambda struct: STRUCT().add("in", types.ArrayType(struct)),
    ],
)
@pytest.mark.parametrize(
    "struct, told",
    [
        (STRUCT().add("id", INT).add("id", types.StringType()), "field 'id' is repeated"),
        (STRUCT().add("x:int,y", INT), "field 'x:int,y' has a colon in its name"),
        (STRUCT().add("dc:title", INT), "field 'dc:title' has a colon in its name"),
    ],
)
def test_a_struct_whose_fields_cannot_be_told_apart_is_refused(wrap, struct, told):
    """Of two fields of one name, as a join leaves them, readers got the second one alone."""
    with pytest.raises(ConfigError, match=rf"table t: column c: {told} in struct<.*rename it"):
        check_value_type("t", types.StructField("c", wrap(struct)))
    check_value_type("t", types.StructField("c", wrap(STRUCT().add("id", INT).add("Id", INT))))
