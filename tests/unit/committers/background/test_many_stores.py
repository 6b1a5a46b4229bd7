"""One log, many stores: order, a store that is down, zombies."""

import contextlib
import dataclasses
import logging
import shutil

import pytest

from support.committers.many_stores import KEY_GROUPS, Place, retired
from tidegate.base import failpoints
from tidegate.base.clock import Clock
from tidegate.base.failpoints import FailpointError
from tidegate.committers.background.worker import Background
from tidegate.committers.commit import commit
from tidegate.committers.steps.epoch import take_epoch
from tidegate.errors import (
    BadRecordError,
    CorruptError,
    FencedError,
    StoreUnavailableError,
    TidegateError,
    WalGapError,
)
from tidegate.observe.events import Labels
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity
from tidegate.testing.arrow_barrier import ArrowBarrier, batch


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    return Place(request.param, tmp_path)


@pytest.fixture
def in_memory(tmp_path):
    return Place("memory", tmp_path)


def test_each_store_gets_every_version_in_order_from_one_log(place):
    driver, (follower,) = place.opened("a", "b")
    assert driver.folded.stores == ("a", "b")
    for _ in range(3):
        place.write(driver)
        assert follower.step()
    place.write(driver, 3)
    assert follower.step()
    assert place.ports["b"].published() == [1, 2, 3, 4, 5, 6]
    assert place.check("a") == place.check("b") == 6
    assert (follower.standing.visible, follower.standing.behind_s, follower.standing.error) == (6, 0.0, "")


def test_the_epoch_is_claimed_in_a_secondary_before_anything_else_is_written_there(in_memory):
    """I6: after its making, the first write of every driver is the claim."""
    driver, (follower,) = in_memory.opened("a", "b")
    in_memory.write(driver)
    follower.step()
    writes = [call[0] for call in in_memory.ports["b"].calls if len(call) == 2]
    assert writes[:2] == ["store.create", "claim"]
    in_memory.ports["b"].calls.clear()
    driver, (follower,) = in_memory.opened("a", "b")
    in_memory.write(driver)
    follower.step()
    assert next(call for call in in_memory.ports["b"].calls if len(call) == 2) == ("claim", "epoch 2")


def test_a_batch_does_not_ask_a_secondary_anything(in_memory):
    driver, (follower,) = in_memory.opened("a", "b")
    in_memory.write(driver)
    follower.step()
    in_memory.ports["b"].calls.clear()
    in_memory.write(driver, 2)
    assert in_memory.ports["b"].calls == []


@pytest.mark.parametrize("killed_at", [1, 9, 10])
def test_a_rebuild_from_the_log_that_was_killed_continues_from_the_log(place, killed_at):
    """The other store has retired its base meanwhile; at the last two a version above it was begun here."""
    driver, (follower,) = place.opened("a", "b")
    driver.store.keep_versions_default = follower.store.keep_versions_default = 2
    place.write(driver, 4)

    def killed():
        raise FailpointError("killed")

    place.ports["b"].before("apply", killed, nth=killed_at)
    with contextlib.suppress(FailpointError):
        follower.step()
    assert place.ports["b"].published() == []
    place.clock.advance(100_000)
    driver, (follower,) = place.opened("a", "b")
    driver.store.keep_versions_default = follower.store.keep_versions_default = 2
    place.write(driver, 3)
    retired(driver, driver.store)
    assert follower.step()
    assert place.check("b") == place.check("a") == 7


def test_the_smallest_limit_of_all_stores_is_what_a_value_may_take(in_memory):
    """Else a version could be decided that one of them can never hold."""
    driver, (follower,) = in_memory.opened("a", "b")
    follower.store.value_bytes_max = 100
    rows = {"t": {b"k": b"x" * 101}}
    with pytest.raises(BadRecordError, match=r"100 are allowed.*the store allows no more, whatever"):
        commit(driver, ArrowBarrier(driver.log, rows, batch("query-1", 0), KEY_GROUPS))
    assert driver.folded.last_version == 0
    driver.options = dataclasses.replace(driver.options, value_bytes_max=99)
    with pytest.raises(BadRecordError, match=r"99 are allowed.*or raise value_bytes_max"):
        commit(driver, ArrowBarrier(driver.log, rows, batch("query-1", 0), KEY_GROUPS))


