"""Summaries after a publish, and what a trim drops and keeps: by hand-driven clocks, logs and zombies."""

import dataclasses
import uuid

import msgspec
import pytest

from support.committers.trims import DAY_S, HOUR_S, SECOND_US, Namespace, assert_readable
from support.places import fails, opened
from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.background.worker import Background
from tidegate.committers.commit import commit, until_decided
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.opening.recover import decided_versions_from
from tidegate.committers.opening.store_list import add_to_list
from tidegate.committers.steps.trim import Trimmer, cut_place, keep_from_us
from tidegate.errors import (
    CorruptError,
    FencedError,
    OutcomeUnknownError,
    StoreUnavailableError,
    WalGapError,
    WalUnavailableError,
)
from tidegate.options import Options
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.records import Pointer
from tidegate.testing.arrow_barrier import batch
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import RECENT_MAX, SummaryPlace, View, fold_all, replay_of
from tidegate.wal.memory_log import forget
from tidegate.wal.record import Summary, decode_record, encode_record


@pytest.fixture
def space():
    made = Namespace()
    yield made
    forget(made.name)


# -- the Summary ------------------------------------------------------------------------------------


def test_a_summary_follows_every_so_many_versions(space):
    driver = space.opened()
    space.write(driver, 10)
    assert [place.version for place in space.summaries()] == [3, 6, 9]
    another = space.opened()  # it counts from the last Summary, not from its own start
    space.write(another, 2)
    assert [place.version for place in space.summaries()] == [3, 6, 9, 12]


@pytest.mark.parametrize("error", [WalUnavailableError, OutcomeUnknownError, CorruptError])
@pytest.mark.parametrize("landed", [True, False])
def test_a_summary_never_fails_a_commit_whatever_becomes_of_it(space, monkeypatch, error, landed):
    driver = space.opened()
    append, sent = driver.log.append_decision, []

    def lose_summaries(content):
        record = decode_record(content, "test")
        if not isinstance(record, Summary):
            return append(content)
        sent.append(record.state.last_version)
        if landed:
            append(content)
        raise error("lost")

    monkeypatch.setattr(driver.log, "append_decision", lose_summaries)
    before = space.clock.monotonic()
    space.write(driver, 7, every_s=0)
    assert driver.store.pointer().visible == 7
    assert space.clock.monotonic() - before < 1  # nothing was waited for
    assert sent == ([3, 6] if landed else [3, 4, 5, 6, 7])
    monkeypatch.undo()
    space.write(driver, 3)
    assert driver.store.pointer().visible == 10


def test_a_summary_that_lands_between_fold_and_decision_voids_nothing(space, monkeypatch):
    """I6: somebody else's, or a lost one of our own, while the barrier is staged."""
    driver = space.opened()
    space.write(driver, 2)
    state = driver.folded
    late = Summary(namespace=state.namespace, writer="x", epoch=0, prev_digest="", state=state)
    barrier = space.barrier(driver)
    stage = barrier.stage

    def staged(spec, base_version):
        driver.log.append_decision(encode_record(late))
        return stage(spec, base_version)

    monkeypatch.setattr(barrier, "stage", staged)
    before = space.clock.monotonic()
    assert commit(driver, barrier).version == 3
    assert space.clock.monotonic() - before < 1
    assert fold_all(View(), driver.log.decisions()).void == 0


# -- the cut ----------------------------------------------------------------------------------------


def test_a_driver_opens_on_a_cut_log_as_on_the_whole_one(space):
    driver = space.opened()
    space.write(driver, 40)
    whole = fold_all(View(), driver.log.decisions())
    space.retire_and_trim(driver)
    cut = fold_all(View(), driver.log.decisions())
    assert cut.state == whole.state == driver.folded
    assert cut.position == whole.position
    first = space.records()[0]
    assert isinstance(first, Summary)
    assert first.state.last_version == 15  # the newest that is a day older than version 40
    another = space.opened()
    assert another.folded.recent == driver.folded.recent
    assert replay_of(another.folded, batch("q", 0)).version == 1
    space.write(another, 5)
    assert another.store.pointer().visible == 45
    with pytest.raises(FencedError):  # the first driver stood far before the cut
        space.write(driver, 1)


def test_nothing_is_cut_before_it_is_old_enough(space):
    driver = space.opened()
    space.write(driver, 23)
    space.clock.advance(1_000 * DAY_S)  # an idle night is no reason: the last decision counts
    space.retire_and_trim(driver)
    assert len(space.summaries()) == 7
    assert space.records()[0].__class__.__name__ == "Genesis"
    assert_readable(driver, 1)


