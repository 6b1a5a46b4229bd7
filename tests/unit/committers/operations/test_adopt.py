"""Adopt: another checkpoint takes over only on a person's word, and whatever becomes of the append."""

import itertools

import pytest

from support.clocks import HandClock
from tidegate.base.clock import Clock
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import ensure_made, open_namespace
from tidegate.committers.operations.adopt import adopt
from tidegate.errors import (
    ConfigError,
    FencedError,
    LineageError,
    OutcomeUnknownError,
    WalUnavailableError,
)
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import BATCHES, Example
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Adopted, decode_record

NAMES = (f"adopt-{n}" for n in itertools.count())
OLD, NEW = "query-old", "query-new"


class FaultyLog:
    """Appends of Adopted go as told: 'lost' (written, no reply), 'dropped', 'ok', or a function."""

    def __init__(self, log, faults):
        self._log, self._faults = log, iter(faults)

    def __getattr__(self, name):
        return getattr(self._log, name)

    def append_decision(self, content):
        fault = "ok"
        if isinstance(decode_record(content, "test"), Adopted):
            fault = next(self._faults, "ok")
        if callable(fault):
            fault = fault() or "ok"
        if fault == "dropped":
            raise WalUnavailableError("nothing was written")
        appended = self._log.append_decision(content)
        if fault == "lost":
            raise OutcomeUnknownError("no reply")
        return appended


@pytest.fixture
def url():
    return f"memory://{next(NAMES)}"


@pytest.fixture
def example(url):
    example = Example(url, url, lineage=OLD)
    example.write(BATCHES[0])
    return example


def driver_of(url, faults=(), deadline=5.0):
    return Coordinator(
        Endpoints("flights", url, url),
        FaultyLog(open_log(url, "flights"), faults),
        open_store(url, "flights"),
        Options(decide_deadline_s=deadline),
        HandClock(Clock().now_us()),
    )


def records(driver):
    return [decode_record(entry.content, "test") for entry in driver.log.decisions()]


def adoptions(driver):
    return [record for record in records(driver) if isinstance(record, Adopted)]


def lineage_now(url):
    driver = driver_of(url)
    return driver.decisions.catch_up().lineage


def test_the_new_checkpoint_may_write_and_the_old_one_may_not(url, example):
    assert adopt(driver_of(url), NEW) == []
    again = Example(url, url, lineage=NEW)
    assert again.write(BATCHES[1]) == 2  # its batch 0, after version 1
    with pytest.raises(LineageError, match=f"this query is {OLD}"):
        open_namespace(driver_of(url), OLD)


def test_what_was_decided_under_the_old_checkpoint_becomes_visible_first(url, example, monkeypatch):
    from tidegate.sinks.memory.store import MemoryStore

    with monkeypatch.context() as patched:
        patched.setattr(MemoryStore, "publish", lambda *_: False)
        patched.setattr(example.driver, "clock", HandClock(Clock().now_us()))
        with pytest.raises(Exception, match="could not be confirmed"):
            example.write(BATCHES[1])
    driver = driver_of(url)
    assert adopt(driver, NEW) == [2]
    assert driver.store.pointer().visible == 2


def test_adopting_what_it_follows_already_appends_nothing(url, example):
    driver = driver_of(url)
    before = records(driver)
    assert adopt(driver, OLD) == []
    assert records(driver) == before


def test_before_the_first_batch(url):
    ensure_made(driver_of(url))
    assert adopt(driver_of(url), NEW) == []
    assert lineage_now(url) == NEW


def test_where_nothing_was_made_nothing_is_made(url):
    driver = driver_of(url)
    with pytest.raises(ConfigError, match="no namespace flights"):
        adopt(driver, NEW)
    assert records(driver) == []
    assert driver.store.identity() is None


@pytest.mark.parametrize("lineage", ["", " query", "query\n", "q" * 201])
def test_what_cannot_be_a_query_id_is_refused(url, example, lineage):
    driver = driver_of(url)
    before = records(driver)
    with pytest.raises(ConfigError, match="no query id"):
        adopt(driver, lineage)
    assert records(driver) == before


@pytest.mark.parametrize(
    "faults,expected",
    [
        (["lost"], 1),  # T25: it is there, only the reply was lost
        (["dropped"], 1),
        (["dropped", "dropped", "lost"], 1),
        (["ok"], 1),
    ],
)
def test_t25_whatever_becomes_of_the_append_the_fold_decides(url, example, faults, expected):
    driver = driver_of(url, faults)
    adopt(driver, NEW)
    assert len(adoptions(driver)) == expected
    assert lineage_now(url) == NEW


def test_a_copy_that_lands_late_does_not_undo_a_later_adoption(url, example):
    adopt(driver_of(url), NEW)
    (late,) = [
        entry.content
        for entry in driver_of(url).log.decisions()
        if isinstance(decode_record(entry.content, "test"), Adopted)
    ]
    adopt(driver_of(url), "query-third")
    driver = driver_of(url)
    driver.log.append_decision(late)  # a repeat of the first adoption
    assert driver.decisions.catch_up().lineage == "query-third"
    assert driver.decisions.view.void == 1


def test_a_driver_that_opens_in_between_wins_and_the_message_says_so(url, example):
    rival = driver_of(url)

    def open_now():
        open_namespace(rival, OLD)

    driver = driver_of(url, [open_now])
    with pytest.raises(FencedError, match=f"{rival.writer}.*follows {OLD}"):
        adopt(driver, NEW)
    assert lineage_now(url) == OLD


def test_a_silent_log_leaves_the_outcome_unknown(url, example):
    driver = driver_of(url, ["dropped"] * 1000)
    with pytest.raises(OutcomeUnknownError, match="tidegate status"):
        adopt(driver, NEW)
    assert lineage_now(url) == OLD


def test_a_log_that_cannot_be_read_for_a_while_is_asked_again(url, example, monkeypatch):
    driver = driver_of(url)
    silent = iter([True, True])

    def lost_and_silent():
        read = driver.log.decisions

        def decisions(position=0):
            if next(silent, False):
                raise WalUnavailableError("no answer")
            return read(position)

        monkeypatch.setattr(driver.log, "decisions", decisions, raising=False)
        return "lost"

    driver.log._faults = iter([lost_and_silent, "lost"])
    adopt(driver, NEW)
    assert lineage_now(url) == NEW
