"""SIGKILL at every named place of the protocol, the log on Kafka and the store on Redis."""

import pytest

from services.support.kafka.sweep.place import place_on
from services.support.workloads.driver_killed import DriverKilled


@pytest.mark.one_in(8)
class TestRedis(DriverKilled):
    turn = 1

    @pytest.fixture
    def place(self, kafka, private_redis, tmp_path):
        """A server of its own: the namespace has the same name in every test."""
        server = private_redis(settings={"appendfsync": "everysec"})
        with place_on(kafka.bootstrap, tmp_path, store=server.url) as made:
            yield made

    @pytest.mark.slow
    def test_killed_again_and_again(self, place):
        super().test_killed_again_and_again(place)
