"""tidegate quarantine: what was refused, listed, exported and dropped."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.testing.example import Example
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging import quarantine


@pytest.fixture
def example(tmp_path):
    made = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    made.schemas[quarantine.TABLE] = quarantine.SCHEMA
    yield made
    made.close()


def run(tmp_path, *words):
    asked = ["quarantine", "list", "--store", f"sqlite://{tmp_path}/store", "--namespace", "flights", *words]
    return CliRunner().invoke(app, asked)


def test_refused_rows_are_listed_with_their_cause_and_counted(example, tmp_path):
    example.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    nothing = run(tmp_path)
    assert nothing.exit_code == 0, nothing.output
    assert "no refused rows at version 1" in nothing.output
    rows = {
        str(n): {
            "table": "aircraft", "cause": "its key is null", "key": None, "value": b"{}",
            "key_bytes": None, "value_bytes": 2,
        }
        for n in range(3)
    }  # fmt: skip
    example.write({quarantine.TABLE: rows})
    listed = run(tmp_path, "--limit", "2")
    assert listed.exit_code == 0, listed.output
    assert listed.output.count("its key is null") == 2
    assert "refused at version 2: 3 of table aircraft" in listed.output
    told = [json.loads(line) for line in run(tmp_path, "--json").output.splitlines()]
    assert [row["cause"] for row in told] == ["its key is null"] * 3
    assert run(tmp_path, "--at", "1").output == nothing.output


# -- export and drop --------------------------------------------------------------------------------


def refused(key, value, *, table="aircraft", cause="its key is null", cut=0):
    sizes = {"key_bytes": None if key is None else len(key), "value_bytes": len(value) + cut}
    return {"table": table, "cause": cause, "key": key, "value": value} | sizes


@pytest.fixture
def filled(example):
    """Version 1 with four refused rows of aircraft, one of which can be had whole with its key."""
    rows = {
        "a": refused(None, b'{"carrier":"UA","flights":1}'),
        "b": refused(b"N\xff2", b'{"carrier":"AA","flights":2}', cause="its key is not valid UTF-8"),
        "c": refused(b"N3", b'{"carrier":"DL', cut=100_000, cause="its value takes 100,014 bytes"),
        "d": refused(None, b"", cause="its key is null"),  # a delete
        "e": refused(b"N5", b'{"carrier":"B6","flights":5}', cause="its key takes too much"),
        "f": refused(None, b'{"other":1}', table="airports"),
    }
    example.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}, quarantine.TABLE: rows})
    return example


def call(tmp_path, *words, code=0, wal=True):
    where = ["--store", f"sqlite://{tmp_path}/store", "--namespace", "flights"]
    where += ["--wal", f"file://{tmp_path}/wal"] if wal else []
    told = CliRunner().invoke(app, [*map(str, words), *where])
    assert told.exit_code == code, told.output
    return told


def ids_there(tmp_path):
    lines = call(tmp_path, "scan", quarantine.TABLE, "--json", wal=False).stdout.splitlines()
    return {json.loads(line)["key"] for line in lines}


def test_refused_rows_are_exported_with_their_tables_columns(filled, tmp_path):
    file = tmp_path / "refused.parquet"
    told = call(tmp_path, "quarantine", "export", "aircraft", file, wal=False)
    assert "3 refused rows of table aircraft at version 1" in told.stdout
    assert told.stderr.count("1 rows are not in it") == 2
    rows = pq.read_table(file).sort_by("_id").to_pylist()
    assert rows == [
        {
            "_id": "a", "_cause": "its key is null", "_key": None,
            "tailnum": None, "carrier": "UA", "flights": 1,
        },
        {
            "_id": "b", "_cause": "its key is not valid UTF-8", "_key": b"N\xff2",
            "tailnum": None, "carrier": "AA", "flights": 2,
        },
        {
            "_id": "e", "_cause": "its key takes too much", "_key": b"N5",
            "tailnum": "N5", "carrier": "B6", "flights": 5,
        },
    ]  # fmt: skip


def test_what_is_dropped_is_what_is_in_the_file_and_it_may_be_repeated(filled, tmp_path):
    file = tmp_path / "refused.parquet"
    call(tmp_path, "quarantine", "export", "aircraft", file, wal=False)
    filled.write({quarantine.TABLE: {"later": refused(None, b"{}")}})
    dropped = call(tmp_path, "quarantine", "drop", file, "--yes", "--force").stdout
    assert "version 3 is visible: 3 rows have left the quarantine" in dropped
    assert ids_there(tmp_path) == {"c", "d", "f", "later"}
    again = call(tmp_path, "quarantine", "drop", file, "--yes", "--force").stdout
    assert "nothing was written" in again
    whole = tmp_path / "all.parquet"
    call(tmp_path, "scan", quarantine.TABLE, "--parquet", whole, wal=False)
    told = json.loads(call(tmp_path, "quarantine", "drop", whole, "--yes", "--force", "--json").stdout)
    assert (told["version"], told["rows"]) == (4, 4)
    assert ids_there(tmp_path) == set()


def test_rows_that_a_restore_brought_back_can_be_dropped_again(filled, tmp_path):
    file = tmp_path / "refused.parquet"
    call(tmp_path, "quarantine", "export", "aircraft", file, wal=False)
    call(tmp_path, "quarantine", "drop", file, "--yes", "--force")
    call(tmp_path, "restore", "--to", "1", "--yes", "--force")
    assert "a" in ids_there(tmp_path)
    call(tmp_path, "quarantine", "drop", file, "--yes", "--force")
    assert ids_there(tmp_path) == {"c", "d", "f"}


def test_nothing_is_dropped_without_a_word_beside_a_writer_or_of_another_file(filled, tmp_path):
    file, other = tmp_path / "refused.parquet", tmp_path / "other.parquet"
    call(tmp_path, "quarantine", "export", "aircraft", file, wal=False)
    call(tmp_path, "scan", "aircraft", "--parquet", other, wal=False)
    before = ids_there(tmp_path)
    assert "add --yes" in call(tmp_path, "quarantine", "drop", file, "--force", code=2).stderr
    assert "no column _id or id" in call(tmp_path, "quarantine", "drop", other, "--yes", code=2).stderr
    other.write_bytes(b"no parquet")
    told = call(tmp_path, "quarantine", "drop", other, "--yes", code=2).stderr
    assert "no whole Parquet file" in told
    assert "give a file of `tidegate quarantine export --namespace flights`" in told
    nowhere = tmp_path / "nowhere"
    assert "No such file" in call(tmp_path, "quarantine", "drop", nowhere, "--yes", code=2).stderr
    filled.driver.store.heartbeat(filled.driver.epoch)
    assert "--force" in call(tmp_path, "quarantine", "drop", file, "--yes", code=2).stderr
    assert ids_there(tmp_path) == before


def test_the_columns_of_a_table_that_is_not_there_are_not_known(filled, tmp_path):
    told = call(tmp_path, "quarantine", "export", "nowhere", tmp_path / "file", code=2, wal=False)
    assert "tidegate scan _quarantine --parquet FILE" in told.stderr
    assert not (tmp_path / "file").exists()


def test_rows_that_the_columns_no_longer_hold_are_left_out_and_counted(example, tmp_path):
    """Refused when a column was a bigint or a double, exported when it is an int: it ended in a traceback."""
    rows = {
        "a": refused(b"N1", b'{"carrier":"UA","flights":99999999999}'),
        "b": refused(b"N2", b'{"carrier":"UA","flights":2}'),
    }
    example.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}, quarantine.TABLE: rows})
    done = call(tmp_path, "quarantine", "export", "aircraft", tmp_path / "file", wal=False)
    assert "1 refused rows of table aircraft" in done.output
    assert "1 rows are not in it (values that do not fit the columns" in done.output
    assert pq.read_table(tmp_path / "file")["tailnum"].to_pylist() == ["N2"]


def test_refused_rows_of_a_renamed_column_are_exported_by_its_new_name(filled, tmp_path):
    """They were left out as no rows of the table: they have the first name, as all stored rows have."""
    call(tmp_path, "schema", "rename", "aircraft", "carrier", "airline", "--force")
    file = tmp_path / "refused.parquet"
    told = call(tmp_path, "quarantine", "export", "aircraft", file, wal=False)
    assert "3 refused rows of table aircraft at version 2" in told.stdout
    rows = pq.read_table(file).sort_by("_id").to_pylist()
    assert [row["airline"] for row in rows] == ["UA", "AA", "B6"]


@pytest.mark.parametrize(
    "key, value, own", [("_id", "n", "__id"), ("k", "__key", "___id"), ("id", "__id", "___id")]
)
def test_columns_of_the_tables_own_with_such_names_are_no_hindrance(example, tmp_path, key, value, own):
    example.schemas["documents"] = TableSchema((Column(key, "string"),), (Column(value, "string"),))
    document, row = {value: "x"}, refused(None, json.dumps({value: "y"}).encode(), table="documents")
    example.write({"documents": {"1": document}, quarantine.TABLE: {"a": row}})
    file = tmp_path / "refused.parquet"
    call(tmp_path, "quarantine", "export", "documents", file, wal=False)
    (found,) = pq.read_table(file).to_pylist()
    assert (found[own], found[key], found[value]) == ("a", None, "y")
    call(tmp_path, "quarantine", "drop", file, "--yes", "--force")
    assert ids_there(tmp_path) == set()