def test_nothing_is_cut_that_is_not_published(space, monkeypatch):
    driver = space.opened()
    space.write(driver, 3)
    monkeypatch.setattr(driver.store, "publish", lambda *_: False)
    with pytest.raises(StoreUnavailableError):
        space.write(driver, 1)
    monkeypatch.undo()
    places = [SummaryPlace(10, 3, 1, "d3"), SummaryPlace(20, 4, 2, "d4")]
    assert cut_place(places, driver.store.pointer(), 99) == places[0]
    assert cut_place(places, Pointer(visible=4), 99) == places[1]
    assert cut_place(places, Pointer(visible=2), 99) is None
    assert cut_place(places, Pointer(visible=4), 2) == places[0]
    assert cut_place(places, Pointer(visible=4), 1) is None


def test_a_cut_keeps_the_facts_from_the_horizon_on():
    places = [SummaryPlace(10, 1_200, 1, "a"), SummaryPlace(20, 1_300, 1, "b")]
    assert cut_place(places, Pointer(visible=2_000, horizon=1_300 - RECENT_MAX), 9) == places[0]
    assert cut_place(places, Pointer(visible=2_000, horizon=1_301 - RECENT_MAX), 9) == places[1]
    assert cut_place(places, Pointer(visible=2_000, horizon=0), 9) is None


def test_unpublished_versions_are_recovered_from_a_cut_log(space, monkeypatch):
    """I4, with the facts that the Summary holds."""
    driver = space.opened()
    space.write(driver, 40)
    space.retire_and_trim(driver)
    monkeypatch.setattr(driver.store, "publish", lambda *_: False)
    with pytest.raises(StoreUnavailableError):
        space.write(driver, 1)
    monkeypatch.undo()
    another = space.driver()
    assert open_namespace(another, None) == [41]
    assert [fact.version for fact in decided_versions_from(another.decisions, 3, "store")] == list(
        range(3, 42)
    )


def test_facts_that_neither_summary_nor_log_have_are_a_gap_with_a_way_out(space, monkeypatch):
    monkeypatch.setattr("tidegate.wal.fold.RECENT_MAX", 10)
    driver = space.opened()
    space.write(driver, 45)
    space.retire_and_trim(driver)
    first = space.records()[0].state
    assert [fact.version for fact in first.recent] == list(range(12, 22))
    again = space.opened()
    assert [fact.version for fact in decided_versions_from(again.decisions, 12, "store")] == list(
        range(12, 46)
    )
    for version in (1, 11):
        with pytest.raises(WalGapError, match=r"wal_retain_s .* use a new namespace"):
            list(decided_versions_from(again.decisions, version, "store"))


def test_another_log_at_the_same_place_is_not_cut(space):
    """The log was removed and made again while a zombie slept."""
    driver = space.opened()
    space.write(driver, 40)
    now_us, view = space.clock.now_us(), catch_up(View(), driver.log)
    space.log()._content.records[view.summaries[0].position :] = [
        encode_record(space.records()[1]) for _ in range(80)
    ]
    with pytest.raises(CorruptError, match="this is another log"):
        space.trimmer(driver).trim(view, now_us)
    assert space.log()._content.first == 0


# -- the blobs --------------------------------------------------------------------------------------


def test_old_blobs_below_the_horizon_and_orphans_go(space):
    driver = space.opened()
    space.write(driver, 10)
    orphan = driver.log.stage("orphan-old", [b"x"])
    space.write(driver, 30)
    young = driver.log.stage("orphan-young", [b"y"])
    before = driver.log.size()
    space.retire_and_trim(driver)
    after = driver.log.size()
    assert after.changelog_bytes < before.changelog_bytes / 1.5
    assert after.decisions_bytes < before.decisions_bytes
    assert driver.store.pointer().horizon == 39
    assert_readable(driver, 17)  # a day back from version 40, for repair
    for fact in driver.folded.recent[:15]:
        with pytest.raises(WalGapError):
            read_manifest(driver.log, fact)
    with pytest.raises(WalGapError):
        list(driver.log.read(orphan))
    assert len(list(driver.log.read(young))) == 1


def test_what_a_lease_keeps_readable_is_kept_in_the_log(space):
    driver = space.opened()
    space.options = Options(key_groups=4, summary_every=3, keep_versions=100)
    space.write(driver, 60)
    space.retire_and_trim(driver)
    assert driver.store.pointer().horizon == 0
    assert_readable(driver, 1)


