"""Gauges of stores: reported while somebody observes, and no store is asked otherwise."""

from support.places import driver_at, opened
from tidegate.committers.background.follower import Standing
from tidegate.committers.background.gauges import report_gauges
from tidegate.observe import events
from tidegate.observe.events import Gauge, Labels, Observer


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
    monkeypatch.setattr(events, "observers", ())  # metrics that another test exported go on observing
    driver = driver_at(place)  # its store is not even made
    report_gauges(Labels("n", "a"), driver.store, [], 2)