def test_a_secondary_that_was_down_catches_up_in_order(place, caplog):
    driver, (follower,) = place.opened("a", "b")
    place.write(driver)
    follower.step()
    place.ports["b"].down = True
    for _ in range(3):
        place.write(driver)
        with pytest.raises(StoreUnavailableError) as raised:
            follower.step()
        follower.retried(raised.value)
    assert place.check("a") == 4
    standing = follower.standing
    assert (standing.visible, standing.decided) == (1, 4)
    assert standing.behind_s > 0
    assert "StoreUnavailableError: the store is down" in standing.error
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # once, not at each try
    place.ports["b"].down = False
    follower.went_well(level=follower.step())
    assert place.check("b") == 4
    assert place.ports["b"].published() == [1, 2, 3, 4]
    assert follower.standing.error == ""
    assert "follows again" in caplog.text


def test_an_alarm_names_the_store_the_cause_and_what_to_do(in_memory, caplog):
    driver, (follower,) = in_memory.opened("a", "b")
    in_memory.write(driver)
    follower.step()
    in_memory.ports["b"].down = True
    for _ in range(30):
        in_memory.clock.advance(100)
        follower.retried(StoreUnavailableError("the store is down"))
    alarms = [record.getMessage() for record in caplog.records if "ALARM" in record.getMessage()]
    assert len(alarms) == 3  # 3,000 s, one for every 900 s
    assert "store b" in alarms[0]
    assert "tidegate store remove b" in alarms[0]
    assert alarms[0].endswith("the store is down")


def test_a_store_that_only_ever_runs_behind_alarms_too(in_memory, caplog):
    driver, (follower,) = in_memory.opened("a", "b")
    in_memory.write(driver, 3)
    in_memory.ports["b"].before("apply", lambda: in_memory.clock.advance(1_000))
    in_memory.write(driver, 3)
    follower.step()
    assert "it is catching up" in caplog.text


@pytest.mark.parametrize("name", ["apply.after_chunk", "seal.after", "publish.before", "publish.after"])
def test_a_driver_killed_with_the_secondary_behind(place, name):
    driver, (follower,) = place.opened("a", "b")
    place.write(driver)
    follower.step()
    place.write(driver, 3)
    failpoints.arm(f"{name}=raise@2")
    with pytest.raises(FailpointError):
        follower.step()
    failpoints.arm(None)
    place.check("b")
    driver, (follower,) = place.opened("a", "b")
    place.write(driver)
    assert follower.step()
    assert place.check("a") == place.check("b") == 5


def test_an_older_driver_is_fenced_in_each_store(place):
    """I6: also where it had not been yet."""
    old, (behind,) = place.opened("a", "b")
    place.write(old, 2)
    behind.step()
    new, (follower,) = place.opened("a", "b")
    follower.step()
    place.write(new)
    old.decisions.catch_up()
    with pytest.raises(FencedError):
        behind.step()  # version 3 is decided, by the new one: it may not flip it
    assert place.check("b") == 2
    behind.retried(FencedError("fenced"))
    assert isinstance(behind.failed, FencedError)
    late = place.followers(old)[0]
    before = place.ports["b"].calls[:]
    with pytest.raises(FencedError, match="carries epoch 2"):
        late.step()
    since = [call for call in place.ports["b"].calls[len(before) :] if len(call) == 2]
    assert since == [("claim", "epoch 1")]
    assert follower.step()
    assert place.check("b") == 3


@pytest.mark.parametrize("kind", [FencedError, CorruptError])
def test_what_must_be_seen_is_raised_at_the_next_batch(in_memory, kind):
    """I10: a follower keeps no fence and no damage to itself."""
    driver, (follower,) = in_memory.opened("a", "b")
    background = Background(
        driver.log, driver.store, in_memory.options, lambda: 0, clock=in_memory.clock, followers=[follower]
    )
    background.stop()
    background.check()
    follower.retried(StoreUnavailableError("down"))
    background.check()
    follower.retried(kind("seen"))
    with pytest.raises(kind, match="seen"):
        background.check()


