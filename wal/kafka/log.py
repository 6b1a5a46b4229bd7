"""The log on Kafka: two topics, idempotent producers, acknowledged by all in-sync replicas.

::

    <prefix>.<namespace, escaped>.decisions    one partition; a position is an offset
    <prefix>.<namespace, escaped>.changelog    blobs; an address names topic id, partition and offsets

Four rules carry the guarantees. An ack follows after every delivery report (I3). A report without
an offset proves nothing, so it is an OutcomeUnknownError. After every write the topic's id is
compared, since a topic that was deleted and created again is another log (T20). The end of the log
is the brokers' high watermark: a record below it is on every in-sync replica. No Kafka transactions
are used (T23).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from tidegate.base.checks import Check
from tidegate.base.clock import Clock
from tidegate.base.names import saved_by_relog
from tidegate.errors import (
    ConfigError,
    CorruptError,
    OutcomeUnknownError,
    WalGapError,
    WalUnavailableError,
)
from tidegate.wal.fold import Entry
from tidegate.wal.kafka import checks as kafka_checks
from tidegate.wal.kafka.address import Address, parse_address, pieces
from tidegate.wal.kafka.clients import Clients
from tidegate.wal.kafka.consumer import ends, read_offsets, read_range
from tidegate.wal.kafka.producer import DeliveryReports
from tidegate.wal.kafka.settings import MARGIN_S, PIECE_BYTES_MAX, KafkaSettings
from tidegate.wal.kafka.spool import Spool
from tidegate.wal.kafka.topics import Topic, Topics
from tidegate.wal.log import RECORD_BYTES_MAX, Appended, Blob, Log, LogSize, Trimmed

SEGMENT = re.compile(r"[a-z0-9-]{1,200}")
ENVELOPE_BYTES = 1024
"""The most bytes that a record batch adds to a message: its header, the record's, and the key."""
SAMPLES = 16
LOOKED_S = 5.0
"""How long a description of the topics is reused for the check before blobs are staged, that the
log was not removed. The id of the topic that took them is checked again after every write.
"""


