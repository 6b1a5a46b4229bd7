"""SIGKILL in the version that renames a column; the rename again, and a writer by the new name (I1, I4)."""

from contextlib import closing

import pytest

from support.places import rows_by_table
from tidegate.base import failpoints
from tidegate.committers.operations.verify import verify
from tidegate.committers.rename_column import rename_column
from tidegate.options import Options
from tidegate.testing.example import Example
from tidegate.testing.process.forked import Forked
from tidegate.values.evolve import renamed
from tidegate.wal.record import Column, TableSchema

OLD = TableSchema((Column("k", "string"),), (Column("a", "int"),))
NEW = renamed("t", OLD, "a", "b")
BEFORE = {"k1": {"a": 1}, "k2": {"a": 2}}
RENAMED = {"k1": {"b": 1}, "k2": {"b": 2}}
AFTER = {"k1": {"b": 1}, "k2": {"b": 3}}
POINTS = (
    "open.before_append",
    "open.after_append",
    "open.after_claim",
    "manifest.after_write",
    "decide.before_append",
    "decide.after_append",
    "publish.before",
    "publish.after",
    "commit.before_return",
)
WAIT_S = 120


def example(folder, schema):
    example = Example(f"file://{folder}/wal", f"sqlite://{folder}/store", options=Options(key_groups=4))
    example.schemas["t"] = schema
    return closing(example)


def rename(folder, armed):
    """In a process of its own."""
    failpoints.arm(armed)
    with example(folder, OLD) as writer:
        rename_column(writer.driver, "t", "a", "b")
    return 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("point", POINTS)
def test_a_rename_killed_anywhere_is_repeated_i1_i4(tmp_path, point):
    with example(tmp_path, OLD) as writer:
        assert writer.write({"t": BEFORE}) == 1
    killed = Forked(rename, (str(tmp_path), f"{point}=kill"), tmp_path / "killed")
    assert killed.wait(WAIT_S)
    assert killed.exit_code == -9, killed.output.read_text()
    assert content(tmp_path) in (BEFORE, RENAMED)
    again = Forked(rename, (str(tmp_path), ""), tmp_path / "again")
    assert again.wait(WAIT_S)
    assert again.exit_code == 0, again.output.read_text()
    with example(tmp_path, NEW) as writer:
        assert writer.write({"t": {"k2": {"b": 3}}}) == 3, "one version for the rename"
        assert verify(writer.driver.log, writer.driver.store).findings == []
    assert [content(tmp_path, version) for version in (1, 2, 3)] == [BEFORE, RENAMED, AFTER]


def content(folder, version=None):
    return rows_by_table(f"sqlite://{folder}/store", version=version).get("t", {})
