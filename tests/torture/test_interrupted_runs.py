"""A run of `tidegate torture` that is broken off: what is left of it, and how a resumed one goes on."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from support.wait import wait_until
from tidegate.errors import ConfigError
from tidegate.sinks.sqlite.disk.folder import MARK
from tidegate.testing.process.forked import NO_ROOM, Forked
from tidegate.torture.cell import cell as cells
from tidegate.torture.cell.cell import Unanswered
from tidegate.torture.outcome import UNPROVEN, Outcome
from tidegate.torture.run import torture

WAIT_S = 90.0
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("torture")]
CELL = "publish.before:kill:same"


@pytest.fixture
def urls(tmp_path):
    return f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"


def left_over(tmp_path):
    """The files of namespaces that are still there; the mark of a folder of stores is none."""
    paths = [path for name in ("wal", "store") for path in (tmp_path / name).rglob("*")]
    return [path for path in paths if path.is_file() and path.name != MARK]


@contextlib.contextmanager
def running(urls, folder, *more) -> Iterator[subprocess.Popen[str]]:
    """The command in a process group of its own, as a shell starts it."""
    argv = [sys.executable, "-c", "from tidegate.cli import main; main()"]
    argv += ["torture", "--wal", urls[0], "--store", urls[1], "--report", str(folder), *more]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            for pid in members(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def members(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, its_session = path.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


def outcomes(folder):
    path = folder / "outcomes.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Outcome) for line in lines]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("file", ["judge.txt", "drop.txt"])
def test_ctrl_c_in_a_terminal_reaches_all_processes_and_finds_nothing(urls, tmp_path, file):
    """The judge, or who drops a namespace, died of it: a cell was called violated, a namespace stayed."""
    folder = tmp_path / "r"
    with running(urls, folder, "--duration", "1h", "--jobs", "4", "--workloads", "marker") as process:
        wait_until(lambda: list(folder.glob(f"cells/*/work/{file}")), file)
        os.killpg(process.pid, signal.SIGINT)
        told, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "was interrupted" in told
    assert [(each.result, each.findings) for each in outcomes(folder) if each.result != "proven"] == []
    assert left_over(tmp_path) == []


def test_no_process_outlives_a_killed_run_not_even_one_that_is_stopped(urls, tmp_path):
    """They went on, in namespaces that a resumed run drops and uses again; a stopped one stayed for ever."""
    folder = tmp_path / "r"
    with running(urls, folder, "--only", "publish.before:stop:claimed", "--cell-deadline", "1h") as process:
        wait_until(lambda: list(folder.glob("cells/*/work/driver-2.txt")), "the first driver is stopped")
        assert len(members(process.pid)) > 3
        os.kill(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)
        wait_until(lambda: members(process.pid) == [], "every process has ended")


@pytest.mark.slow
def test_a_line_that_a_full_disk_tore_spoils_no_later_resume(urls, tmp_path):
    folder = tmp_path / "r"
    torture(*urls, seed=5, cells=1, faults=["kill"], workloads=["marker"], folder=folder)
    for name in ("outcomes.jsonl", "namespaces.txt"):
        path = folder / name
        path.write_bytes(path.read_bytes() + b'{"failpoint":"ab')
    assert len(torture(*urls, cells=1, resume=folder).totals.outcomes) == 2
    assert len(torture(*urls, cells=1, resume=folder).totals.outcomes) == 3
    assert left_over(tmp_path) == []


def test_a_line_that_is_no_outcome_is_named(urls, tmp_path):
    folder = tmp_path / "r"
    torture(*urls, seed=5, only=[CELL], workloads=["marker"], folder=folder)
    with (folder / "outcomes.jsonl").open("a") as file:
        file.write('{"failpoint":1}\n')
    with pytest.raises(ConfigError, match=r"outcomes.jsonl, line 2: .*remove the line"):
        torture(*urls, resume=folder)


def test_a_namespace_that_could_not_be_dropped_is_dropped_by_the_next_resume(urls, tmp_path, monkeypatch):
    folder = tmp_path / "r"
    drops = cells.drop_namespace

    def away(*_):
        raise Unanswered("the server is away")

    monkeypatch.setattr(cells, "drop_namespace", away)
    (outcome,) = torture(*urls, seed=5, only=[CELL], workloads=["marker"], folder=folder).totals.outcomes
    assert outcome.result == UNPROVEN
    assert "could not be dropped: the server is away" in outcome.unproven[0]
    assert left_over(tmp_path) != []
    monkeypatch.setattr(cells, "drop_namespace", drops)
    torture(*urls, resume=folder)
    assert left_over(tmp_path) == []


def test_what_a_resumed_run_would_not_do_is_refused(urls, tmp_path):
    folder = tmp_path / "r"
    torture(*urls, seed=5, only=[CELL], workloads=["marker"], folder=folder)
    with pytest.raises(ConfigError, match="keeps its seed, cells, faults and workloads"):
        torture(*urls, resume=folder, workloads=["bank"])
    with pytest.raises(ConfigError, match="leave --report out"):
        torture(*urls, resume=folder, folder=tmp_path / "other")


def test_a_run_that_is_going_on_is_not_resumed_beside(urls, tmp_path):
    """It would drop the namespaces that the other one works in."""
    folder = tmp_path / "r"
    refused = []

    def beside(*_):
        with pytest.raises(ConfigError, match="another process runs") as error:
            torture(*urls, resume=folder)
        refused.append(error)

    torture(*urls, seed=5, only=[CELL], workloads=["marker"], folder=folder, begun=beside)
    assert len(refused) == 1


NO_ROOM_THERE = Path.write_text, (Path("/dev/full"), "x")


def test_a_full_disk_under_the_report_breaks_no_promise(urls, tmp_path, monkeypatch):
    process = Forked(*NO_ROOM_THERE, tmp_path / "out.txt")
    assert process.wait(WAIT_S)
    assert process.exit_code == NO_ROOM
    starts = cells.Forked

    def full(work, args, output):
        return starts(*(NO_ROOM_THERE if output.stem == "driver-1" else (work, args)), output)

    monkeypatch.setattr(cells, "Forked", full)
    (outcome,) = torture(*urls, only=[CELL], workloads=["marker"], folder=tmp_path / "r").totals.outcomes
    assert (outcome.result, outcome.findings) == (UNPROVEN, ())
    (told,) = outcome.unproven
    assert "driver-1 could not write its history: OSError: [Errno 28] No space left on device" in told


def test_the_command_that_repeats_a_cell_is_not_refused(urls, tmp_path):
    report = torture(*urls, only=[CELL], workloads=["marker"], folder=tmp_path / "r", allow_unsafe=True)
    assert report.command.endswith(" --workloads marker --allow-unsafe")