def test_a_trim_is_due_at_the_start_and_then_every_so_often(space):
    driver = space.opened()
    trimmer = space.trimmer(driver)
    trimmed, trim_blobs = [], driver.log.trim_blobs

    def counted(*arguments):
        trimmed.append(driver.folded.last_version)
        return trim_blobs(*arguments)

    driver.log.trim_blobs = counted
    for _ in range(8):
        space.write(driver, 1, every_s=1)
        space.retire_and_trim(driver, trimmer)
    assert trimmed == [1, 4, 7]
    space.write(driver, 1, every_s=HOUR_S)
    space.retire_and_trim(driver, trimmer)
    assert trimmed == [1, 4, 7, 9]


@pytest.mark.parametrize("name", [name for name in failpoints.NAMES if name.startswith("trim.")])
def test_a_trim_that_was_interrupted_is_done_again(space, name):
    driver = space.opened()
    space.write(driver, 40)
    failpoints.arm(f"{name}=raise")
    with pytest.raises(FailpointError):
        space.retire_and_trim(driver)
    another = space.opened()
    assert_readable(another, 17)
    space.retire_and_trim(another)
    assert space.records()[0].state.last_version == 15
    assert another.folded.recent == driver.folded.recent


# -- zombies (T1) -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [1, 5, 20, 40])
def test_a_zombies_late_trim_drops_nothing_that_anyone_needs(space, seen):
    """It folded ``seen`` versions and slept; meanwhile another driver decided, retired and trimmed."""
    zombie = space.opened()
    space.write(zombie, seen)
    now_us, view = space.clock.now_us(), catch_up(View(), zombie.log)
    driver = space.opened()
    space.write(driver, 30)
    space.clock.advance(100 * DAY_S)
    staged_long_ago = driver.log.stage("being-staged", [b"x"])  # an attempt of the driver, not decided yet
    space.clock.advance(100 * DAY_S)
    before = driver.log.size()
    space.trimmer(zombie).trim(view, now_us)
    assert list(driver.log.read(staged_long_ago))
    assert_readable(driver, max(driver.store.pointer().horizon, seen))
    state = fold_all(View(), driver.log.decisions()).state
    assert state == driver.folded
    space.retire_and_trim(driver)
    assert driver.log.size().changelog_bytes < before.changelog_bytes
    assert_readable(driver, driver.store.pointer().horizon)
    space.trimmer(zombie).trim(view, now_us)
    assert_readable(driver, driver.store.pointer().horizon)


def test_a_zombie_that_applies_what_was_trimmed_is_told_that_it_is_fenced(space, monkeypatch):
    """T1: no gap in the log; nobody needs its version's change-log any more."""
    zombie = space.opened()
    space.write(zombie, 2)
    begin = zombie.store.begin

    def sleep_through(*of_version):
        begun = begin(*of_version)
        monkeypatch.setattr(zombie.store, "begin", begin)
        driver = space.opened()
        assert driver.store.pointer().visible == 3
        space.write(driver, 40)
        space.retire_and_trim(driver)
        return begun

    monkeypatch.setattr(zombie.store, "begin", sleep_through)
    with pytest.raises(FencedError, match="no longer holds version 3"):
        space.write(zombie, 1)


def test_a_log_that_lost_what_is_not_visible_yet_is_a_gap(space, monkeypatch):
    """I10: nobody else owns the version."""
    driver = space.opened()
    space.write(driver, 2)
    begin = driver.store.begin

    def lose_it(*of_version):
        driver.log.trim_blobs([], 2**60)
        return begin(*of_version)

    monkeypatch.setattr(driver.store, "begin", lose_it)
    with pytest.raises(WalGapError):
        space.write(driver, 1)


def test_frames_staged_for_days_are_not_trimmed_before_they_are_decided(space, monkeypatch):
    """The age of a frame alone proves nothing: its barrier may take longer than the log is kept."""
    driver = space.opened()
    space.write(driver, 40)
    zombie, trimmed = space.driver(), []
    barrier = space.barrier(driver)
    stage = barrier.stage

    def slowly(spec, base_version):
        acks = stage(spec, base_version)
        space.clock.advance(10 * DAY_S)
        space.retire_and_trim(zombie)
        trimmed.append(space.log().size())
        return acks

    monkeypatch.setattr(barrier, "stage", slowly)
    assert commit(driver, barrier).version == 41
    assert trimmed
    assert_readable(driver, 39)


