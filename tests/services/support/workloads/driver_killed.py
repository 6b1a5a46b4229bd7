"""SIGKILL at every named place of the protocol, the log on Kafka: the checks are those for files.

Each store has a class of its own, with a fixture ``place``. In the ordinary run a third of the names, the
class's ``turn``, is killed once and finished in one way, by turns (files have every name, in tests/crash);
with ``slow`` all are, at every hit and in every way.
"""

import itertools

import pytest

from crash.sweep.place import BATCHES, DEADLINE_S, FINISHES, REACHED, kill_at

TURNS = 3
ALL = tuple(itertools.product(REACHED, ("first", "later"), FINISHES))


def in_turn(turn):
    """A third of the names, each once; hits and ways go round, so that all six pairs are met."""
    pairs = itertools.cycle([(hit, way) for way in FINISHES for hit in ("first", "later")])
    return [(name, *pair) for name, pair in zip(REACHED, pairs, strict=False)][turn::TURNS]


class DriverKilled:
    turn = 0

    def pytest_generate_tests(self, metafunc):
        if "finish" in metafunc.fixturenames:
            quick = in_turn(self.turn)
            marks = {case: () if case in quick else pytest.mark.slow for case in ALL}
            cases = [pytest.param(*case, marks=marks[case]) for case in ALL]
            metafunc.parametrize("name,hit,finish", cases)

    def test_killed_at(self, place, name, hit, finish):
        check_killed_at(place, name, hit, finish)

    def test_killed_again_and_again(self, place):
        """Every process dies a step further; together they get there."""
        for name in REACHED[::3]:
            process = place.start("--keep-versions", "1", armed=f"{name}=kill")
            process.communicate(timeout=DEADLINE_S)
            place.check()
        place.run()
        assert place.check() == (BATCHES, BATCHES)
        place.check_all_of_it()


def check_killed_at(place, name, hit, finish):
    kill_at(place, name, hit)
    finish(place)
    if place.check()[1]:
        place.check_all_of_it()
