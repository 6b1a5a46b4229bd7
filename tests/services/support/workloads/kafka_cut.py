"""Cut the last records off all replicas, as a power cut of brokers does that had not fsynced them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from services.support.kafka.server import KafkaCluster

BATCH_HEAD = struct.Struct(">qi")
"""A record batch begins with its first offset and the length of what follows."""


def lose_last_records(cluster: KafkaCluster, lost: Mapping[str, int]) -> None:
    """Kill all brokers, cut so many records (a batch each) off each topic, start the brokers again."""
    for n in range(cluster.brokers):
        cluster.kill(n)
    for n in range(cluster.brokers):
        for topic, records in lost.items():
            (folder,) = cluster.data_folder(n).rglob(f"{topic}-0")
            _cut(folder, records)
    cluster.heal()


def _cut(folder: Path, records: int) -> None:
    segment = max(folder.glob("*.log"))
    content, starts, at = segment.read_bytes(), [], 0
    while at + BATCH_HEAD.size <= len(content):
        _, length = BATCH_HEAD.unpack_from(content, at)
        if length <= 0:
            break
        starts.append(at)
        at += BATCH_HEAD.size + length
    with segment.open("r+b") as file:
        file.truncate(starts[-min(records, len(starts))])
    for made_again in ("*.index", "*.timeindex", "*.snapshot"):
        for path in folder.glob(made_again):
            path.unlink()
