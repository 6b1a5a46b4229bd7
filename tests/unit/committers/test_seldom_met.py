"""What is seldom met: a log or store that fails, is empty, or was cut, where it hardly ever is."""

import json
import threading
import uuid

import pytest

from polling import wait_until
from tidegate.committers.apply import apply
from tidegate.committers.background import worker
from tidegate.committers.background.follower import Standing
from tidegate.committers.background.gauges import report_gauges
from tidegate.committers.background.membership import add_store
from tidegate.committers.background.worker import Background
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.store_list import add_to_list
from tidegate.committers.operations.finish import Finished, finish_decided
from tidegate.committers.operations.verify import verify
from tidegate.committers.steps.retire import LOOK_AT_ONCE, _drop_expired
from tidegate.committers.steps.trim import Trimmer
from tidegate.committers.transfer.import_rows import read_whole
from tidegate.errors import (
    BadRecordError,
    ConfigError,
    CorruptError,
    OutcomeUnknownError,
    SnapshotExpiredError,
    StoreUnavailableError,
    WalGapError,
    WalUnavailableError,
)
from tidegate.observe import events
from tidegate.observe.events import Gauge, Labels, Observer
from tidegate.options import Endpoints, Options, StoreRef
from tidegate.sinks.memory.store import MemoryStore
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.memory_log import MemoryLog

DEADLINE_S = 60.0


@pytest.fixture
def place():
    return uuid.uuid4().hex


def driver_at(place, **options):
    log, store = MemoryLog(place, "n"), MemoryStore(place, "n")
    where = Endpoints.of("n", f"memory://{place}", [StoreRef("a", f"memory://{place}")])
    return Coordinator(where, log, store, Options(**{"key_groups": 4, "apply_deadline_s": 20.0} | options))


def write(driver, batch_id=0):
    rows = {"t": {b"k": b"%d" % batch_id, b"l": b"0"}}
    return commit(driver, ArrowBarrier(driver.log, rows, batch("q", batch_id), 4))


def opened(place, versions=1, **options):
    driver = driver_at(place, **options)
    open_namespace(driver, "q")
    for batch_id in range(versions):
        write(driver, batch_id)
    return driver


def fails(error):
    def call(*_, **__):
        raise error

    return call


# -- open and finish --------------------------------------------------------------------------------


def test_where_nothing_was_made_there_is_nothing_to_finish(place):
    assert finish_decided(driver_at(place), [], "tidegate recover") == Finished([], 0, [])


@pytest.mark.parametrize(
    "call", [lambda driver: open_namespace(driver, "q"), lambda driver: finish_decided(driver, [], "recover")]
)
def test_a_store_whose_log_is_gone_is_not_written_i10(place, call):
    driver = opened(place)
    driver.log.drop()
    with pytest.raises(WalGapError, match="is in the store, the log is empty"):
        call(driver_at(place))
    assert driver.store.pointer().visible == 1


def test_a_check_of_the_callers_may_refuse_before_anything_is_appended(place):
    driver = opened(place)
    before = list(driver.log.decisions())
    with pytest.raises(BadRecordError, match="not so"):
        open_namespace(driver_at(place), "q", fails(BadRecordError("not so")))
    assert list(driver.log.decisions()) == before


def test_a_log_that_never_takes_its_first_record_says_so(place, monkeypatch):
    driver = driver_at(place, decide_deadline_s=0.05)
    monkeypatch.setattr(driver.log, "append_decision", fails(OutcomeUnknownError("no answer")))
    with pytest.raises(WalUnavailableError, match=r"did not take the first record.*it last said: no answer"):
        open_namespace(driver, "q")
    monkeypatch.undo()
    open_namespace(driver, "q")
    assert driver.epoch == 1


# -- apply ------------------------------------------------------------------------------------------


