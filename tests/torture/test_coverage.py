"""What a cell's history must hold before it proves anything."""

import errno
import threading

import msgspec
import pytest

from tidegate.errors import ConfigError, CorruptError, StoreUnavailableError
from tidegate.testing.process.forked import NO_ROOM
from tidegate.torture.cell import jobs, readers
from tidegate.torture.driver.driver import Where
from tidegate.torture.history import events
from tidegate.torture.history.files import Recorder
from tidegate.torture.judge.check import check
from tidegate.torture.judge.coverage import gaps
from write_histories import NAMESPACE, held, looked, offered, raised, read, returned, rows, write

COMMIT = (offered(1, 0, rows(a=1)), returned(1, 1))


def connected(kind, client):
    return events.Connected(client=client, namespace=NAMESPACE, kind=kind)


def answered(client):
    return events.Read(client=client, table="t", found={"a": 1}, began=0)


ENDED = events.Ended()


def test_who_read_after_the_last_commit_leaves_no_gap(tmp_path):
    write(tmp_path, *COMMIT, connected("scan", 2), answered(2), ENDED)
    assert list(gaps(tmp_path, ["p"], ["scan"])) == []


@pytest.mark.parametrize(
    "lines",
    [
        COMMIT,
        (*COMMIT, connected("scan", 2), connected("latest", 3), answered(3)),
        (connected("scan", 2), offered(2, 0, rows(a=1)), answered(2), returned(2, 1)),
    ],
    ids=["nobody", "another", "before"],
)
def test_a_kind_of_reader_that_read_nothing_proves_nothing(tmp_path, lines):
    write(tmp_path, *lines, ENDED)
    (gap,) = gaps(tmp_path, ["p"], ["scan"])
    assert "readers scan had no answer" in gap


@pytest.mark.parametrize("lines", [COMMIT, COMMIT[:1]])
def test_a_history_that_was_cut_behind_a_line_proves_nothing(tmp_path, lines):
    write(tmp_path, *lines)
    (gap,) = gaps(tmp_path, ["p"], [])
    assert "the history of p is cut short" in gap
    assert list(gaps(tmp_path, [], [])) == [], "a process that was killed could not say that it ended"


def test_a_history_that_is_gone_proves_nothing(tmp_path):
    write(tmp_path, *COMMIT, ENDED)
    (gap,) = gaps(tmp_path, ["p", "driver-2"], [])
    assert "the history of driver-2 is cut short" in gap


@pytest.mark.parametrize(
    "line",
    [raised(2, "CorruptError"), events.Failed(client=1, what="get", error="CorruptError", began=0)],
)
def test_nobody_is_told_that_something_is_damaged(tmp_path, line):
    write(tmp_path, *COMMIT, offered(2, 1, rows(a=2)), line, looked(1), held(1), read(a=1), ENDED)
    verdict = check(tmp_path)
    assert verdict.ok, "of another history: there damage may have been what was tried"
    (found,) = jobs._damage(verdict)
    assert (found.rule, found.invariant, found.seen) == ("error", "I10", "CorruptError")


class Rounds(readers.Reader):
    """A reader whose clients are refused as it is told."""

    def __init__(self, folder, *refusals):
        plan = readers.Plan(
            where=Where("file:///w", "sqlite:///s", NAMESPACE),
            folder=str(folder),
            name="r",
            seed="1",
            workloads=("marker",),
            seconds_max=1,
        )
        super().__init__("latest", plan, Recorder(folder, "r", role="reader"), threading.Event())
        self.refusals, self.rounds = list(refusals), 0

    def _one_client(self, round_of):
        self.connected()
        while self.another_round():
            if self.refusals and (error := self.refusals.pop(0)):
                raise error
            self.rounds += 1


@pytest.mark.parametrize("error", [CorruptError("x"), StoreUnavailableError("x"), ConfigError("x")])
def test_a_reader_that_is_refused_at_the_end_looks_once_more(tmp_path, error):
    reader = Rounds(tmp_path, error)
    reader.ending.set()
    reader.run()
    assert reader.rounds == 1
    told = (tmp_path / "r.jsonl").read_text()
    assert (f'"error":"{type(error).__name__}"' in told) is not isinstance(error, StoreUnavailableError)


def test_a_reader_that_is_refused_for_ever_ends(tmp_path):
    reader = Rounds(tmp_path, *[CorruptError("x")] * 100)
    reader.ending.set()
    reader.run()
    assert (reader.rounds, len(reader.refusals)) == (0, 100 - readers.LAST_TRIES)


def test_a_reader_waits_for_a_namespace_however_long_that_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LOOK_S", 0.0)
    reader = Rounds(tmp_path)
    tries, connect = [], reader._one_client

    def refused_first(round_of):
        tries.append(1)
        if len(tries) < 3 * readers.REFUSED_MAX:
            raise ConfigError("there is no such namespace here")
        reader.ending.set()
        connect(round_of)

    reader._one_client = refused_first
    reader.run()
    assert reader.rounds == 1


@pytest.mark.parametrize(
    "errors, code", [([OSError(errno.ENOSPC, "x")], NO_ROOM), ([OSError(errno.ENOSPC, "x"), ValueError()], 1)]
)
def test_readers_that_a_full_disk_ends_prove_nothing(tmp_path, monkeypatch, errors, code):
    left = list(errors)

    def ended(*_):
        raise left.pop() if left else OSError(errno.EDQUOT, "x")

    monkeypatch.setattr(readers.Reader, "run", ended)
    monkeypatch.setattr(readers.AsyncReader, "run", ended)
    monkeypatch.setattr(readers.signal, "signal", lambda *_: None)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    plan = msgspec.json.encode(Rounds(tmp_path).plan).decode().replace('"name":"r"', '"name":"s"')
    assert readers.main(plan) == code
