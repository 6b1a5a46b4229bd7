"""Too slow is not wrong: who had no answer in time leaves a cell unproven, and what was seen still counts."""

import itertools
import threading
from pathlib import Path

import msgspec
import pytest

from tidegate.errors import (
    CorruptError,
    FencedError,
    IncompleteError,
    OutcomeUnknownError,
    StoreNotVerifiedError,
    StoreUnavailableError,
    WalUnavailableError,
)
from tidegate.sinks.records import CatalogEntry, Pointer
from tidegate.testing.arrow_barrier import batch
from tidegate.torture.cell import cell as cells
from tidegate.torture.cell import jobs, readers, stray_requests
from tidegate.torture.cell.cell import Setting, run_cell
from tidegate.torture.cell.expectations import Seen
from tidegate.torture.cell.jobs import Judged
from tidegate.torture.driver import driver
from tidegate.torture.driver.driver import Where
from tidegate.torture.driver.timeouts import HUNG, exit_code_of
from tidegate.torture.history.files import Recorder
from tidegate.torture.judge.check import check
from tidegate.torture.outcome import Finding
from tidegate.torture.schedule import cell_of
from write_histories import held, offered, read, returned, rows, write

CELL = cell_of("publish.before:raise:same")
SLOW = "StoreUnavailableError: version 3 is decided, but its flip could not be confirmed"
WRONG = Finding(rule="atomic", invariant="I1", what="a row is missing")


class Ended:
    """Stands for the processes of a cell: each has ended as the play says, and made an old namespace well."""

    def __init__(self, play):
        self._play = play

    def __call__(self, work, args, output):
        code, told = self._play.get(work, (0, "")) if output.stem != "driver-0" else (0, "")
        output.write_text(told)
        if work in {jobs.look, jobs.judge} and (result := self._play.get("result of", {}).get(work)):
            Path(args[2 if work is jobs.judge else 1]).write_bytes(msgspec.json.encode(result))
        if work is driver.main:
            Path(output.parent.parent, "driver-1.jsonl").write_text('{"event":"fault"}')
        return _Process(code, output)


class _Process:
    def __init__(self, code, output):
        self.exit_code, self.output = code, output

    def wait(self, _):
        return self.exit_code is not None

    def send(self, _):
        pass

    def kill(self):
        self.exit_code = -9


@pytest.fixture
def came_to(tmp_path, monkeypatch):
    """``came_to(play)``: what a cell comes to whose processes end so; all well where nothing is said."""

    def run(play, visible=4, decided=4, judged=None):
        results = {jobs.look: Seen(visible, 1, decided), jobs.judge: judged or Judged()}
        monkeypatch.setattr(cells, "Forked", Ended({"result of": results} | play))
        setting = Setting(
            wal="file:///w",
            store="sqlite:///s",
            wal_options={},
            store_options={},
            allow_unsafe=False,
            prefix="torture-x",
            folder=str(tmp_path),
            seed=1,
            workloads=("marker",),
            deadline_s=0.05,
            plan=(),
            keep=False,
        )
        return run_cell(setting, CELL, threading.Event())

    return run


def test_when_all_is_well_it_is_proven(came_to):
    assert came_to({}).result == "proven"


@pytest.mark.parametrize("error", [OutcomeUnknownError, WalUnavailableError, StoreUnavailableError])
def test_a_driver_without_an_answer_proves_nothing_and_is_told_what_to_do(came_to, error):
    outcome = came_to({driver.main: (error.exit_code, f"noise\n{error.__name__}: it took too long\n")})
    assert (outcome.result, outcome.findings) == ("unproven", ())
    (why,) = outcome.unproven
    assert why.startswith(f"driver-1 had no answer in time: {error.__name__}: it took too long; ")
    assert "timeout_s" in why
    assert "--jobs 1" in why


def test_what_was_seen_wrong_counts_though_the_store_was_slow(came_to):
    outcome = came_to({driver.main: (7, SLOW)}, judged=Judged(findings=(WRONG,)))
    assert (outcome.result, outcome.findings) == ("violated", (WRONG,))
    assert SLOW in outcome.unproven[0]


def test_what_was_decided_has_to_be_finished_by_whoever_comes_later(came_to):
    """I4: else any driver that leaves its versions lying about could say that the store was slow."""
    outcome = came_to({driver.main: (7, SLOW)}, visible=3, decided=4)
    assert [(found.rule, found.seen) for found in outcome.findings] == [("finish", "version 3 visible")]
    assert outcome.result == "violated"


def test_it_cannot_be_finished_either_while_nothing_answers(came_to):
    outcome = came_to({driver.main: (7, SLOW), jobs.recover: (7, f"error: {SLOW}")})
    assert (outcome.result, len(outcome.unproven)) == ("unproven", 2)
    assert came_to({driver.main: (7, SLOW), jobs.recover: (14, "CorruptError")}).result == "violated"


@pytest.mark.parametrize("error", [IncompleteError, FencedError, CorruptError])
def test_other_errors_are_findings(came_to, error):
    assert came_to({driver.main: (error.exit_code, error.__name__)}).result == "violated"


