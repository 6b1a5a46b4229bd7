"""Incidents of the log: one broker, or a log in files whose disk is full."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from game_day.incident import OPERATOR, Incident
from game_day.incidents.redis_servers import redis
from game_day.rig import Rig
from services.support.kafka.server import KafkaCluster
from support.wait import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

AWAY_S = 45.0
DISK_BYTES = 4 << 20
NEARLY_FULL, LOG_NEARLY_FULL = 0.95, "TidegateLogNearlyFull"


def kafka(folder: Path) -> KafkaCluster:
    return KafkaCluster(folder)


def restarted(rig: Rig) -> None:
    rig.log.kill(0)
    rig.log.restart(0)


def away(rig: Rig) -> None:
    rig.log.kill(0)
    time.sleep(AWAY_S)
    rig.log.restart(0)


def relog_by_its_steps(rig: Rig) -> None:
    """Let the operator follow a proposed relog by the steps that it prints."""

    def relogged() -> None:
        rig.driver.stop()
        code, output = rig.tidegate("relog", "--checkpoint", rig.job.checkpoint)
        assert code == 0, output
        rig.job.namespace = f"{rig.job.namespace}_2"
        rig.restart()
        rig.readers.reconnect()

    rig.actions[r"tidegate relog"] = relogged


def topics_deleted(rig: Rig) -> None:
    relog_by_its_steps(rig)
    admin = AdminClient(rig.log.client_settings)
    topics = [topic for topic in admin.list_topics(timeout=10).topics if rig.job.namespace in topic]
    assert len(topics) == 2, topics
    for deleted in admin.delete_topics(topics, operation_timeout=30).values():
        deleted.result()


class Disk:
    """A small file system in memory for the log's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"file://{folder}/wal"
        self._ballast = folder / "ballast"

    def __enter__(self) -> Self:
        self._folder.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self._folder)], check=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", str(self._folder)], check=True)

    def fill(self, share: float = 1.0) -> None:
        """Fill this share of the disk, or what is left of it."""
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while share == 1.0 or file.tell() < share * DISK_BYTES:
                file.write(bytes(4096))

    def free(self) -> None:
        self._ballast.unlink()


def disk_full(rig: Rig) -> None:
    """Fill the disk slowly enough for its alert, which nobody heeds."""
    rig.actions[r"free (?:some )?space|disk is full|No space left"] = lambda: (rig.log.free(), None)[1]
    rig.log.fill(NEARLY_FULL)
    wait_until(lambda: LOG_NEARLY_FULL in rig.prometheus.firing(), "the alert before", 60)
    rig.log.fill()
    moment = time.monotonic()
    wait_until(lambda: any(m.source in ("query", "log") for m in rig.observed_since(moment)), "a refusal", 60)


INCIDENTS = [
    Incident("broker-restart", "the broker is killed and starts again", restarted, redis, kafka, fast=True),
    Incident(
        "broker-away",
        "the broker is away for 45 s",
        away,
        redis,
        kafka,
        alert="TidegateLogUnreachable",
        patience_s=30,
    ),
    Incident(
        "topics-deleted",
        "both topics of the log are deleted",
        topics_deleted,
        redis,
        kafka,
        actor=OPERATOR,
        alert="TidegateQueryFailed",
    ),
    Incident(
        "log-disk-full",
        "the disk of a log in files is full",
        disk_full,
        redis,
        Disk,
        actor=OPERATOR,
        alert=LOG_NEARLY_FULL,
        note="a file system in memory, which needs root",
    ),
]
