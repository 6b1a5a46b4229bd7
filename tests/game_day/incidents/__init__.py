"""The incidents, by the part that fails."""

from __future__ import annotations

from game_day.incident import Incident
from game_day.incidents import (
    checkpoints,
    hosts,
    kafka_brokers,
    logins,
    outages,
    redis_servers,
    replaced_servers,
)

ALL: list[Incident] = [
    *redis_servers.INCIDENTS,
    *kafka_brokers.INCIDENTS,
    *checkpoints.INCIDENTS,
    *outages.INCIDENTS,
    *hosts.INCIDENTS,
    *logins.INCIDENTS,
    *replaced_servers.INCIDENTS,
]
