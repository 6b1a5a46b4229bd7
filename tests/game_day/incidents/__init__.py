"""The incidents, a file for each kind of server or fault; each file has a list ``INCIDENTS``."""

from __future__ import annotations

from game_day.incident import Incident
from game_day.incidents import checkpoints, kafka_brokers, redis_servers

ALL: list[Incident] = [*redis_servers.INCIDENTS, *kafka_brokers.INCIDENTS, *checkpoints.INCIDENTS]