def test_the_background_drives_the_followers(tmp_path):
    """Beside the batches, and once more when the query has ended: nothing is left behind."""
    place = Place("sqlite", tmp_path, heartbeat_s=0.05)
    place.clock = Clock()
    driver, followers = place.opened("a", "b", "c")
    background = Background(
        driver.log,
        driver.store,
        place.options,
        lambda: driver.epoch,
        followers=followers,
        at=Labels("n", "a"),
    )
    place.ports["b"].down = True
    try:
        place.write(driver, 2)
        background.published()
        place.ports["b"].down = False
        place.write(driver, 2)
        background.published()
    finally:
        background.drain(60)
    driver.store.close()
    # The one that was down may have ended in its pause: the next driver brings it to the end.
    assert place.check("c") == 4
    _, (follower, _) = place.opened("a", "b", "c")
    assert follower.step()
    assert place.check("b") == 4


def test_a_store_of_another_namespace_or_history_is_not_written(in_memory):
    other = in_memory.store(in_memory.at("b"))
    other.create(Identity("another", "n", KEY_GROUPS))
    driver, (follower,) = in_memory.opened("a", "b")
    in_memory.write(driver)
    with pytest.raises(WalGapError, match="another"):
        follower.step()
    assert in_memory.check("a") == 1
    assert other.pointer().epoch == 0


def test_what_a_newer_driver_published_while_a_follower_opened_is_not_a_log_that_is_behind(in_memory):
    """Found by the simulation: the pointer is read before the log, never after it."""
    old, (follower,) = in_memory.opened("a", "b")
    in_memory.write(old)

    def meanwhile():
        new, (newer,) = in_memory.opened("a", "b")
        in_memory.write(new)
        assert newer.step()

    in_memory.ports["b"].before("identity", meanwhile)
    with pytest.raises(FencedError):
        follower.step()
    assert in_memory.check("b") == 2


def test_another_order_makes_another_primary(place):
    driver, (follower,) = place.opened("a", "b")
    place.write(driver, 3)
    driver, (follower,) = place.opened("b", "a")
    assert place.check("b") == 3
    place.write(driver)
    follower.step()
    assert place.check("a") == place.check("b") == 4


def test_what_is_met_is_logged_as_one_line(in_memory, caplog):
    caplog.set_level(logging.WARNING)
    _, (follower,) = in_memory.opened("a", "b")
    follower.retried(StoreUnavailableError("two\nlines"))
    assert "two lines" in caplog.text


def test_a_secondary_that_loses_every_row_under_a_running_query_is_rebuilt(place):
    """Its error does not stay: the next step makes the namespace there again."""
    driver, (follower,) = place.opened("a", "b")
    place.write(driver, 3)
    assert follower.step()
    open_store(place.at("b").url, "n").drop()
    place.write(driver)
    for _ in range(3):
        try:
            follower.went_well(level=follower.step())
        except TidegateError as error:
            follower.retried(error)
    assert (follower.failed, follower.standing.error) == (None, "")
    assert place.check("b") == 4


def test_a_secondary_that_was_dropped_is_not_made_again(place):
    """The Open of the drop ends its follower, which has claimed an older epoch."""
    driver, (follower,) = place.opened("a", "b")
    place.write(driver, 3)
    assert follower.step()
    take_epoch(driver.decisions, driver.folded.lineage)
    open_store(place.at("b").url, "n").drop()
    for _ in range(3):
        try:
            follower.step()
        except TidegateError as error:
            follower.retried(error)
    assert isinstance(follower.failed, FencedError)
    assert follower.store.identity() is None


def test_a_command_that_catches_a_store_up_retires_nothing_there(place):
    """A command has no option ``keep_versions``: the query may keep more versions than the default."""
    driver, (follower,) = place.opened("a", "b")
    place.write(driver, 1)
    assert follower.step()
    place.write(driver, 7)
    before = follower.store.pointer().horizon
    follower.catch_up()
    assert follower.store.pointer().horizon == before
    assert place.check("b") == 8
    follower = next(iter(place.opened("a", "b")[1]))
    assert follower.step()
    assert follower.store.pointer().horizon == 7, "the next driver does"


def test_an_emptied_secondary_is_rebuilt_at_its_horizon_not_version_by_version(tmp_path):
    place = Place("sqlite", tmp_path)
    driver, (follower,) = place.opened("a", "b")
    place.write(driver, 8)
    assert follower.step()
    shutil.rmtree(tmp_path / "b")
    follower = next(iter(place.opened("a", "b")[1]))
    place.ports["b"].calls.clear()
    assert follower.step()
    assert place.check("b") == 8
    assert follower.store.pointer().horizon == 7
    assert place.ports["b"].published() == [], "all at once, by the end of the fill"
