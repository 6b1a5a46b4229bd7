"""What a notebook shows of commits, versions, snapshots and differences: a line, and a small table."""

from __future__ import annotations

import datetime

import pytest

import tidegate
from tidegate.observe.events import Commit, PhaseTime
from tidegate.testing.example import write_flights

AT = datetime.datetime(2026, 11, 21, 14, 0, tzinfo=datetime.timezone.utc)
LINE_MAX = 120


@pytest.fixture
def gate(request):
    place = f"memory://{request.node.name}"
    write_flights(wal=place, store=place)
    with tidegate.connect(place, namespace="flights") as gate:
        yield gate


def test_a_commit_has_one_line_and_a_table_without_its_trace():
    phases, rows = {"stage": 0.125, "apply": 0.1}, {"aircraft": 1200, "<b>": 3}
    trace = (PhaseTime("stage", 1, 0.125),)
    commit = Commit("flights", 7, 6, "sqlite", AT, 0.25, phases, rows, 9, 0, trace)
    assert repr(commit) == "<Commit of version 7 of flights, batch 6, 1,203 rows in 0.250 s>"
    table = commit._repr_html_()
    assert "<tr><th>rows</th><td>aircraft 1,200, &lt;b&gt; 3</td></tr>" in table
    assert "<td>stage 0.125 s, apply 0.100 s</td>" in table
    assert "PhaseTime" not in table


def test_a_skipped_commit_shows_only_what_is_known():
    skipped = Commit("flights", 7, 6, "sqlite")
    assert repr(skipped) == "<Commit of version 7 of flights, batch 6>"
    assert "rows" not in skipped._repr_html_()


def test_a_version_has_one_line_and_a_table(gate):
    info = gate.history()[0]
    line = repr(info)
    assert line.startswith(f"<VersionInfo of version {info.version}, {info.origin}, decided 20")
    assert line.endswith(f"Z, {sum(info.changes.values())} changes>")
    assert len(line) < LINE_MAX
    assert f"<tr><th>origin</th><td>{info.origin}</td></tr>" in info._repr_html_()


def test_a_snapshot_has_one_line_and_a_table_of_its_tables(gate):
    with gate.snapshot() as snapshot:
        assert repr(snapshot).startswith("<Snapshot of version 3, ")
        assert "<td>aircraft, airports, legs, notes</td>" in snapshot._repr_html_()
        assert "<tr><th>closed</th><td>false</td></tr>" in snapshot._repr_html_()
    assert "<tr><th>closed</th><td>true</td></tr>" in snapshot._repr_html_()


def test_a_difference_is_shown_without_a_read_of_its_rows(gate):
    diff = gate.diff(2, tables=["airports"])
    line = "<Diff of versions 2 and the newest of flights, tables: airports>"
    assert repr(diff) == line
    assert (
        "<tr><th>before</th><td>2</td></tr><tr><th>after</th><td>the newest</td></tr>" in diff._repr_html_()
    )
    assert [change.key for change in diff] == ["JFK"], "it took no row"
    assert repr(diff) == "<Diff of versions 2 and 3 of flights, tables: airports, closed>"