def test_keep_from_is_counted_back_from_the_last_decision_and_the_fold():
    driver = Namespace().opened()
    state = driver.folded
    decided = msgspec.structs.replace(state, decided_at_us=50 * SECOND_US)
    assert keep_from_us(decided, 90 * SECOND_US, 20) == 30 * SECOND_US
    assert keep_from_us(decided, 40 * SECOND_US, 20) == 20 * SECOND_US


def test_a_store_that_went_back_stops_the_trim(space, monkeypatch):
    """What has to be applied again is read from the log first."""
    monkeypatch.setattr("tidegate.wal.fold.RECENT_MAX", 10)
    driver = space.opened()
    space.write(driver, 40)
    before = driver.log.size()
    for pointer in (Pointer(visible=5, horizon=4), Pointer(visible=40, horizon=20), Pointer(visible=29)):
        monkeypatch.setattr(driver.store, "pointer", lambda pointer=pointer: pointer)
        now_us, view = space.clock.now_us(), catch_up(View(), driver.log)
        space.trimmer(driver).trim(view, now_us)
        assert driver.log.size() == before


@pytest.mark.parametrize("kept,trims", [(10, False), (9, True)])
def test_a_version_that_is_decided_and_not_visible_counts_among_those_kept_i11(
    space, monkeypatch, kept, trims
):
    """With pipelined commits there always is one: with as many kept as the fold knows nothing is trimmed."""
    monkeypatch.setattr("tidegate.wal.fold.RECENT_MAX", 10)
    space.options = dataclasses.replace(space.options, keep_versions=kept)
    driver = space.opened()
    space.write(driver, 60)
    space.clock.advance(HOUR_S)
    until_decided(driver, space.barrier(driver))
    before = driver.log.size()
    space.retire_and_trim(driver)
    assert (driver.log.size().changelog_bytes < before.changelog_bytes) is trims


# -- catching up ------------------------------------------------------------------------------------


def test_a_reader_that_slept_over_a_cut_catches_up(space):
    driver = space.opened()
    views = []
    for _ in range(40):
        space.write(driver, 1)
        views.append(catch_up(views[-1] if views else View(), driver.log))
    space.retire_and_trim(driver)
    for view in [View(), *views]:
        caught_up = catch_up(view, driver.log)
        assert caught_up.state == driver.folded
        assert caught_up.position == driver.decisions.view.position


def test_a_log_that_went_back_or_is_another_is_a_gap(space):
    driver = space.opened()
    space.write(driver, 40)
    view = catch_up(View(), driver.log)
    content = space.log()._content
    content.records = content.records[:-1]
    with pytest.raises(WalGapError):
        catch_up(view, driver.log)
    other = Namespace()
    far = other.opened()
    other.write(far, 60)
    other.retire_and_trim(far)
    with pytest.raises(WalGapError):
        catch_up(View(view.state, 3), far.log)
    forget(other.name)


# -- the background ---------------------------------------------------------------------------------


def test_the_background_trims_and_its_errors_stay_in_the_log(space, monkeypatch, caplog):
    driver = space.opened()
    space.write(driver, 40)
    done, trim_blobs, calls = [], driver.log.trim_blobs, []

    def first_fails(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            background.published()  # tried again after the next version
            raise WalUnavailableError("away")
        done.append(trim_blobs(*arguments))
        background.stop()
        return done[-1]

    monkeypatch.setattr(driver.log, "trim_blobs", first_fails)
    background = Background(driver.log, driver.store, space.options, lambda: driver.epoch, clock=space.clock)
    background.published()
    for thread in background._threads:
        thread.join(60)
    assert done[0].bytes > 0
    assert "trimming failed" in caplog.text
    assert isinstance(space.records()[0], Summary)


# -- that nothing is dropped ---------------------------------------------------------------------------


def test_a_trim_that_is_stopped_drops_nothing(place, monkeypatch):
    driver = opened(place, 2)
    monkeypatch.setattr(driver.log, "trim_blobs", fails(AssertionError("trimmed")))
    trimmer = Trimmer(driver.log, driver.store, driver.options, driver.clock, name="a")
    trimmer.trim(driver.decisions.view, driver.clock.now_us(), lambda: True)


def test_the_log_is_not_trimmed_before_a_store_of_its_list_was_made(place, monkeypatch):
    driver = opened(place, 1)
    add_to_list(driver.decisions, "a")
    add_to_list(driver.decisions, "b")
    monkeypatch.setattr(driver.log, "trim_blobs", fails(AssertionError("trimmed")))
    others = {"b": MemoryStore(uuid.uuid4().hex, "n")}
    Trimmer(driver.log, driver.store, driver.options, others=others, name="a").trim(driver.decisions.view, 1)
