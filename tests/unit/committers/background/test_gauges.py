"""Gauges of stores and log: reported while somebody observes, and no last values that look healthy."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from support.clocks import HandClock
from support.places import driver_at, opened
from tidegate.base.clock import Clock
from tidegate.committers.background.follower import Standing
from tidegate.committers.background.gauges import OF_THE_STORE, Gauges
from tidegate.errors import StoreUnavailableError, WalUnavailableError
from tidegate.observe import events
from tidegate.observe.events import Gauge, Labels, Observer

MAIN, COPY, LOG = Labels("n", "a"), Labels("n", "b"), Labels("n")


@pytest.fixture
def levels():
    """The last value of each gauge."""
    values = {}

    class Noted(Observer):
        def level(self, what, at, value):
            values[what, at] = value

    noted = Noted()
    events.add(noted)
    yield values
    events.remove(noted)


def gauges_of(driver):
    return Gauges(MAIN, driver.log, driver.store, lambda: driver.folded, 7, Clock())


def raising(error):
    def call(*_):
        raise error

    return call


def test_each_store_has_its_lag_and_the_primary_its_gauges(place, levels):
    gauges_of(opened(place, 2)).report([Standing("b", "there", 1, 2, 3.0, "StoreUnavailableError: away")])
    assert levels[Gauge.LAG, MAIN] == 0
    assert levels[Gauge.LAG, COPY] == 1
    assert levels[Gauge.BEHIND_S, MAIN] == 0
    assert levels[Gauge.BEHIND_S, COPY] == 3.0
    assert (levels[Gauge.STORE_UP, MAIN], levels[Gauge.STORE_UP, COPY]) == (1, 0)
    assert levels[Gauge.LEASES_MAX, MAIN] == 7
    assert levels[Gauge.LOG_UP, LOG] == 1
    assert levels[Gauge.APPLY_BEFORE, MAIN] == math.inf
    assert levels[Gauge.VERSION_AT, MAIN] > 1.7e9


def test_a_version_from_the_future_has_the_time_of_its_first_report(place, levels):
    """Else the alert for a query without versions is silent until that time."""
    driver, clock = opened(place, 1), HandClock()
    gauges = Gauges(MAIN, driver.log, driver.store, lambda: driver.folded, 7, clock)
    times = []
    for _ in range(2):
        gauges.report([])
        times.append(levels[Gauge.VERSION_AT, MAIN])
        clock.advance(60)
    assert times == [1_700_000_000, 1_700_000_000]


def test_a_primary_that_is_away_has_no_last_values_that_look_healthy(place, levels, monkeypatch):
    driver = opened(place, 2)
    gauges = gauges_of(driver)
    gauges.report([])
    state = driver.folded
    newer = SimpleNamespace(last_version=3, recent=(*state.recent, state.recent[-1]))
    monkeypatch.setattr(gauges, "_folded", lambda: newer)
    monkeypatch.setattr(driver.store, "pointer", raising(StoreUnavailableError("away")))
    gauges.report([])
    assert levels[Gauge.STORE_UP, MAIN] == 0
    assert all(math.isnan(levels[gauge, MAIN]) for gauge in OF_THE_STORE)
    assert levels[Gauge.LAG, MAIN] == 1
    assert levels[Gauge.BEHIND_S, MAIN] > 0


def test_a_log_that_is_away_is_reported_and_hides_no_store(place, levels, monkeypatch):
    driver = opened(place, 1)
    monkeypatch.setattr(driver.log, "is_empty", raising(WalUnavailableError("away")))
    gauges_of(driver).report([])
    assert levels[Gauge.LOG_UP, LOG] == 0
    assert levels[Gauge.STORE_UP, MAIN] == 1


def test_a_version_that_waits_has_the_time_until_which_the_log_keeps_it(place, levels, monkeypatch):
    driver = opened(place, 2)
    monkeypatch.setattr(driver.log, "retention_s", lambda: 100.0)
    gauges_of(driver).report([Standing("b", "there", 1, 2, 3.0)])
    assert levels[Gauge.APPLY_BEFORE, COPY] == driver.folded.recent[1].decided_at_us / 1e6 + 100
    assert levels[Gauge.APPLY_BEFORE, MAIN] == math.inf


def test_the_fullest_server_and_its_distance_from_the_mean_are_reported(place, levels, monkeypatch):
    driver = opened(place, 1)
    monkeypatch.setattr(driver.store, "used_shares", lambda: {"a": 0.9, "b": 0.3})
    gauges_of(driver).report([])
    assert levels[Gauge.STORE_USED, MAIN] == 0.9
    assert levels[Gauge.IMBALANCE, MAIN] == pytest.approx(1.5)


def test_a_store_is_asked_only_while_somebody_observes(place, monkeypatch):
    monkeypatch.setattr(events, "observers", ())  # metrics that another test exported observe still
    driver = driver_at(place)  # its store is not even made
    monkeypatch.setattr(driver.store, "pointer", raising(AssertionError("asked")))
    gauges_of(driver).report([])


def test_a_store_that_may_evict_is_told_once_with_the_way_out(place, levels, monkeypatch, caplog):
    driver = opened(place, 1)
    gauges = gauges_of(driver)
    answers = iter(["a: set maxmemory-policy noeviction"] * 2 + ["", None])
    monkeypatch.setattr(driver.store, "may_evict", lambda: next(answers))
    seen = []
    for _ in range(4):
        gauges.watch_eviction()
        seen.append(levels[Gauge.MAY_EVICT, MAIN])
    assert seen[:3] == [1, 1, 0]
    assert math.isnan(seen[3])
    (line,) = [record.getMessage() for record in caplog.records if "noeviction" in record.getMessage()]
    assert line == f"{driver.store.where} may lose rows that are visible: a: set maxmemory-policy noeviction"
    monkeypatch.setattr(driver.store, "may_evict", raising(StoreUnavailableError("away")))
    gauges.watch_eviction()  # its state is reported by the other gauges
