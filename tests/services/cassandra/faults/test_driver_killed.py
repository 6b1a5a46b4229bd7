"""SIGKILL at every named place of the protocol, the log on Kafka and the store on Cassandra."""

import pytest

from services.support.kafka.sweep.place import place_on
from services.support.workloads.driver_killed import DriverKilled

pytestmark = pytest.mark.slow  # a case takes several seconds here


@pytest.mark.one_in(16)  # a case takes twice the time of one on other stores
class TestCassandra(DriverKilled):
    turn = 2

    @pytest.fixture
    def place(self, kafka, cassandra_tables, tmp_path):
        """One node for all: the namespace, which has the same name in every test, goes in the end."""
        with place_on(kafka.bootstrap, tmp_path, store=cassandra_tables) as made:
            yield made
            with made.opened() as (_, store):
                store.drop()

    @pytest.mark.slow
    def test_killed_again_and_again(self, place):
        super().test_killed_again_and_again(place)