def test_a_large_version_is_applied_by_the_executors_then_confirmed(place, monkeypatch):
    """The driver reads none of its rows, and asks the store for the copies that were asked for."""
    confirmed, tasks = [], []
    driver = opened(place, 0, driver_apply_max_changes=0)
    driver.options = Options(key_groups=4, driver_apply_max_changes=0, wait_replicas=1)
    monkeypatch.setattr(driver.store, "confirm", lambda version, **asked: confirmed.append((version, asked)))

    def on_executors(works):
        tasks.append(len(works))
        for work in works:
            apply.do(work, driver.log, driver.store)

    driver.apply_on_executors = on_executors
    write(driver)
    assert len(tasks) == 1
    assert confirmed == [(1, {"replicas": 1, "aof": False})]
    assert driver.store.get_many("t", [b"k"], 1).to_pylist() == [b"0"]


# -- stores that are added ----------------------------------------------------------------------------


class Unfillable(MemoryStore):
    can_be_filled = False


def test_a_store_that_cannot_be_filled_is_added_while_the_log_has_every_version(place):
    driver = opened(place, 2)
    store = Unfillable(uuid.uuid4().hex, "n")
    follower = add_store(driver, StoreRef("b", store.where), store)
    while not follower.step():
        pass
    assert store.pointer().visible == 2


def test_a_store_that_cannot_be_filled_is_not_added_behind_a_log_whose_decisions_were_cut(place):
    driver = opened(place, 3, summary_every=2)
    driver.log.trim_decisions(driver.view.summaries[-1].position)
    driver.view = driver.view._replace(state=None, position=0, summaries=())
    driver.catch_up_log()
    state = driver.folded
    assert state.recent
    driver.log.trim_blobs([], driver.clock.now_us() + 3_600_000_000)
    store = Unfillable(uuid.uuid4().hex, "n")
    with pytest.raises(ConfigError, match="does not reach back to version 1"):
        add_store(driver, StoreRef("b", store.where), store)
    assert store.identity() is None


def test_a_store_that_is_listed_is_not_listed_twice(place):
    driver = opened(place)
    add_to_list(driver, "a")
    before = list(driver.log.decisions())
    add_to_list(driver, "a")
    assert list(driver.log.decisions()) == before


# -- beside the batches -------------------------------------------------------------------------------


def test_a_heartbeat_ends_with_its_query(place):
    driver = opened(place)
    alive = threading.Event()
    alive.set()
    options = Options(key_groups=4, heartbeat_s=0.01)
    work = Background(driver.log, driver.store, options, lambda: driver.epoch, alive.is_set)
    try:
        alive.clear()
        assert work._ending.wait(DEADLINE_S)
    finally:
        work.stop()
    assert work.ended


def test_a_query_that_cannot_be_asked_for_counts_as_one_that_runs(place, caplog):
    """The thread ended there, and with it every sign of life of a driver that went on."""
    driver, asked = opened(place), iter([OSError("no answer"), True, False])

    def alive():
        answer = next(asked)
        if isinstance(answer, OSError):
            raise answer
        return answer

    options = Options(key_groups=4, heartbeat_s=0.01)
    work = Background(driver.log, driver.store, options, lambda: driver.epoch, alive)
    try:
        assert work._ending.wait(DEADLINE_S)
    finally:
        work.stop()
    assert "heartbeat failed, tried again in 0.01 s: no answer" in caplog.text
    assert next(asked, None) is None


@pytest.mark.parametrize(
    "error, level", [(StoreUnavailableError("away"), "WARNING"), (ValueError("away"), "ERROR")]
)
def test_a_heartbeat_that_fails_is_tried_again_and_stops_nothing(place, monkeypatch, caplog, error, level):
    driver = opened(place)
    beats, well = iter([error]), threading.Event()

    def heartbeat(_):
        for fails_with in beats:
            raise fails_with
        well.set()

    monkeypatch.setattr(driver.store, "heartbeat", heartbeat)
    options = Options(key_groups=4, heartbeat_s=0.01)
    work = Background(driver.log, driver.store, options, lambda: driver.epoch)
    try:
        assert well.wait(DEADLINE_S)
    finally:
        work.stop()
    assert "heartbeat failed, tried again in 0.01 s: away" in caplog.text
    assert [one.levelname for one in caplog.records] == [level]


