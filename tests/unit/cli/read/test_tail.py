"""`tidegate tail`, and what `tidegate scan` can do besides printing all rows."""

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.options import Options
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.example import BATCHES, Example

WAIT_S = 80


@pytest.fixture
def writer(tmp_path):
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=Options(key_groups=2))
    for rows in BATCHES:
        example.write(rows)
    example.options = [f"--store=sqlite://{tmp_path}/store", "--namespace=flights"]
    yield example
    example.close()


def run(writer, *arguments, code=0):
    result = CliRunner().invoke(app, [*arguments, *writer.options], prog_name="tidegate")
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_tail_prints_each_version_and_ends_it(writer):
    found = lines(run(writer, "tail", "--after", "0", "--limit", "3", "--json"))
    ends = [line for line in found if "changes" in line]
    assert [(line["version"], line["changes"]) for line in ends] == [(1, 6), (2, 3), (3, 2)]
    assert [line["version"] for line in found] == sorted(line["version"] for line in found)
    assert {"version": 3, "table": "aircraft", "key": "N24211", "kind": "removed"}.items() <= found[
        -3
    ].items()


def test_tail_goes_on_where_another_ended(writer):
    whole = run(writer, "tail", "--after", "0", "--limit", "3", "--json")
    parts = [run(writer, "tail", "--after", str(at), "--limit", "1", "--json") for at in range(3)]
    assert "".join(parts) == whole


def test_tail_prints_what_becomes_visible_while_it_waits(writer):
    made = threading.Timer(1.0, lambda: writer.write({"aircraft": {"N1": {"carrier": "AA", "flights": 7}}}))
    made.start()
    found = lines(run(writer, "tail", "--limit", "1", "--for", f"{WAIT_S}s", "--json", "--table", "aircraft"))
    made.join()
    assert [line.get("key", line.get("changes")) for line in found] == ["N1", 1]


def test_tail_ends_in_time_and_holds_nothing_then(writer):
    assert run(writer, "tail", "--for", "1") == ""
    assert writer.driver.store.leases() == []


def test_tail_holds_each_version_until_it_holds_the_next_one(writer, monkeypatch):
    """It let go of a version before it took it again: a retirement in between ended it."""
    release = SqliteStore.release

    def released(store, lease_id):
        release(store, lease_id)
        writer.driver.store.announce(3)  # as far as the leases that are left let it

    monkeypatch.setattr(SqliteStore, "release", released)
    found = lines(run(writer, "tail", "--after", "1", "--limit", "2", "--json"))
    assert [line["version"] for line in found if "changes" in line] == [2, 3]
    assert writer.driver.store.leases() == []


def test_tail_refuses_what_it_cannot_do(writer):
    assert "the visible version of namespace flights is 3" in run(writer, "tail", "--after", "4", code=2)
    assert "it must be a duration" in run(writer, "tail", "--for", "soon", code=2)
    writer.driver.store.announce(3)
    assert "the oldest that can be read is 3" in run(writer, "tail", "--after", "1", "--limit", "1", code=11)


def test_tail_ends_cleanly_when_it_is_interrupted(writer):
    """Ctrl-C: exit code 0, and how to go on; no traceback."""
    program = "from tidegate.cli import main; main()"
    command = [sys.executable, "-c", program, "tail", "--after", "2", "--json", *writer.options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, env=os.environ) as running:
        while "changes" not in json.loads(running.stdout.readline()):
            pass
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=WAIT_S)
    assert running.returncode == 0
    # The signal may come before the end line counts as told: then version 3 is told once more.
    told = told.splitlines()[-1]  # the first line warns of the number alone
    after = r"(2|3:[0-9a-f]{32}:[0-9a-f]{32})"
    again = f"`tidegate tail --after {after} --namespace flights`"
    assert re.fullmatch(f"tidegate: stopped; {again} continues from there", told)


# -- scan -----------------------------------------------------------------------------------------


def test_scan_by_the_beginning_of_keys(writer):
    assert lines(run(writer, "scan", "legs", "--prefix", "E", "--json")) == [
        {"key": ["EWR", 1545], "value": {"dest": "IAH"}}
    ]
    assert run(writer, "scan", "notes", "--prefix", "0x00").endswith("plain bytes\n")
    assert lines(run(writer, "scan", "airports", "--prefix", "X", "--json")) == []


def test_scan_writes_parquet(writer, tmp_path):
    file = tmp_path / "a.parquet"
    told = json.loads(run(writer, "scan", "airports", "--at", "1", "--parquet", str(file), "--json"))
    assert (told["rows"], told["version"]) == (2, 1)
    rows = pq.read_table(file).sort_by("origin").to_pylist()
    assert rows[0] == {"origin": "EWR", "departures": 1, "delay": 2.0}
    assert [path.name for path in tmp_path.glob("*parquet*")] == ["a.parquet"]


def test_a_parquet_file_is_there_only_when_it_is_whole(writer, tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", broken)
    file = tmp_path / "a.parquet"
    assert "No space left" in run(writer, "scan", "airports", "--parquet", str(file), code=2)
    assert not list(tmp_path.glob("*parquet*"))
