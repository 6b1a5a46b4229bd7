"""Schemas of tables with rows of several state versions, and their rows."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tidegate.errors import ConfigError, CorruptError
from tidegate.spark.source.arrow_rows import columns_of
from tidegate.values.decode import OlderState, by_column, values_of
from tidegate.values.encode import encoder_of
from tidegate.values.evolve import evolved, reads_all, renamed
from tidegate.values.row_checks import check_schema, row_checks
from tidegate.values.state_versions import check_version, next_state, plain
from tidegate.wal.record import JSON_STATES, Column, StateColumns, TableSchema

KEY = (Column("k", "string"),)
FIRST = TableSchema(KEY, (Column("n", "int"), Column("at", "date")))
SECOND = next_state("t", FIRST, TableSchema(KEY, (Column("n", "string"),), state_version=2))
THIRD = next_state("t", SECOND, TableSchema(KEY, (Column("n", "struct<x:int>"),), state_version=4))
ROWS = {
    1: b'{"n":7,"at":"2026-11-26"}',
    2: b'{"n@2":"seven"}',
    4: b'{"n@4":{"x":7}}',
}


def test_a_schema_without_a_version_has_the_bytes_of_before():
    assert FIRST.version == 1
    assert b"state_version" not in msgspec.json.encode(FIRST)
    assert FIRST.schema_id == TableSchema(KEY, FIRST.value).schema_id
    assert plain(SECOND, 1) == TableSchema(KEY, (Column("n", "string"),))


def test_the_schema_and_the_rows_of_the_page_are_those_that_are_written():
    page = Path(__file__).parents[3].joinpath("docs/storage-format.md").read_text()
    users = (Column("user", "string"),)
    first = TableSchema(users, (Column("n", "int"),))
    second = next_state("t", first, TableSchema(users, (Column("n", "string"),), state_version=2))
    content = msgspec.json.encode(second, order="deterministic")
    assert f"```json\n{content.decode()}\n```" in page
    assert msgspec.json.decode(content, type=TableSchema) == second
    for schema, value in ((first, 7), (second, "7")):
        row = encoder_of(schema).encode({"n": value})
        assert f"`{row.decode()}`" in page
        assert values_of(second).decode(row) == {"n": value}


def test_a_row_has_the_columns_of_its_own_version():
    values = values_of(THIRD)
    rows = {version: values.decode(content) for version, content in ROWS.items()}
    assert rows[1] == values_of(FIRST).decode(ROWS[1])
    assert rows[2] == {"n": "seven"}
    assert rows[4] == {"n": {"x": 7}}
    assert [getattr(row, "state_version", None) for row in rows.values()] == [1, 2, None]
    assert isinstance(rows[1], OlderState)
    assert msgspec.json.encode(rows[2]) == b'{"n":"seven"}'
    assert encoder_of(THIRD).encode({"n": {"x": 7}}) == ROWS[4]
    with pytest.raises(CorruptError, match=r"has fields of the state versions 1, 2"):
        values.decode(b'{"n":1,"n@2":"1"}')


def test_columns_of_older_versions_have_names_of_their_own_in_arrow():
    values = values_of(THIRD)
    names = ["n", "n@1", "at@1", "n@2"]
    assert [column.name for column in THIRD.columns] == names
    table = values.to_arrow(
        (key, values.decode(content)) for key, content in zip("abc", ROWS.values(), strict=True)
    )
    assert table.column_names == ["k", *names]
    assert table["n"].to_pylist() == [None, None, {"x": 7}]
    assert table["n@1"].to_pylist() == [7, None, None]
    assert table["n@2"].to_pylist() == [None, "seven", None]
    batch = pa.record_batch(
        {"key": pa.array([b"a", b"b", b"c"], pa.binary()), "value": pa.array([*ROWS.values()], pa.binary())}
    )
    assert {
        name: pa.array(column).to_pylist() for name, column in columns_of(batch, values, "t").items()
    } == {name: table[name].to_pylist() for name in table.column_names}
    assert by_column(FIRST, {"n": 1}) == {"n": 1}


def test_a_later_schema_reads_earlier_rows_of_the_same_versions_alone():
    assert reads_all(THIRD, FIRST)
    assert reads_all(THIRD, SECOND)
    assert not reads_all(SECOND, THIRD)
    # All rows were migrated: fields have the plain names again, which are those of version 1 before.
    same_columns = next_state("t", FIRST, plain(FIRST, 2))
    assert not reads_all(same_columns, plain(FIRST, 2), same_start=True)
    assert reads_all(plain(FIRST, 2), plain(FIRST, 2))


def test_columns_change_within_a_version():
    wider = evolved("t", SECOND, TableSchema(KEY, (Column("n", "string"), Column("m", "int")))).schema
    assert wider.value == (Column("n", "string", "n@2"), Column("m", "int", "m@2"))
    assert (wider.older, wider.version) == (SECOND.older, 2)
    assert encoder_of(wider).encode({"m": 1}) == b'{"n@2":null,"m@2":1}'
    assert evolved("t", plain(FIRST, 3), FIRST).schema == plain(FIRST, 3)
    with pytest.raises(ConfigError, match="column at@1: two have this name"):
        evolved("t", SECOND, TableSchema(KEY, (*SECOND.value, Column("at@1", "int"))))
    with pytest.raises(ConfigError, match=r"rows of the state versions 1, 2; migrate them"):
        renamed("t", SECOND, "n", "z")
    assert renamed("t", plain(FIRST, 2), "n", "z").version == 2


def test_versions_that_rows_cannot_tell_are_refused():
    number = TableSchema(KEY, (Column("n", "int"),), state_version=2)
    of_bytes = TableSchema(KEY, (Column("value", "binary"),), "bytes", 2)
    nothing = TableSchema(KEY, (), state_version=2)
    for known, after in ((FIRST, of_bytes), (plain(of_bytes, 1), number), (FIRST, nothing), (nothing, THIRD)):
        with pytest.raises(ConfigError, match="does not show its version"):
            next_state("t", known, after)
    odd = TableSchema(KEY, (Column("n@2", "int"), Column("n", "int")))
    with pytest.raises(ConfigError, match="column n@2: two have this name"):
        next_state("t", odd, number)


def test_a_call_must_know_the_versions_that_are_there():
    check_version("t", None, 5, migrates=False)
    check_version("t", plain(FIRST, 2), 2, migrates=False)
    check_version("t", SECOND, 2, migrates=True)
    with pytest.raises(ConfigError, match=r"has state version 2, and .*state_version=1: .*never goes back"):
        check_version("t", plain(FIRST, 2), 1, migrates=True)
    with pytest.raises(ConfigError, match=r"rows of the state versions 1, 2, 4, and .*=4: pass migrate=fn"):
        check_version("t", THIRD, 4, migrates=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"stored_format": "json"},
        {"older": msgspec.UNSET},
        {"older": ()},
        {"state_version": msgspec.UNSET},
        {"older": (StateColumns(2, FIRST.value),)},
        {"older": (StateColumns(3, FIRST.value),)},
        {"older": (StateColumns(1, ()),)},
        {"older": (StateColumns(1, FIRST.value), StateColumns(1, (Column("z", "int"),)))},
        {"older": (StateColumns(1, (Column("n@2", "int"),)),)},
        {"older": (StateColumns(1, (Column("z", "nonsense"),)),)},
    ],
    ids=repr,
)
def test_a_schema_that_no_release_writes_is_refused(changes):
    check_schema(SECOND)
    check_schema(THIRD)
    with pytest.raises(ConfigError):
        check_schema(msgspec.structs.replace(SECOND, **changes))


def test_imported_rows_are_those_of_any_version():
    assert SECOND.value_format == JSON_STATES
    keys, values = ([b"a", b"b", b"c"], [b"+" + content for content in ROWS.values()])

    def unfit(contents):
        arrays = pa.array(keys[: len(contents)], pa.binary()), pa.array(contents, pa.binary())
        return row_checks(THIRD).first_unfit(*arrays, expires=False)

    assert unfit(values) is None
    assert unfit([values[0], b'+{"n@2":7}'])[0] == 1
    assert unfit([values[0], b'+{"n":1,"n@2":"1"}'])[0] == 1, "a row is of one version"