def test_an_error_that_nobody_foresaw_does_not_end_retirement(place, monkeypatch, caplog):
    driver, tried, well = opened(place), iter([ValueError("a bug")]), threading.Event()

    def retire(*_):
        for error in tried:
            raise error
        well.set()
        return 0

    monkeypatch.setattr(worker, "retire_up_to", retire)
    work = Background(driver.log, driver.store, driver.options, lambda: driver.epoch)
    try:
        work.published()
        wait_until(lambda: "a bug" in caplog.text)
        work.published()
        assert well.wait(DEADLINE_S)
    finally:
        work.stop()
    assert "Traceback" in caplog.text


def test_how_far_each_store_is_behind_is_told_while_somebody_observes(place):
    driver, levels = opened(place, 2), {}

    class Told(Observer):
        def level(self, what, at, value):
            levels[what, at] = value

    told = Told()
    events.add(told)
    try:
        report_gauges(Labels("n", "a"), driver.store, [Standing("b", "there", 1, 2, 3.0)], 2)
    finally:
        events.remove(told)
    assert levels[Gauge.LAG, Labels("n", "a")] == 0
    assert levels[Gauge.LAG, Labels("n", "b")] == 1
    assert levels[Gauge.BEHIND_S, Labels("n", "b")] == 3.0


def test_a_store_is_asked_how_it_stands_only_while_somebody_observes(place, monkeypatch):
    monkeypatch.setattr(events, "_observers", ())  # metrics that another test exported go on observing
    driver = driver_at(place)  # its store is not even made
    report_gauges(Labels("n", "a"), driver.store, [], 2)


def test_an_open_that_the_log_did_not_take_is_appended_again(place):
    driver, lost = driver_at(place), []
    append = driver.log.append_decision

    def append_decision(content):
        if b"open" in content.lower() and not lost:
            lost.append(content)
            raise OutcomeUnknownError("simulated: nothing was written")
        return append(content)

    driver.log.append_decision = append_decision
    open_namespace(driver, "q")
    assert lost
    assert driver.epoch == driver.folded.epoch == driver.store.pointer().epoch


def test_a_stop_ends_the_look_for_expired_rows_between_two_pieces(place, monkeypatch):
    driver, looked = opened(place), []
    monkeypatch.setattr(driver.store, "drop_expired", looked.append)
    _drop_expired(driver.store, 10 * LOOK_AT_ONCE, lambda: True)
    assert looked == [LOOK_AT_ONCE]


def test_a_trim_that_is_stopped_drops_nothing(place, monkeypatch):
    driver = opened(place, 2)
    monkeypatch.setattr(driver.log, "trim_blobs", fails(AssertionError("trimmed")))
    trimmer = Trimmer(driver.log, driver.store, driver.options, driver.clock, name="a")
    trimmer.trim(driver.view, driver.clock.now_us(), lambda: True)


# -- verify and import ----------------------------------------------------------------------------------


def test_a_pointer_that_cannot_be_read_is_a_finding_and_the_log_is_checked_all_the_same(place, monkeypatch):
    driver = opened(place, 2)
    monkeypatch.setattr(driver.store, "pointer", fails(CorruptError("damaged")))
    report = verify(driver.log, driver.store)
    assert [finding.expected for finding in report.findings] == ["a pointer that can be read"]
    assert (report.frames > 0, report.visible) == (True, 0)


def test_what_is_retired_while_it_is_verified_is_no_finding(place, monkeypatch):
    driver = opened(place, 2)
    driver.store.announce(2, max_lease_s=0.0, max_layers=10)
    monkeypatch.setattr(driver.store, "get_many", fails(SnapshotExpiredError("retired")))
    report = verify(driver.log, driver.store)
    assert not report.findings
    assert any("was retired during the check" in note for note in report.notes)


def test_an_export_without_tables_is_nothing_to_import(tmp_path):
    manifest = {"namespace": "n", "uuid": "u", "version": 1, "digest": "d", "decided_at_us": 1}
    content = json.dumps({**manifest, "key_groups": 4, "tables": {}, "format": 1})
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ConfigError, match="holds no table, so there is nothing to import"):
        read_whole(tmp_path)
