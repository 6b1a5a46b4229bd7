"""SIGKILL at every named place of the protocol, the log on Kafka and the store in files."""

import pytest

from crash.sweep.place import FINISHES, REACHED
from services.support.workloads.driver_killed import TURNS, DriverKilled, in_turn

pytest_plugins = ["services.support.kafka.sweep.place"]


@pytest.mark.one_in(8)
class TestFiles(DriverKilled):
    """The fixture ``place`` has its store in files."""

    @pytest.mark.slow
    def test_killed_again_and_again(self, place):
        super().test_killed_again_and_again(place)


def test_every_name_and_every_pair_is_a_quick_case_of_some_store():
    killed = [case for turn in range(TURNS) for case in in_turn(turn)]
    assert sorted(name for name, _, _ in killed) == sorted(REACHED)
    assert len({(hit, finish) for _, hit, finish in killed}) == 2 * len(FINISHES)
