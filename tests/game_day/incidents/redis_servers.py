"""Incidents of one Redis server: killed, emptied, full, replaced."""

from __future__ import annotations

import time
from pathlib import Path

from game_day.incident import Incident
from game_day.rig import Rig
from services.support.redis.server import RedisServer

AWAY_S = 5.0


def redis(folder: Path) -> RedisServer:
    return RedisServer(folder)


def killed_and_back(rig: Rig) -> None:
    rig.store.kill()
    time.sleep(AWAY_S)
    rig.store.start()


INCIDENTS = [
    Incident("redis-killed", "Redis kill -9 with AOF, back after 5 s", killed_and_back, redis, fast=True),
]