class KafkaLog(Log):
    """A log in two topics of a Kafka cluster. Connects on first use."""

    def __init__(self, settings: KafkaSettings, namespace: str, *, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self.where = f"kafka://{settings.brokers} ({settings.topic_prefix}, {namespace})"
        self._saving = saved_by_relog(namespace)
        self._settings = settings
        self._clients = Clients(settings, self.where)
        self._topics = Topics(self._clients, namespace)
        self._decisions, self._changelog = self._topics.names
        self._told: tuple[int, float] | None = None
        """The brokers' clock at an append, and this process's monotonic clock at the same moment."""
        self._known: dict[str, str] = {}
        """The ids of the topics that this instance works on, by name: another id is another log (T20)."""
        self._remade: set[str] = set()
        """Topics whose id was seen to differ. This instance does not write to them any more."""
        self._seen: dict[str, tuple[Topic, float]] = {}
        """The last description of each topic, and its time."""

    # -- creation -----------------------------------------------------------------------------------

    def create(self) -> None:
        self._topics.create()
        self._forget()

    def _forget(self) -> None:
        self._known.clear()
        self._remade.clear()
        self._seen.clear()

    def checks(self) -> list[Check]:
        topics = self._topics.look(*self._topics.names, rights=True)
        if not topics:
            return []
        checks = kafka_checks.checks(
            self._topics.names, topics, self._topics.settings_of(*topics), self._settings.grant, self._saving
        )
        return [*checks, kafka_checks.request_size(self._topics.request_bytes())]

    def retention_s(self) -> float | None:
        topics = self._topics.look(*self._topics.names)
        return kafka_checks.retention_s(self._topics.settings_of(*topics)) if topics else None

    def drop(self) -> bool:
        existed = self._topics.remove()
        self._forget()
        return existed

    def close(self) -> None:
        self._clients.close()

    # -- the decision log ---------------------------------------------------------------------------

    def append_decision(self, content: bytes) -> Appended:
        if len(content) > RECORD_BYTES_MAX - ENVELOPE_BYTES:
            msg = f"{self.where}: a record of {len(content)} bytes is too long"
            raise ConfigError(msg)
        self._refuse_remade(self._decisions)
        topic_id = self._known.get(self._decisions) or self._there(self._decisions).topic_id
        with self._clients.producer(self._decisions) as producer:
            receipts = DeliveryReports(self._clients, producer, self._decisions, 0)
            receipts.send(content)
            try:
                (offset,) = receipts.all_in()
            except (WalUnavailableError, ConfigError) as error:
                self._refuse_if_gone(self._decisions, error)
                msg = f"{error}: the record may be in the log or not, or may still arrive"
                raise OutcomeUnknownError(msg) from error
        try:
            self._same(self._decisions, topic_id)
        except (WalUnavailableError, ConfigError) as error:
            msg = f"{error}: the record was acknowledged, but whether by the same topic is not known"
            raise OutcomeUnknownError(msg) from error
        if receipts.appended_at_us is not None:
            self._told = receipts.appended_at_us, self._clock.monotonic()
        return Appended(offset, offset + 1)

    def now_us(self) -> int | None:
        if self._told is None:
            return None
        told_us, then_s = self._told
        return told_us + int((self._clock.monotonic() - then_s) * 1_000_000)

    def decisions(self, position: int = 0) -> Iterator[Entry]:
        topic = self._topics.look(self._decisions).get(self._decisions)
        if topic is None:
            if position:
                msg = f"{self.where}: topic {self._decisions} is not there any more; {self._saving}"
                raise WalGapError(msg)
            return iter(())
        self._same(self._decisions, self._known.setdefault(self._decisions, topic.topic_id), topic)
        while True:
            first, end = self._ends(self._decisions, 0)
            if position and not first <= position <= end:
                holds = f"{self._decisions} holds offsets {first} to {end}"
                why = "those before were trimmed" if position < first else "an older copy was put back"
                msg = f"{self.where}: {holds}, not {position}: {why}"
                raise WalGapError(msg)
            messages = read_range(self._clients, self._decisions, 0, position or first, end)
            try:
                # All before the first is yielded, so that a concurrent trim cannot tear the iteration.
                entries = Spool.of(
                    Entry(message.offset, message.offset + 1, message.content) for message in messages
                )
            except WalGapError:
                if position or self._ends(self._decisions, 0)[0] <= first:
                    raise
                continue  # trimmed since the ends were read: the log starts later now
            return iter(entries)

    def is_empty(self) -> bool:
        topic = self._topics.look(self._decisions).get(self._decisions)
        if topic is None:
            return True
        first, end = self._ends(self._decisions, 0)
        return first == end

    def trim_decisions(self, position: int) -> None:
        self._there(self._decisions)
        first, end = self._ends(self._decisions, 0)
        if position <= first:
            return  # already cut there or further
        if position >= end:
            msg = f"{self.where}: {self._decisions} ends at {end}, before the record at {position}"
            raise WalGapError(msg)
        try:
            list(read_offsets(self._clients, self._decisions, {0: [position]}))
        except WalGapError as error:
            if self._ends(self._decisions, 0)[0] > position:
                return
            msg = f"{self.where}: {self._decisions} has no record at offset {position}; it was not cut there"
            raise CorruptError(msg) from error
        self._delete_before({TopicPartition(self._decisions, 0, position)})

    # -- the change-log -----------------------------------------------------------------------------

    def stage(self, segment: str, blobs: Iterable[bytes]) -> list[str]:
        if SEGMENT.fullmatch(segment) is None:
            msg = f"segment name {segment!r} is not allowed: use 1 to 200 of the characters a-z 0-9 -"
            raise ConfigError(msg)
        waiting = iter(blobs)
        if (first := next(waiting, None)) is None:
            return []
        topic = self._lately_there(self._changelog, self._decisions)
        # One partition per segment: what one task wrote is read back in one run.
        partition = zlib.crc32(segment.encode()) % topic.partitions
        counts: list[tuple[int, int]] = []
        with self._clients.producer(self._changelog) as producer:
            receipts = DeliveryReports(self._clients, producer, self._changelog, partition, segment.encode())
            blob: bytes | None = first
            first = None
            try:
                while blob is not None:
                    sent = 0
                    for piece in pieces(blob, PIECE_BYTES_MAX):
                        receipts.send(piece)
                        sent += 1
                    counts.append((len(blob), sent))
                    blob = next(waiting, None)
                offsets = iter(receipts.all_in())
            except WalUnavailableError as error:
                self._refuse_if_gone(self._changelog, error)
                raise
        self._same(self._changelog, topic.topic_id)
        return [
            str(Address(topic.topic_id, partition, length, tuple(next(offsets) for _ in range(sent))))
            for length, sent in counts
        ]

    def read(self, addresses: Sequence[str]) -> Iterator[Blob]:
        places = {parse_address(address, self.where): address for address in addresses}
        if not places:
            return
        topic = self._topics.look(self._changelog).get(self._changelog)
        offsets_by_partition: dict[int, set[int]] = {}
        of_piece: dict[tuple[int, int], Address] = {}
        for place in places:
            if topic is None or place.topic_id != topic.topic_id:
                now = "is not there" if topic is None else "was deleted and made again"
                msg = f"{self.where}: topic {self._changelog} {now}: the blob at {place} is lost"
                raise WalGapError(msg)
            offsets_by_partition.setdefault(place.partition, set()).update(place.offsets)
            for offset in place.offsets:
                of_piece[place.partition, offset] = place
        gathered: dict[Address, list[bytes]] = {}
        for message in read_offsets(
            self._clients,
            self._changelog,
            {partition: sorted(offsets) for partition, offsets in offsets_by_partition.items()},
        ):
            place = of_piece[message.partition, message.offset]
            parts = gathered.setdefault(place, [])
            parts.append(message.content)
            if len(parts) == len(place.offsets):
                yield Blob(places[place], b"".join(gathered.pop(place)))

    def trim_blobs(self, needed: Collection[str], before_us: int) -> Trimmed:
        places = [parse_address(address, self.where) for address in needed]
        topic = self._there(self._changelog)
        keep_from: dict[int, int] = {}
        for place in places:
            if place.topic_id == topic.topic_id:
                lowest = keep_from.get(place.partition, place.offsets[0])
                keep_from[place.partition] = min(lowest, place.offsets[0])
        # Ends before times: messages after the ends are younger than any that the times cover.
        stored = {partition: self._ends(self._changelog, partition) for partition in range(topic.partitions)}
        young = self._first_since(before_us, topic.partitions)
        cuts = {}
        for partition, (first, end) in stored.items():
            cut = min(keep_from.get(partition, end), young.get(partition, end), end)
            if cut > first:
                cuts[partition] = (first, cut)
        dropped = sum(self._bytes_between(partition, *between) for partition, between in cuts.items())
        if cuts:
            self._delete_before({TopicPartition(self._changelog, p, cut) for p, (_, cut) in cuts.items()})
        return Trimmed(dropped)

    def _first_since(self, since_us: int, partitions: int) -> dict[int, int]:
        """Return, by partition, the first offset appended at or after this time, by the brokers' clocks."""
        since_ms = since_us // 1000
        queries = [TopicPartition(self._changelog, partition, since_ms) for partition in range(partitions)]

        def look(consumer: Any) -> list[Any]:
            answers = consumer.offsets_for_times(queries, timeout=self._settings.request_s)
            for answer in answers:
                if answer.error is not None:
                    raise KafkaException(answer.error)
            return list(answers)

        offsets = self._clients.ask(
            lambda: self._clients.consumer(self._changelog), f"times in {self._changelog}", look
        )
        return {one.partition: one.offset for one in offsets if one.offset >= 0}

    # -- size ---------------------------------------------------------------------------------------

    def size(self) -> LogSize:
        topics = self._topics.look(*self._topics.names)
        totals = dict.fromkeys(self._topics.names, 0)
        for name, topic in topics.items():
            for partition in range(topic.partitions):
                first, end = self._ends(name, partition)
                totals[name] += self._bytes_between(partition, first, end, name)
        return LogSize(totals[self._decisions], totals[self._changelog])

    def _bytes_between(self, partition: int, start: int, end: int, name: str | None = None) -> int:
        """Estimate the bytes: exact for a few messages, from evenly spaced samples for more.

        The brokers know the size, but the client's library has no request for it.
        """
        name = name or self._changelog
        count = end - start
        step = max(count / SAMPLES, 1.0)
        offsets = sorted({start + int(nth * step) for nth in range(min(count, SAMPLES))})
        try:
            sizes = [len(one.content) for one in read_offsets(self._clients, name, {partition: offsets})]
        except WalGapError:  # a gap, or trimmed meanwhile
            return 0
        return round(sum(sizes) * count / len(sizes)) if sizes else 0

    # -- helpers ------------------------------------------------------------------------------------

    def _there(self, name: str, *more: str) -> Topic:
        """Return the topic and record its id.

        Raises: WalUnavailableError, it or one of ``more`` is missing.
        """
        topics = self._topics.look(name, *more)
        for topic_name in (name, *more):
            if topic_name not in topics:
                self._seen.clear()
                raise self._missing(topic_name)
            self._note(topics[topic_name])
        self._same(name, self._known.setdefault(name, topics[name].topic_id), topics[name])
        return topics[name]

    def _lately_there(self, name: str, *more: str) -> Topic:
        """As ``_there``, but accept a recent description. A caller that writes on it checks the id
        afterwards.
        """
        self._refuse_remade(name)
        since = self._clock.monotonic() - LOOKED_S
        seen = [self._seen.get(topic_name) for topic_name in (name, *more)]
        if seen[0] is not None and all(one is not None and one[1] >= since for one in seen):
            return seen[0][0]
        return self._there(name, *more)

    def _note(self, topic: Topic) -> None:
        self._seen[topic.name] = topic, self._clock.monotonic()

    def _missing(self, name: str) -> WalUnavailableError:
        return WalUnavailableError(
            f"{self.where}: topic {name} is not there: the log was removed, or was never made; {self._saving}"
        )

    def _refuse_if_gone(self, name: str, error: Exception) -> None:
        """Raise WalUnavailableError when the topic does not exist (any more): nothing was written
        to this log.
        """
        try:
            topics = self._topics.look(name)
        except (WalUnavailableError, ConfigError):
            return
        if name not in topics:
            raise self._missing(name) from error

    def _same(self, name: str, topic_id: str, topic: Topic | None = None) -> None:
        """Raise WalGapError when the topic does not exist, or has another id."""
        now = topic or self._topics.look(name).get(name)
        if now is None:
            self._seen.clear()
            msg = f"{self.where}: topic {name} was deleted while it was in use; {self._saving}"
            raise WalGapError(msg)
        if now.topic_id != topic_id:
            self._remade.add(name)
            self._refuse_remade(name)
        self._note(now)

    def _refuse_remade(self, name: str) -> None:
        """Raise WalGapError for a topic seen with another id. A new instance may accept it as the log."""
        if name in self._remade:
            msg = f"{self.where}: topic {name} was deleted and made again while it was in use; {self._saving}"
            raise WalGapError(msg)

    def _ends(self, name: str, partition: int) -> tuple[int, int]:
        return ends(self._clients, name, partition)

    def _delete_before(self, places: set[Any]) -> None:
        request_s = self._settings.request_s

        def delete(admin: Any) -> None:
            for future in admin.delete_records(list(places), request_timeout=request_s).values():
                future.result(request_s + MARGIN_S)

        self._clients.ask(self._clients.admin, "trimming", delete)
