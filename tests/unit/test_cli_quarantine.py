"""tidegate quarantine list: what was refused, in a table and as JSON."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.testing.example import Example
from tidegate.wal import quarantine


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
