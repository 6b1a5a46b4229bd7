"""Incidents of one Redis server: killed, emptied, full, replaced."""

from __future__ import annotations

import time
from pathlib import Path

from game_day.incident import OPERATOR, Incident
from game_day.rig import Rig
from services.support.redis.server import RedisServer
from support.wait import wait_until

AWAY_S = 5.0
BACKUP_EVERY_S, MOVED_S = 3.0, 60.0
STEP_BYTES = 5_000
TRIMMING = {"apply_deadline_s": 1.0, "wal_retain_s": 10.0, "summary_every": 2}
"""Options of a driver that trims its log within half a minute."""


def redis(folder: Path) -> RedisServer:
    return RedisServer(folder)


def killed_and_back(rig: Rig) -> None:
    rig.store.kill()
    time.sleep(AWAY_S)
    rig.store.start()


def flushed(rig: Rig) -> None:
    rig.store.ask("FLUSHALL")


def restarted_empty(rig: Rig) -> None:
    rig.store.kill()
    rig.store.restart(empty=True)


def lost_after_trim(rig: Rig) -> None:
    """Back up every few seconds, as cron does, until the log is trimmed; then lose the server's data."""
    rig.placeholders["FOLDER"] = str(rig.folder / "backup")
    first = min((rig.folder / "wal").rglob("*.seg"))

    def trimmed() -> bool:
        code, output = rig.tidegate("backup", "FOLDER")
        assert code == 0, output
        time.sleep(BACKUP_EVERY_S)
        return not first.exists()

    wait_until(trimmed, "the log is trimmed", 60)
    rig.messages.clear()
    restarted_empty(rig)


def full(rig: Rig) -> None:
    """Leave no memory for the next version."""
    rig.actions[r"raise maxmemory"] = lambda: rig.store.ask("CONFIG", "SET", "maxmemory", "0")
    memory = rig.store.info("memory")["used_memory"]
    rig.store.ask("CONFIG", "SET", "maxmemory", memory * 9 // 10)
    moment = time.monotonic()
    wait_until(lambda: any(m.source in ("query", "log") for m in rig.observed_since(moment)), "a refusal", 60)


def evicting(rig: Rig, *, stays_full: bool = False) -> None:
    """Let the server evict what it likes, for a peak of another user of its memory."""

    def keep_rows() -> None:
        rig.store.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")

    def keep_rows_and_raise() -> None:
        keep_rows()
        rig.store.ask("CONFIG", "SET", "maxmemory", "0")

    rig.actions[r"[Ss]et maxmemory-policy noeviction.*? raise maxmemory"] = keep_rows_and_raise
    rig.actions[r"noeviction"] = keep_rows
    rig.store.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    memory = rig.store.info("memory")["used_memory"]
    moment = time.monotonic()

    def evicted() -> bool:
        nonlocal memory
        memory -= STEP_BYTES
        rig.store.ask("CONFIG", "SET", "maxmemory", memory)
        return bool(rig.readers.errors_since(moment) or not rig.store.ask("DBSIZE"))

    wait_until(evicted, "evictions", 60)
    if not stays_full:
        rig.store.ask("CONFIG", "SET", "maxmemory", "0")


def evicting_and_full(rig: Rig) -> None:
    """The same, and the memory stays full."""
    evicting(rig, stays_full=True)


def moved(rig: Rig) -> None:
    """Fill a new server, remove the old one and switch it off, as docs/several-stores.md describes it."""
    old = rig.job.store
    new = RedisServer(rig.folder / "new-server")
    rig.running.enter_context(new)
    rig.readers_store = old
    rig.successors.append(f"127.0.0.1:{new.port}")
    rig.readers.reconnect()
    wait_until(lambda: not rig.readers.reconnecting, "the long-lived reader has the new address", MOVED_S)

    def operate(*words: str) -> None:
        code, output = rig.tidegate(*words)
        assert code == 0, output

    rig.driver.stop()
    operate("store", "add", f"green={new.url}", "--store", f"blue={old}")
    both = ("--store", f"green={new.url}", "--store", f"blue={old}")
    operate("store", "remove", "blue", "--redirect", "green", *both)
    rig.job.store = f"green={new.url}"
    moment, before = time.monotonic(), rig.generator.last
    rig.restart()
    wait_until(lambda: rig.readers.answered_since(moment) > before, "readers are redirected", MOVED_S)
    rig.readers_store = new.url
    rig.readers.reconnect()
    wait_until(lambda: not rig.readers.reconnecting, "the long-lived reader connects again", MOVED_S)
    operate("drop", "--only-stores", "--store", f"blue={old}")
    rig.store.kill()


INCIDENTS = [
    Incident("redis-killed", "Redis kill -9 with AOF, back after 5 s", killed_and_back, redis, fast=True),
    Incident("redis-flushed", "`FLUSHALL` under the query", flushed, redis, fast=True),
    Incident("redis-empty", "Redis restarts without its data", restarted_empty, redis, fast=True),
    Incident(
        "redis-lost-trimmed",
        "Redis loses its data and the log is trimmed",
        lost_after_trim,
        redis,
        actor=OPERATOR,
        alert="TidegateQueryFailed",
        options=TRIMMING,
    ),
    Incident(
        "redis-full",
        "Redis is full (`noeviction`)",
        full,
        redis,
        actor=OPERATOR,
        alert="TidegateStoreNearlyFull",
        options={"apply_deadline_s": 8.0},
        fast=True,
    ),
    Incident(
        "redis-evicting",
        "Redis evicts keys (`allkeys-lru`)",
        evicting,
        redis,
        actor=OPERATOR,
        alert="TidegateStoreEvicts",
        options={"apply_deadline_s": 8.0},
        fast=True,
    ),
    Incident(
        "redis-evicting-full",
        "Redis evicts keys, and its memory stays full",
        evicting_and_full,
        redis,
        actor=OPERATOR,
        alert="TidegateQueryFailed",
        options={"apply_deadline_s": 8.0},
        fast=True,
    ),
    Incident(
        "redis-moved",
        "move to a new Redis",
        moved,
        redis,
        actor=OPERATOR,
        fast=True,
        note="planned, by the steps of [a move](several-stores.md#move-to-another-server)",
    ),
]