def test_readers_that_do_not_end_are_slow_and_readers_that_die_are_wrong(came_to):
    slow = came_to({readers.main: (HUNG, "Thread 0x1 (most recent call first):")})
    assert (slow.result, slow.findings) == ("unproven", ())
    assert "a round of reads did not end" in slow.unproven[0]
    assert came_to({readers.main: (1, "Traceback")}).result == "violated"


def test_a_judge_that_does_not_end_has_judged_the_history_before(came_to):
    outcome = came_to({jobs.judge: (None, "")}, judged=Judged(findings=(WRONG,)))
    assert outcome.result == "violated"
    outcome = came_to({jobs.judge: (None, "")})
    assert outcome.result == "unproven"
    assert "--cell-deadline" in outcome.unproven[0]


def test_a_namespace_that_cannot_be_dropped_in_time(came_to):
    slow = came_to({jobs.drop: (7, SLOW)})
    assert (slow.result, slow.findings) == ("unproven", ())
    assert "could not be dropped" in slow.unproven[0]
    assert came_to({jobs.drop: (14, "CorruptError: a file")}).result == "violated"


def test_an_exit_code_tells_what_is_behind_an_error():
    """Rows that the store had acknowledged and lost are no matter of time."""

    def chain(*errors):
        for error, cause in itertools.pairwise(errors):
            error.__cause__ = cause
        return errors[0]

    assert exit_code_of(StoreUnavailableError("x")) == StoreUnavailableError.exit_code
    assert exit_code_of(chain(StoreUnavailableError("x"), OSError("y"))) == StoreUnavailableError.exit_code
    lost = chain(StoreUnavailableError("x"), StoreUnavailableError("y"), IncompleteError("z"))
    assert exit_code_of(lost) == IncompleteError.exit_code


# -- the judge, with a store that is away -----------------------------------------------------------------


AWAY = {"timeout_s": 0.2}


@pytest.mark.parametrize("wrong", [False, True])
def test_a_history_is_judged_though_the_store_is_away(tmp_path, wrong):
    lines = [offered(1, 0, rows(a=1)), returned(1, 1), held(1), read(a=2 if wrong else 1)]
    history, result = write(tmp_path, *lines), tmp_path / "verdict.json"
    where = Where(f"file://{tmp_path}/wal", "redis://127.0.0.1:1/0", "torture-x", {}, AWAY)
    assert jobs.judge(msgspec.json.encode(where).decode(), str(history), str(result)) == 0
    judged = msgspec.json.decode(result.read_bytes(), type=Judged)
    assert bool(judged.findings) == wrong
    assert "StoreUnavailableError" in judged.unproven[0]
    assert "timeout_s" in judged.unproven[0]


def test_who_looks_ends_with_the_code_of_its_error(tmp_path, capsys):
    where = Where(f"file://{tmp_path}/wal", "redis://127.0.0.1:1/0", "torture-x", {}, AWAY)
    code = jobs.look(msgspec.json.encode(where).decode(), str(tmp_path / "seen"))
    assert code == StoreUnavailableError.exit_code
    assert "StoreUnavailableError" in capsys.readouterr().out


def test_a_stray_request_without_an_answer_is_not_taken_for_refused():
    class Silent:
        """A store that does not say what became of a flip."""

        def pointer(self):
            return Pointer(1, "d", 1)

        def catalog(self, *_):
            return [CatalogEntry(1, "d", "attempt", batch("query-1", 0, "offsets"), 1, {}, {})]

        def publish(self, *_):
            raise StoreUnavailableError("no answer")

    with pytest.raises(StoreUnavailableError):
        stray_requests.send(Silent())


def test_corrupt_bytes_are_no_open_question(tmp_path, monkeypatch):
    def corrupt(*_):
        raise CorruptError("the manifest's checksum does not fit")

    monkeypatch.setattr(jobs, "verify", corrupt)
    history, result = write(tmp_path, offered(1, 0, rows(a=1)), returned(1, 1)), tmp_path / "verdict.json"
    where = Where(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", "torture-x", {}, {})
    assert jobs.judge(msgspec.json.encode(where).decode(), str(history), str(result)) == 0
    judged = msgspec.json.decode(result.read_bytes(), type=Judged)
    assert [(found.rule, found.invariant, found.seen) for found in judged.findings] == [
        ("verify", "I10", "corrupt")
    ]


def test_a_reader_that_fails_before_it_could_read_is_a_client_of_its_own(tmp_path, monkeypatch):
    """Its error is part of the history, which can be judged."""
    ending = threading.Event()

    def refused(*_):
        ending.set()
        raise StoreNotVerifiedError("its server restarted")

    monkeypatch.setattr(readers.tidegate, "connect", refused)
    plan = readers.Plan(
        where=Where("", "", "torture-x", {}, {}),
        folder=str(tmp_path),
        name="reader",
        seed="1",
        workloads=(),
        seconds_max=1.0,
    )
    with Recorder(tmp_path, "reader", role="reader") as recorder:
        readers.Reader("latest", plan, recorder, ending).run()
    verdict = check(tmp_path)
    assert set(verdict.errors) == {"StoreNotVerifiedError"}
    assert not verdict.findings
