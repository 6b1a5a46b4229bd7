"""What the log on Kafka costs beside bare clients: staging frames, reading them back, deciding.

    tools/run python tests/services/run.py kafka -- python benchmarks/bench_kafka_log.py --wal {kafka}

Each is done in turns with one bare client on a topic of its own, in the same run; the ratio is of
the medians. Bare staging is one idempotent producer with acks=all that sends the same frames and
waits for every delivery report; bare reading one consumer by assignment from the first offset;
bare deciding one acked message of the same bytes. The bare consumer has the log's own settings for
fetching, and asks for as many messages at a time. Checksums, addresses, bounds and the look at
the topic's id afterwards are what the log adds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import uuid
from collections.abc import Callable
from functools import partial

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidegate.wal.kafka.consumer import AT_ONCE
from tidegate.wal.kafka.settings import settings_of
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log

FRAME_BYTES = 900_000
RECORD_BYTES = 1_500
READS = 4
WORK_S = 0.005
"""What a reader takes for each frame, as an apply does."""


class Bare:
    """One producer and one consumer on a topic without any log around it."""

    def __init__(self, brokers: str, topic: str, partitions: int) -> None:
        self._servers = {"bootstrap.servers": brokers}
        self._topic = topic
        self._admin = AdminClient(self._servers)
        made = self._admin.create_topics([NewTopic(topic, partitions, 1)], operation_timeout=10)
        made[topic].result()
        self._producer = Producer(
            {
                **self._servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.max.bytes": 2_000_000,
            }
        )
        self._producer.list_topics(topic, 10)
        # Fetching as the log does, which suits frames better than the defaults.
        settings = settings_of(f"kafka://{brokers}", {}).for_consumer()
        fetching = {name: value for name, value in settings.items() if name.startswith(("fetch", "queued"))}
        self._consumer = Consumer(
            {**self._servers, **fetching, "group.id": "bare", "enable.auto.commit": False, "check.crcs": True}
        )

    def produce(self, blobs: list[bytes]) -> None:
        waiting = set(range(len(blobs)))
        for nth, blob in enumerate(blobs):
            while True:
                try:
                    self._producer.produce(
                        self._topic,
                        blob,
                        partition=0,
                        on_delivery=lambda e, _, nth=nth: e or waiting.discard(nth),
                    )
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self._producer.poll(0)
        while waiting:
            self._producer.poll(0.1)

    def consume(self, start: int, count: int) -> int:
        self._consumer.assign([TopicPartition(self._topic, 0, start)])
        total = 0
        while count:
            for message in self._consumer.consume(min(count, AT_ONCE), 10):
                total += len(message.value())
                count -= 1
        self._consumer.unassign()
        return total

    def drop(self) -> None:
        self._consumer.close()
        self._admin.delete_topics([self._topic])[self._topic].result()


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def quantiles(seconds: list[float]) -> tuple[float, float]:
    ordered = sorted(seconds)
    return ordered[len(ordered) // 2] * 1e3, ordered[int(len(ordered) * 0.99)] * 1e3


def bench_frames(log: Log, bare: Bare, frames: list[bytes], rounds: int) -> None:
    taken: dict[str, list[float]] = {"stage": [], "bare produce": [], "read": [], "bare consume": []}
    size = sum(map(len, frames))
    worked: list[float] = []
    for nth in range(rounds + 1):  # the first is not counted: connections, caches
        addresses: list[str] = []
        staged = timed(partial(_stage, log, f"round-{nth}", frames, addresses))
        produced = timed(lambda: bare.produce(frames))
        if nth:
            taken["stage"].append(staged)
            taken["bare produce"].append(produced)
        for turn in range(READS):
            pair = [
                ("read", partial(_read, log, addresses)),
                ("bare consume", partial(bare.consume, nth * len(frames), len(frames))),
            ]
            for name, work in pair if turn % 2 else reversed(pair):  # neither is always first
                seconds = timed(work)
                if nth:
                    taken[name].append(seconds)
        if nth:
            worked.append(timed(partial(_read, log, addresses, WORK_S)))
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    for ours, theirs in (("stage", "bare produce"), ("read", "bare consume")):
        speeds = ", ".join(f"{name} {size / medians[name] / 1e6:.0f} MB/s" for name in (ours, theirs))
        print(
            f"{len(frames)} frames of {FRAME_BYTES:,} bytes: {speeds}; {medians[theirs] / medians[ours]:.2f}x"
        )
    print(
        f"with {WORK_S * 1e3:g} ms of work for each frame read back: {statistics.median(worked):.3f} s,"
        f" {len(frames) * WORK_S:.3f} s of it the work"
    )


def _stage(log: Log, segment: str, frames: list[bytes], addresses: list[str]) -> None:
    addresses += log.stage(segment, iter(frames))


def _read(log: Log, addresses: list[str], work_s: float = 0.0) -> int:
    total = 0
    for blob in log.read(addresses):
        total += len(blob.content)
        if work_s:
            time.sleep(work_s)
    return total


def bench_decide(log: Log, bare: Bare, count: int) -> None:
    record = random.Random(1).randbytes(RECORD_BYTES)
    log.append_decision(record)
    ours, theirs = [], []
    for _ in range(count):
        ours.append(timed(lambda: log.append_decision(record)))
        theirs.append(timed(lambda: bare.produce([record])))
    (p50, p99), (bare_p50, bare_p99) = quantiles(ours), quantiles(theirs)
    print(
        f"{count} records of {RECORD_BYTES:,} bytes: decide p50 {p50:.2f} ms, p99 {p99:.2f} ms; bare acked"
        f" produce p50 {bare_p50:.2f} ms, p99 {bare_p99:.2f} ms; over 2x by {p50 - 2 * bare_p50:+.2f} and"
        f" {p99 - 2 * bare_p99:+.2f} ms (asked: at most +5)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--wal", required=True, help="kafka://host:port of a broker for this")
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decisions", type=int, default=1_000)
    given = parser.parse_args()
    name = f"bench-{uuid.uuid4().hex[:8]}"
    log = open_log(given.wal, name)
    log.create()
    bare = Bare(given.wal.removeprefix("kafka://"), f"{name}-bare", 8)
    try:
        chance = random.Random(7)
        frames = [chance.randbytes(FRAME_BYTES) for _ in range(given.frames)]
        bench_frames(log, bare, frames, given.rounds)
        bench_decide(log, bare, given.decisions)
    finally:
        bare.drop()
        log.drop()
        log.close()


if __name__ == "__main__":
    main()
