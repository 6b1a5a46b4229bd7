"""`tidegate torture` on files: a part of the crash table, its report, how it ends, how it is resumed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.base import failpoints
from tidegate.cli import app
from tidegate.errors import ConfigError
from tidegate.options.durations import duration_us
from tidegate.sinks.sqlite.disk.folder import MARK
from tidegate.torture import run
from tidegate.torture.cell.stray_requests import STRAYS
from tidegate.torture.driver.driver import AGED_BATCHES
from tidegate.torture.driver.faults import FAULTS, OUTSIDE, SPARK
from tidegate.torture.driver.side_work import REPAIRS
from tidegate.torture.outcome import RESULTS
from tidegate.torture.report.report import PLANNED, facts_of, page_of, verdict_of, write
from tidegate.torture.run import torture
from tidegate.torture.schedule import FINISHES, cell_of

ROOT = Path(__file__).parents[2]
WAIT_S = 90.0
# Many processes, on a machine that may be busy; what a run of cells proved is looked at by one worker.
pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("torture")]

PART = [
    "open.before_append:late:second",
    "open.after_claim:stop:second",
    "stage.before_ack:attempts:second",
    "manifest.after_write:other-rows:same",
    "decide.before_append:lost:same",
    "decide.before_append:late:recover",
    "decide.after_append:kill:recover",
    "apply.after_chunk:stop:second",
    "apply.before_chunk:forgotten:same",
    "seal.after:twice:same",
    "seal.after:clock-ahead:second",
    "decide.before_append:clock-back:recover",
    "decide.before_append:full:same",
    "apply.before_chunk:full:second",
    "publish.before:raise:same",
    "publish.before:late:second",
    "publish.before:stop:claimed",
    "pipeline.before_complete:kill:second",
    "fill.after_group:kill:recover",
    "repair.after_version:kill:same",
    "publish.after:old-checkpoint:second",
    "commit.before_return:new-checkpoint:same",
    "retire.after_group:stop:second",
    "trim.after_decisions:io:recover",
]
"""A cell of every fault that files have, of every way, at most steps of the protocol."""


@pytest.fixture(scope="session")
def urls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torture")
    return f"file://{folder}/wal", f"sqlite://{folder}/store"


def left_over(urls):
    """Every file of every namespace that is still there; the mark of a folder of stores is none."""
    folder = Path(urls[0].removeprefix("file://")).parent
    return [path for path in folder.rglob("*") if path.is_file() and path.name != MARK]


def command(urls, *more):
    return ["torture", "--wal", urls[0], "--store", urls[1], *more]


# -- the crash table ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(urls, tmp_path_factory):
    return torture(*urls, seed=11, only=PART, folder=tmp_path_factory.mktemp("report"), cell_s=120)


def test_the_part_has_every_fault_and_way_that_files_have():
    cells = [cell_of(text) for text in PART]
    elsewhere = {"net-lost", "net-late", *OUTSIDE, *SPARK}
    assert {cell.fault for cell in cells} == FAULTS.keys() - elsewhere
    assert {cell.finish for cell in cells} == set(FINISHES)


def test_a_part_of_the_crash_table_is_proven(report):
    wrong = [(str(o.cell), o.result, o.findings, o.unproven) for o in report.totals.wrong]
    assert wrong == []
    assert report.totals.all_proven
    assert sorted(str(o.cell) for o in report.totals.outcomes) == sorted(f"{text}:1" for text in PART)


def test_something_was_looked_at_in_every_cell(report):
    for outcome in report.totals.outcomes:
        counts = Counter(outcome.counts)
        assert counts["offers"] >= 5, outcome
        assert min(counts["reads"], counts["looks"], counts["rows verified"]) > 0, outcome
        assert counts["stray requests"] == len(STRAYS)


def test_every_history_is_kept(report):
    for outcome in report.totals.outcomes:
        names = {path.name for path in (report.folder / outcome.history).glob("*.jsonl")}
        assert names >= {"driver-1.jsonl", "driver-2.jsonl", "readers.jsonl", "run.jsonl"}


def test_readers_of_all_kinds_were_there(report):
    kinds = set()
    for path in report.folder.glob("cells/*/readers.jsonl"):
        kinds |= set(re.findall(r'"kind":"(\w+)"', path.read_text()))
    assert kinds == {"latest", "pinned", "scan", "aio", "behind", "second"}


def test_what_repairs_put_back_is_noted(report):
    repairing = [outcome for outcome in report.totals.outcomes if outcome.cell.side_work == REPAIRS]
    assert repairing
    for outcome in repairing:
        told = [path.read_text() for path in (report.folder / outcome.history).glob("*.jsonl")]
        assert '"event":"put_back"' in "".join(told), outcome.cell


def test_the_log_of_every_cell_was_trimmed_before_the_fault(report):
    """All of these; a cell at the first open of a namespace may have nothing to trim."""
    for outcome in report.totals.outcomes:
        told = (report.folder / outcome.history / "driver-0.jsonl").read_text()
        assert told.count('"event":"returned"') == AGED_BATCHES, outcome.cell


def test_nothing_is_left_behind(report, urls):
    assert left_over(urls) == []


def test_the_report_says_it_all(report):
    as_json, as_html = write(report)
    facts = json.loads(as_json.read_bytes())
    assert facts["all_proven"] is True
    assert facts["results"] == {"proven": len(PART)}
    assert len(facts["outcomes"]) == len(PART)
    page = as_html.read_text()
    assert f"Every promise held: {len(PART)} cells, all proven." in page
    assert "publish.before" in page
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r'(?:src|href)="(?!cells/)', page), "the page loads something from elsewhere"


# -- how it is asked for ----------------------------------------------------------------------------------


def test_a_run_is_resumed_where_it_ended(urls, tmp_path):
    folder = tmp_path / "r"
    first = torture(*urls, seed=5, cells=2, faults=["kill"], workloads=["marker"], folder=folder)
    assert len(first.totals.outcomes) == 2
    more = torture(*urls, cells=1, resume=folder)
    assert (more.asked.seed, more.asked.faults) == (5, ("kill",))
    assert len({str(outcome.cell) for outcome in more.totals.outcomes}) == 3
    assert (folder / "outcomes.jsonl").read_text().count("\n") == 3


def test_a_run_is_not_resumed_elsewhere(urls, tmp_path):
    folder = tmp_path / "r"
    torture(*urls, seed=5, only=["publish.before:kill:same"], workloads=["marker"], folder=folder)
    with pytest.raises(ConfigError, match="resume it there"):
        torture(urls[0], "sqlite:///elsewhere", resume=folder)
    for other in ({"seed": 6}, {"only": ["publish.before:kill:same"]}, {"faults": ["kill"]}):
        with pytest.raises(ConfigError, match="keeps its seed"):
            torture(*urls, resume=folder, **other)
    with pytest.raises(ConfigError, match="not the folder of a run"):
        torture(*urls, resume=tmp_path)


@pytest.mark.parametrize(
    "more,message",
    [
        (["--faults", "kil"], "unknown fault kil"),
        (["--workloads", "bnak"], "unknown workload bnak"),
        (["--only", "publish.before"], "is not a cell"),
        (["--duration", "soon"], "--duration"),
        (["--cells", "0"], "cells is 0"),
        (["--jobs", "99"], "jobs is 99"),
        (["--report", "."], "is not empty"),
        (["--cell-deadline", "1s"], "deadline"),
    ],
)
def test_what_does_not_fit_is_a_user_error(urls, more, message):
    done = CliRunner().invoke(app, command(urls, *more))
    assert done.exit_code == 2
    assert message in done.stderr
    assert left_over(urls) == []


def test_the_durations_that_are_shown_as_examples_are_durations():
    """They were not: 10m may be months, and is refused."""
    told = CliRunner().invoke(app, ["torture", "--help"], env={"COLUMNS": "200"}).stdout
    told += (ROOT / "docs" / "torture.md").read_text()
    shown = re.findall(r"--duration (\d\w*)", told) + re.findall(
        r"\d+\w+", told.partition("for this time: ")[2][:30]
    )
    assert len(shown) >= 5
    for each in shown:
        assert duration_us("--duration", each)


def test_a_cell_that_cannot_be_had_is_a_user_error(urls):
    for cell in (
        "publish.before:net-lost:same",
        "publish.before:server:same",
        "trim.after_blobs:clock-back:same",
    ):
        with pytest.raises(ConfigError, match="cannot be run"):
            torture(*urls, only=[cell])


def test_a_password_among_the_options_rules_out_what_the_proxy_does(tmp_path, monkeypatch):
    """What it brings over a connection of its own was refused, and the cell called proven all the same."""
    monkeypatch.setattr(run, "_check_reachable", lambda *_: None)
    where = "file:///nowhere/wal", "redis://127.0.0.1:1/0"
    login = {"store_options": {"password": "s3cret"}}
    with pytest.raises(ConfigError, match="does not log in"):
        torture(*where, only=["publish.before:net-lost:same"], folder=tmp_path / "r", **login)
    assert not (tmp_path / "r").exists()
    report = torture(*where, faults=["net-late"], folder=tmp_path / "r", **login)
    assert report.totals.outcomes == []
    assert "does not log in" in report.skipped[0].reason


def planned(tmp_path, begin, end="", name="cut", **more):
    """A plan of one fault, whose commands are lines of a shell."""
    path = tmp_path / "plan.toml"
    lines = {"name": name, "begin": f"sh -c '{begin}'"} | ({"end": f"sh -c '{end}'"} if end else {}) | more
    path.write_text("[[fault]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items()))
    return path


def test_a_fault_of_a_plan_begins_at_the_failpoint_and_is_ended(urls, tmp_path):
    """The driver runs on meanwhile: with the same driver its batch is visible before the fault's end."""
    marks = tmp_path / "marks"
    plan = planned(tmp_path, f"echo begin >> {marks}", f"echo end >> {marks}", hold_s=0.5)
    only = ["publish.before:cut:second", "apply.after_chunk:cut:same", "open.after_claim:cut:claimed"]
    report = torture(*urls, only=only, cluster=plan, folder=tmp_path / "r")
    assert report.totals.all_proven, report.totals.wrong
    assert marks.read_text().split() == ["end", *["begin", "end"] * 3], (
        "a run begins with the end of each fault"
    )
    assert f" --cluster {plan} --only publish.before:cut:second:1 " in page_of(report)
    assert PLANNED in page_of(report)


