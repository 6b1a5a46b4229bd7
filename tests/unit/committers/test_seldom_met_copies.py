"""What is seldom met when versions are filled, exported, imported, verified, or looked up in a cut log."""

import threading
import types
import uuid

import msgspec
import pytest

from tidegate.committers.background.fill import _entry, _fact, _not_ours
from tidegate.committers.background.follower import FollowerThread, follower_for
from tidegate.committers.background.membership import _reaches_back
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.store_list import add_to_list
from tidegate.committers.operations.verify import verify
from tidegate.committers.pipeline import Pipeline, PipelineThread
from tidegate.committers.repair import compare_rows
from tidegate.committers.steps.facts import known_facts
from tidegate.committers.steps.phases import Phases
from tidegate.committers.steps.trim import Trimmer
from tidegate.committers.transfer.export import export
from tidegate.committers.transfer.import_rows import import_rows, read_whole
from tidegate.errors import CorruptError, FencedError, SnapshotExpiredError, WalGapError
from tidegate.observe.events import Labels
from tidegate.options import Endpoints, Options, StoreRef
from tidegate.sinks.memory.store import MemoryStore
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal import fold
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.record import LoadOrigin

DEADLINE_S = 60.0


@pytest.fixture
def place():
    return uuid.uuid4().hex


def driver_at(place, **options):
    where = Endpoints.of("n", f"memory://{place}", [StoreRef("a", f"memory://{place}")])
    options = Options(**{"key_groups": 4, "apply_deadline_s": 20.0} | options)
    return Coordinator(where, MemoryLog(place, "n"), MemoryStore(place, "n"), options)


def barrier_of(driver, batch_id, rows=None):
    rows = {b"%d" % key: b"%d" % batch_id for key in range(20)} if rows is None else rows
    return ArrowBarrier(driver.log, {"t": rows}, batch("q", batch_id), 4)


def opened(place, versions=1, **options):
    driver = driver_at(place, **options)
    open_namespace(driver, "q")
    for batch_id in range(versions):
        commit(driver, barrier_of(driver, batch_id))
    return driver


def fails(error):
    def call(*_, **__):
        raise error

    return call


# -- fill ---------------------------------------------------------------------------------------------


def to_fill(driver):
    store = MemoryStore(uuid.uuid4().hex, "n")
    at = StoreRef("b", store.where)
    follower = follower_for(driver, at, store, fill_first=True)
    commit(driver, ArrowBarrier(driver.log, {"t": {}}, LoadOrigin("listed"), 4))
    add_to_list(driver, "a")
    add_to_list(driver, "b")
    return follower


def test_a_fill_that_is_stopped_shows_nothing_and_goes_on_later(place):
    """Also when its store's server restarted meanwhile."""
    driver = opened(place, 2)
    follower = to_fill(driver)
    assert not follower.step(lambda: True)
    assert follower.store.pointer().visible == 0
    report = verify(driver.log, follower.store)
    assert any("is being filled at version" in note for note in report.notes)
    changed = [True, False]
    follower.store.unverified = lambda: changed.pop(0) if changed else False
    while not follower.step():
        pass
    assert follower.store.pointer().visible == driver.last_decided
    assert not verify(driver.log, follower.store).findings


def test_a_fill_that_another_finished_is_done(place):
    driver = opened(place, 1)
    assert _not_ours(driver, 1, 0)


def test_a_fill_under_an_older_epoch_is_told_that_it_is_fenced(place):
    driver = opened(place, 1)
    driver.epoch = 0
    with pytest.raises(FencedError, match="that driver fills it; stop this one"):
        _not_ours(driver, 1, 2)


def test_the_log_is_not_trimmed_before_a_store_of_its_list_was_made(place, monkeypatch):
    driver = opened(place, 1)
    add_to_list(driver, "a")
    add_to_list(driver, "b")
    monkeypatch.setattr(driver.log, "trim_blobs", fails(AssertionError("trimmed")))
    others = {"b": MemoryStore(uuid.uuid4().hex, "n")}
    Trimmer(driver.log, driver.store, driver.options, others=others, name="a").trim(driver.view, 1)


def test_a_version_that_the_log_does_not_know_is_not_copied(place):
    driver = opened(place, 1)
    with pytest.raises(WalGapError, match="log and stores do not belong together"):
        _fact(driver, 2)


def test_a_version_that_is_retired_as_it_is_copied_is_tried_anew(place, monkeypatch):
    driver = opened(place, 1)
    monkeypatch.setattr(driver.store, "catalog", lambda *_: [])
    with pytest.raises(SnapshotExpiredError, match="version 1 was retired meanwhile"):
        _entry(driver.store, driver.folded.recent[0])


def test_a_follower_that_is_not_level_yet_stays_behind(place):
    driver = opened(place, 1)
    follower = follower_for(driver, StoreRef("b", "memory://b"), MemoryStore(uuid.uuid4().hex, "n"))
    since = follower._level_at
    follower.went_well(level=False)
    assert follower._level_at == since


def test_an_idle_follower_gives_signs_of_life(place, monkeypatch):
    follower = to_fill(opened(place, 1, heartbeat_s=0.01))
    beats, plain, enough = [], follower.store.heartbeat, threading.Event()

    def heartbeat(epoch):
        beats.append(epoch)
        plain(epoch)
        if len(beats) == 3:
            enough.set()

    monkeypatch.setattr(follower.store, "heartbeat", heartbeat)
    thread = FollowerThread(follower, lambda: False)  # it is woken once, to begin
    try:
        assert enough.wait(DEADLINE_S)
    finally:
        thread.stop()
    assert set(beats) == {follower._coordinator.epoch}


