"""Filling an empty store from another one: stopped, done by another, fenced, or overtaken."""

import pytest

from support.places import opened, to_fill
from tidegate.committers.background.fill import _decided, _entry
from tidegate.committers.operations.verify import verify
from tidegate.committers.steps.fill_groups import is_filled
from tidegate.errors import FencedError, SnapshotExpiredError, WalGapError


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
    assert is_filled(driver, 1, 0)


def test_a_fill_under_an_older_epoch_is_told_that_it_is_fenced(place):
    driver = opened(place, 1)
    driver.decisions.epoch = 0
    with pytest.raises(FencedError, match="that driver fills it; stop this one"):
        is_filled(driver, 1, 2)


def test_a_version_that_the_log_does_not_know_is_not_copied(place):
    driver = opened(place, 1)
    with pytest.raises(WalGapError, match="log and stores do not belong together"):
        _decided(driver.decisions, 2)


def test_a_version_that_is_retired_as_it_is_copied_is_tried_anew(place, monkeypatch):
    driver = opened(place, 1)
    monkeypatch.setattr(driver.store, "catalog", lambda *_: [])
    with pytest.raises(SnapshotExpiredError, match="version 1 was retired meanwhile"):
        _entry(driver.store, driver.folded.recent[0])