@pytest.mark.parametrize("end", ["", "exit 4"])
def test_a_command_that_fails_ends_the_run_and_names_the_step(urls, tmp_path, end):
    plan = planned(tmp_path, "echo no such host; exit 255" if not end else "true", end)
    with pytest.raises(ConfigError, match="run its end by hand") as raised:
        torture(*urls, only=["publish.before:cut:second"], cluster=plan, folder=tmp_path / "r")
    assert ("no such host" in str(raised.value)) is not bool(end)


@pytest.mark.parametrize(
    "text, problem",
    [
        ("fault = 3", "is no plan"),
        ("[[fault]]\nname = 'x'", "begin"),
        ("[[fault]]\nname = 'x'\nbegin = 'true'\nhold = 3", "hold"),
        ("[[fault]]\nname = 'x'\nbegin = ''", "set begin"),
        ("[[fault]]\nname = 'x'\nbegin = \"sh -c 'x\"", "is no command"),
        ("[[fault]]\nname = 'X y'\nbegin = 'true'", "a-z"),
        ("[[fault]]\nname = 'kill'\nbegin = 'true'", "another one"),
        ("[[fault]]\nname = 'x'\nbegin = 'true'\n" * 2, "another one"),
        ("[[fault]]\nname = 'x'\nbegin = 'true'\nhold_s = 31", "hold_s"),
        ("[[fault]]\nname = 'x'\nbegin = 'true'\nhold_s = nan", "hold_s"),
        ("fault = []", "0 faults"),
    ],
)
def test_what_is_no_plan_is_refused_before_anything_is_written(urls, tmp_path, text, problem):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        torture(*urls, cluster=path, folder=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_run_with_a_plan_is_resumed_with_it(urls, tmp_path):
    plan = planned(tmp_path, "true", hold_s=0)
    torture(*urls, faults=["cut"], cells=1, cluster=plan, folder=tmp_path / "r")
    with pytest.raises(ConfigError, match="give its --cluster again"):
        torture(*urls, resume=tmp_path / "r", cells=1)
    report = torture(*urls, resume=tmp_path / "r", cells=1, cluster=plan)
    assert len(report.totals.outcomes) == 2
    assert report.all_proven


def test_a_long_run_keeps_no_endless_histories(urls, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "HISTORIES_BYTES", 1)
    report = torture(*urls, only=["publish.before:raise:same"], workloads=["marker"], folder=tmp_path / "r")
    (outcome,) = report.totals.outcomes
    assert (outcome.result, outcome.history) == ("proven", "")
    assert list((tmp_path / "r" / "cells").iterdir()) == []


def test_memory_is_no_place_for_processes():
    with pytest.raises(ConfigError, match="memory is not shared"):
        torture("memory://w", "memory://s")


def test_a_password_is_never_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_check_reachable", lambda *_: None)
    told = []
    url = "redis://user:s3cret@127.0.0.1:1/0"
    report = torture(
        "file:///nowhere/wal",
        url,
        seed=1,
        faults=["server"],
        folder=tmp_path / "r",
        begun=lambda asked, _: told.append(repr(asked)),
    )
    assert report.totals.outcomes == []
    texts = [repr(facts_of(report)), page_of(report), report.command, verdict_of(report), *told]
    texts += [path.read_text() for path in report.folder.rglob("*") if path.is_file()]
    assert "s3cret" not in "".join(texts)
    assert "nothing is proven" in verdict_of(report)
    assert not report.all_proven
    page = page_of(report)
    assert "--seed 1 --faults server --duration 60s --jobs 2</code>" in page
    counted = dict(re.findall(r"<th>([a-z ]+)</th><td class=number>([\d,]+)</td>", page))
    assert counted == dict.fromkeys(RESULTS, "0") | {
        "not run": "0",
        "not possible": f"{len(failpoints.NAMES) * len(FINISHES):,}",
    }


# -- how it is ended ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_cleans_up_and_says_what_it_has(tmp_path, number):
    urls = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    argv = [sys.executable, "-c", "from tidegate.cli import main; main()", *command(urls, "--duration", "1h")]
    with subprocess.Popen(
        [*argv, "--report", str(tmp_path / "r")], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            end = time.monotonic() + WAIT_S
            while not list(tmp_path.glob("r/cells/*/driver-1.jsonl")):
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.01)
            os.kill(process.pid, number)
            told, _ = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "was interrupted" in told
    assert (tmp_path / "r" / "report.html").exists()
    paths = [path for name in ("wal", "store") for path in (tmp_path / name).rglob("*")]
    assert [path for path in paths if path.is_file() and path.name != MARK] == []


def test_a_clock_that_steps_when_all_is_decided(urls, tmp_path):
    """With this seed too few writes are left for the driver: it has to die when it is through."""
    cell = "pipeline.after_complete:clock-back:claimed"
    found = torture(*urls, seed=40, only=[cell], folder=tmp_path, cell_s=120)
    assert found.all_proven, verdict_of(found)