def test_a_follower_may_be_stopped_by_its_own_thread():
    """As when what it calls ends the query: it does not wait for itself."""
    done, threads = threading.Event(), []
    started = threading.Event()

    def step(_):
        assert started.wait(DEADLINE_S)
        threads[0].stop()
        done.set()
        return True

    follower = types.SimpleNamespace(
        name="b",
        namespace="n",
        heartbeat_s=1.0,
        failed=None,
        driven_by=None,
        step=step,
        went_well=lambda **_: None,
    )
    threads.append(FollowerThread(follower, lambda: False))
    started.set()
    assert done.wait(DEADLINE_S)
    threads[0].join(DEADLINE_S)
    assert not threads[0]._thread.is_alive()


# -- export and import ----------------------------------------------------------------------------------


def test_a_table_without_rows_is_exported_and_imported(place, tmp_path):
    driver = opened(place, 1)
    commit(driver, barrier_of(driver, 1, {b"%d" % key: None for key in range(20)}))
    folder = tmp_path / "exported"
    manifest = export(driver.store, driver.store.identity(), 2, folder)
    assert manifest.tables["t"].files == ()
    other = driver_at(uuid.uuid4().hex)
    whole, token = read_whole(folder)
    imported = import_rows(other, folder, whole, token)
    assert (imported.version, imported.new) == (1, True)
    again = import_rows(other, folder, whole, token)
    assert (again.version, again.new) == (1, False)
    assert other.last_decided == 1


# -- a log that was cut -----------------------------------------------------------------------------------


def test_facts_that_only_a_summary_has_are_found_once(place):
    driver = opened(place, 4, summary_every=4)
    driver.log.trim_decisions(driver.view.summaries[-1].position)
    state = msgspec.structs.replace(driver.folded, recent=driver.folded.recent[-1:])
    assert [fact.version for fact in known_facts(driver.log, state, 1)] == [1, 2, 3, 4]


def test_a_log_whose_first_decisions_are_gone_does_not_reach_back(place, monkeypatch):
    monkeypatch.setattr(fold, "RECENT_MAX", 2)
    driver = opened(place, 4, summary_every=4)
    assert _reaches_back(driver)
    driver.log.trim_decisions(driver.view.summaries[-1].position)
    assert not _reaches_back(driver)


def test_a_log_that_is_damaged_while_it_is_verified_is_checked_as_far_as_it_is_known(place, monkeypatch):
    monkeypatch.setattr(fold, "RECENT_MAX", 2)
    driver = opened(place, 4)
    read, times = driver.log.decisions, []

    def decisions(*at):
        times.append(1)
        if len(times) > 1:
            raise CorruptError("damaged")
        return read(*at)

    monkeypatch.setattr(driver.log, "decisions", decisions)
    report = verify(driver.log, driver.store)
    assert len(times) == 2
    assert report.frames > 0


def test_a_manifest_that_is_gone_above_the_horizon_is_a_finding(place):
    driver = opened(place, 1)
    driver.log.trim_blobs([], driver.clock.now_us() + 3_600_000_000)
    found = verify(driver.log, driver.store).findings
    assert [finding.expected for finding in found] == ["to be there: the version is not retired"]


def test_a_long_log_tells_how_far_its_check_is(place):
    driver = opened(place, 1)
    first = next(iter(driver.log.decisions())).content
    for _ in range(1_000):
        driver.log.append_decision(first)  # void behind the first one
    steps = []
    report = verify(driver.log, driver.store, steps.append)
    assert report.void == 1_000
    assert ("decision log", 1_000) in [(step.step, step.done) for step in steps]


def test_keys_are_compared_in_several_passes_where_they_are_many(place, monkeypatch):
    monkeypatch.setattr(compare_rows, "KEYS_PER_PASS", 5)
    driver = opened(place, 3)
    driver.store.announce(3, max_lease_s=0.0, max_layers=10)
    steps = []
    assert not verify(driver.log, driver.store, steps.append).findings
    assert len([step for step in steps if step.step == "rows at the horizon"]) == 4


# -- pipelines ----------------------------------------------------------------------------------------------


def test_a_version_that_stops_the_line_is_watched_no_more(place, monkeypatch):
    driver = driver_at(place)
    open_namespace(driver, "q")
    phases = driver.watch = Phases(Labels("n"))
    pipeline = Pipeline(driver)
    pipeline.commit(barrier_of(driver, 0))
    monkeypatch.setattr(driver.store, "begin", fails(CorruptError("damaged")))
    pipeline.complete_next()
    assert isinstance(pipeline.failed, CorruptError)
    assert phases.phase is None


def test_a_process_that_exits_with_nothing_in_flight_says_nothing(place, caplog):
    driver = driver_at(place)
    open_namespace(driver, "q")
    pipeline = PipelineThread(driver)
    pipeline.commit(barrier_of(driver, 0))
    pipeline._at_exit()
    assert driver.store.pointer().visible == 1
    assert "in flight" not in caplog.text


def test_a_thread_that_has_nothing_to_do_asks_whether_its_query_has_ended(place):
    driver = driver_at(place, heartbeat_s=0.01)
    open_namespace(driver, "q")
    answers, asked = iter([False, False, True]), threading.Event()

    def ended():
        answer = next(answers, True)
        if answer:
            asked.set()
        return answer

    pipeline = PipelineThread(driver, ended=ended)
    pipeline.commit(barrier_of(driver, 0))
    thread = pipeline._thread
    assert asked.wait(DEADLINE_S)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert driver.store.pointer().visible == 1
