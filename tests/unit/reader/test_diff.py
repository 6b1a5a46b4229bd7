"""What differs between two versions, as readers get it, and `tidegate diff`."""

import json

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.cli import app
from tidegate.errors import ConfigError, SnapshotExpiredError
from tidegate.options import Options
from tidegate.reader.diff import as_shown
from tidegate.sinks import diff
from tidegate.testing.example import Example

UA1, UA2 = {"carrier": "UA", "flights": 1}, {"carrier": "UA", "flights": 2}


def told(changes):
    return sorted((one.kind, one.table, one.key, one.before, one.after) for one in changes)


def test_a_diff_names_what_was_added_removed_and_changed(gate):
    assert told(gate.diff(1, 3, ["aircraft"])) == [
        ("changed", "aircraft", "N14228", UA1, UA2),
        ("removed", "aircraft", "N24211", UA1, None),
    ]
    assert told(gate.diff(3, 1, "aircraft")) == [
        ("added", "aircraft", "N24211", None, UA1),
        ("changed", "aircraft", "N14228", UA2, UA1),
    ]
    assert told(gate.diff(1, tables=["legs", "notes"])) == [
        ("added", "notes", b"\x00\x01", None, b"plain bytes")
    ]


def test_a_diff_from_the_beginning_is_the_version(gate):
    with gate.snapshot(version=2) as snapshot:
        there = {
            (name, key): value for name in snapshot.tables() for key, value in snapshot.table(name).scan()
        }
    assert {(one.table, one.key): one.after for one in gate.diff(0, 2)} == there
    assert {one.kind for one in gate.diff(2, 0)} == {"removed"}


def test_a_diff_counts_without_decoding(gate):
    counts = gate.diff(1, 3).counts()
    assert counts["aircraft"] == (0, 1, 1)
    assert counts["legs"] == (0, 0, 0)
    assert gate.diff(2, 2).counts() == dict.fromkeys(gate.tables(), (0, 0, 0))


def test_a_derived_row_that_readers_see_unchanged_is_no_difference():
    """Red before: an order of amount 0 came to a customer, and the sum was ``changed`` from 5 to 5."""
    five, same = b'{"a":5,"~":[1,[1,"5"]]}', b'{"a":5,"~":[2,[2,"5"]]}'
    rows = [(five, same), (five, b'{"a":6,"~":[2,[2,"6"]]}'), (None, five), (five, None), (b'{"~":[1]}',) * 2]
    columns = [[b"%d" % at for at in range(5)], *zip(*rows, strict=True)]
    batch = pa.record_batch([pa.array(each, pa.binary()) for each in columns], diff.DIFFERENCES)
    assert as_shown(batch)["key"].to_pylist() == [b"1", b"2", b"3"]


def test_a_diff_holds_its_versions_until_it_ends(gate):
    with gate.diff(1, 3) as found:
        next(found)
        assert sorted(one.version for one in gate._reader.store.leases()) == [1, 3]
    assert gate._reader.store.leases() == []
    assert next(found, None) is None
    unread = gate.diff(1, 3)
    unread.close()
    assert list(unread) == []
    list(gate.diff(1, 3))
    assert gate._reader.store.leases() == []


def test_a_diff_refuses_what_is_not_there(gate, tmp_path):
    with pytest.raises(ConfigError, match="not visible yet"):
        next(gate.diff(1, 4))
    with pytest.raises(ConfigError, match="no table 'x' at version 1 nor at 3"):
        next(gate.diff(1, 3, ["x"]))
    with pytest.raises(ConfigError, match="version is -1"):
        gate.diff(-1, 3)
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=Options(key_groups=2))
    for flights in range(3):
        example.write({"aircraft": {"N1": {"carrier": "UA", "flights": flights}}})
    example.driver.store.announce(2)
    with tidegate.connect(f"sqlite://{tmp_path}/store", "flights") as other:
        with pytest.raises(SnapshotExpiredError):
            next(other.diff(1, 3))
        assert other.diff(2, 3).counts() == {"aircraft": (0, 0, 1)}
    example.close()


def test_a_diff_reads_what_was_written_in_between_only_i11(gate, monkeypatch):
    """No scan of a whole version, unless a table was emptied or its rows expire."""
    monkeypatch.setattr(diff, "_side_by_side", None)
    assert len(list(gate.diff(1, 3, ["aircraft", "legs"]))) == 2
    with pytest.raises(TypeError):
        list(gate.diff(0, 3, ["aircraft"]))


# -- the command ----------------------------------------------------------------------------------


def run(store, *arguments, code=0):
    options = [f"--store={store}", "--namespace=flights"]
    result = CliRunner().invoke(app, [*arguments, *options], prog_name="tidegate")
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_diff_prints_rows(flights):
    assert run(flights, "diff", "1", "2", "--table", "aircraft").splitlines() == [
        "kind\ttable\tkey\tbefore\tafter",
        'changed\taircraft\tN14228\t{"carrier":"UA","flights":1}\t{"carrier":"UA","flights":2}',
    ]
    lines = [json.loads(line) for line in run(flights, "diff", "2", "--json").splitlines()]
    assert {"table": "aircraft", "key": "N24211", "kind": "removed", "before": UA1, "after": None} in lines
    assert len(lines) == 2


def test_diff_counts(flights):
    assert "airports\t1\t0\t1" in run(flights, "diff", "1", "3", "--stat").splitlines()
    counts = json.loads(run(flights, "diff", "1", "3", "--stat", "--json"))
    assert counts["aircraft"] == {"added": 0, "removed": 1, "changed": 1}


def test_versions_may_be_named_by_a_time(flights, gate):
    for info in gate.history():
        when = info.decided_at.isoformat()
        got = json.loads(run(flights, "get", "aircraft", "N14228", "--at", when, "--json"))
        assert got["version"] == info.version
    assert run(flights, "diff", when, "2099-01-01") == "kind\ttable\tkey\tbefore\tafter\n"
    assert "had no version at 2000-01-01" in run(
        flights, "get", "aircraft", "N1", "--at", "2000-01-01", code=2
    )


@pytest.mark.parametrize("text", ["x", "0", "-1", "2026-13-01", "", "9" * 20])
def test_what_is_no_version_is_refused(flights, text):
    assert "no version" in run(flights, "scan", "aircraft", f"--at={text}", code=2)
