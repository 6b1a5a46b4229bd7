"""The incidents, by the part that fails."""

from __future__ import annotations

from game_day.incident import Incident
from game_day.incidents import checkpoints, kafka_brokers, outages, redis_servers

ALL: list[Incident] = [
    *redis_servers.INCIDENTS,
    *kafka_brokers.INCIDENTS,
    *checkpoints.INCIDENTS,
    *outages.INCIDENTS,
]
