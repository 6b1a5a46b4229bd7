"""Finishing decided versions."""

from support.places import driver_at
from tidegate.committers.background.finish import Finished, finish_decided


def test_where_nothing_was_made_there_is_nothing_to_finish(place):
    assert finish_decided(driver_at(place), [], "tidegate recover") == Finished([], 0, [])
