"""A reader of the user's own in `tidegate torture`: it is judged, and ends with the cell."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.torture.cell.outside_reader import PID_FILE, end_left
from tidegate.torture.run import torture

CELL = "publish.before:kill:second"
BROKEN = Path(__file__).with_name("outside_readers.py")
REFERENCE = f"{sys.executable} -m tidegate.testing.conformance.reader"
# Each is a cell with processes of its own.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("torture")]


def outcome_of(reader, tmp_path):
    """The outcome of one cell with this reader, and the events that its process noted."""
    report = torture(
        f"file://{tmp_path}/wal",
        f"sqlite://{tmp_path}/store",
        seed=7,
        only=[CELL],
        workloads=("bank", "marker"),
        folder=tmp_path / "report",
        reader=reader,
    )
    (outcome,) = report.totals.outcomes
    lines = (tmp_path / "report" / outcome.history / "outside.jsonl").read_text().splitlines()
    return outcome, [json.loads(line) for line in lines]


def test_the_reference_reader_is_proven(tmp_path):
    outcome, events = outcome_of(REFERENCE, tmp_path)
    assert outcome.result == "proven", outcome
    assert {"looked", "snapshot", "closed", "read", "scanned"} <= {event["event"] for event in events}


def test_a_reader_of_two_versions_is_found_torn(tmp_path):
    outcome, _ = outcome_of(f"{sys.executable} {BROKEN} torn {tmp_path}/pid", tmp_path)
    assert outcome.result == "violated"
    assert "I1" in {finding.invariant for finding in outcome.findings}
    assert all("outside.jsonl:" in str(finding.events) for finding in outcome.findings), outcome.findings


@pytest.mark.parametrize("name, cause", [("dying", "exit code 3"), ("stubborn", "no reply within 5 s")])
def test_a_reader_that_fails_is_no_pass_and_is_gone(name, cause, tmp_path):
    outcome, _ = outcome_of(f"{sys.executable} {BROKEN} {name} {tmp_path}/pid", tmp_path)
    assert outcome.result == "violated"
    assert cause in outcome.findings[0].seen
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_reader_whose_driving_process_was_killed_is_ended(tmp_path):
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        (tmp_path / PID_FILE).write_text(str(process.pid))
        end_left(tmp_path)
        end_left(tmp_path)
        assert process.wait(10) == -signal.SIGKILL


def test_a_command_that_is_none_is_refused_before_the_first_cell(tmp_path):
    where = ["--wal", f"file://{tmp_path}/wal", "--store", f"sqlite://{tmp_path}/store"]
    told = CliRunner().invoke(app, ["torture", *where, "--only", CELL, "--reader", "no-such-program"])
    assert told.exit_code == 2
    assert "'no-such-program' is no program" in told.output
