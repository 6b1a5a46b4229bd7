"""A namespace with its log on a broker and its store in memory, and the drivers that follow one another."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from support.driver_process import expected_at, rows_of
from support.faulty import FaultyLog
from support.wait import wait_until
from tidegate.base.clock import Clock
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.verify import verify
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.memory.store import MemoryStore
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.fold import View, fold_all, replay_of
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log
from tidegate.wal.record import AnyRecord, decode_record

NAMESPACE, LINEAGE = "n", "query-1"
SEED, ROWS, KEY_GROUPS, PARTITIONS = 7, 10, 4, 2
DEADLINE_S = 30.0
KEEP_NOTHING_S = 0.002
"""What a trimmer of these tests is told: all that is not needed goes."""
NOT_YET = (
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
)
"""What a broker, or a client with its metadata, says of a topic whose partitions are not led yet."""


class Died(BaseException):
    pass


class AtCalls:
    """A port (``FaultyLog``) that does something around calls of the log: ``around(name)`` is a context."""

    def __init__(self, around: Callable[[str], contextlib.AbstractContextManager[None]]) -> None:
        self._around = around

    def call(self, call: Any, effect: Callable[[], Any]) -> Any:
        with self._around(call.name.removeprefix("log.")):
            return effect()


@dataclasses.dataclass
class World:
    """``bootstrap`` is where the drivers go, ``direct`` where the test looks."""

    bootstrap: str
    direct: str
    timeout_s: float = 3.0
    decide_deadline_s: float = 20.0
    summary_every: int = 2
    keep_versions: int = 2
    prefix: str = dataclasses.field(default_factory=lambda: f"w{uuid.uuid4().hex[:10]}")
    around: Callable[[str], contextlib.AbstractContextManager[None]] | None = None
    opened: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    @property
    def decisions(self) -> str:
        return f"{self.prefix}.{NAMESPACE}.decisions"

    @property
    def changelog(self) -> str:
        return f"{self.prefix}.{NAMESPACE}.changelog"

    # -- what runs ------------------------------------------------------------------------------------

    def log(self, bootstrap: str | None = None, **options: Any) -> Log:
        """Whoever goes there directly has time: nothing is lost on that way."""
        timeout_s = DEADLINE_S if bootstrap == self.direct else self.timeout_s
        given = {"topic_prefix": self.prefix, "partitions": PARTITIONS, "timeout_s": timeout_s}
        log = open_log(f"kafka://{bootstrap or self.bootstrap}", NAMESPACE, given | options)
        self.opened.callback(log.close)
        return log

    def store(self) -> MemoryStore:
        return MemoryStore(self.prefix, NAMESPACE)

    def driver(
        self, bootstrap: str | None = None, *, clock: Clock | None = None, **options: Any
    ) -> Coordinator:
        log = self.log(bootstrap)
        if self.around is not None:
            log = FaultyLog(log, AtCalls(self.around))
        given = {
            "key_groups": KEY_GROUPS,
            "frame_bytes": 300,
            "decide_deadline_s": self.decide_deadline_s,
            "apply_deadline_s": DEADLINE_S,
            "summary_every": self.summary_every,
            "keep_versions": self.keep_versions,
            "allow_unsafe": True,  # one broker is all there is
        }
        endpoints = Endpoints(NAMESPACE, f"kafka://{self.bootstrap}", f"memory://{self.prefix}")
        return Coordinator(endpoints, log, self.store(), Options(**given | options), clock or Clock())

    def open(
        self, bootstrap: str | None = None, *, clock: Clock | None = None, **options: Any
    ) -> Coordinator:
        driver = self.driver(bootstrap, clock=clock, **options)
        self.take(driver)
        return driver

    def take(self, driver: Coordinator) -> None:
        open_namespace(driver, LINEAGE)

    def barrier(self, driver: Coordinator, batch_id: int) -> ArrowBarrier:
        rows = rows_of(SEED, batch_id, ROWS)
        return ArrowBarrier(driver.log, rows, batch(LINEAGE, batch_id), driver.folded.key_groups)

    def commit(self, driver: Coordinator, *batch_ids: int) -> None:
        """Each batch once, as a query does it: one that was decided before is not run again."""
        for batch_id in batch_ids:
            if replay_of(driver.folded, batch(LINEAGE, batch_id)) is None:
                commit(driver, self.barrier(driver, batch_id))

    def tidy(self, driver: Coordinator, trimmer: Trimmer | None = None) -> None:
        """Retire and trim, as the background does it."""
        folded_at_us = driver.clock.now_us()
        retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
        (trimmer or self.trimmer(driver)).trim(driver.decisions.view, folded_at_us)

    def trimmer(self, driver: Coordinator) -> Trimmer:
        options = dataclasses.replace(
            driver.options, wal_retain_s=KEEP_NOTHING_S, apply_deadline_s=KEEP_NOTHING_S / 10
        )
        return Trimmer(driver.log, driver.store, options)

    def decide_only(self, driver: Coordinator, batch_id: int) -> None:
        """The batch is decided, and its driver dies before it writes anything to the store."""

        def dies(*_: Any) -> None:
            raise Died

        apply, driver.store.apply = driver.store.apply, dies  # type: ignore[method-assign]
        with contextlib.suppress(Died):
            self.commit(driver, batch_id)
        driver.store.apply = apply  # type: ignore[method-assign]
        assert driver.folded.last_version == driver.store.pointer().visible + 1

    # -- what is true of it ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def readable(self) -> Iterator[Log]:
        with contextlib.closing(self.log(self.direct)) as log:
            yield log

    def view(self) -> View:
        """The fold of the whole log, by a reader that wrote none of it."""
        with self.readable() as log:
            return fold_all(View(), log.decisions())

    def records(self) -> list[AnyRecord]:
        with self.readable() as log:
            return [decode_record(entry.content, "log") for entry in log.decisions()]

    def check(self, versions: int, *, verified: bool = True) -> View:
        """I1 at every version that can be read, I2, I4, and that log and store fit each other; the fold."""
        view, store = self.view(), self.store()
        state, pointer = view.state, store.pointer()
        assert state is not None
        assert (state.last_version, pointer.visible) == (versions, versions)
        assert [fact.origin.batch_id for fact in state.recent] == list(range(versions))
        entries = store.catalog()
        assert [one.version for one in entries] == list(range(max(pointer.horizon, 1), versions + 1))
        for one in entries:
            assert self.content(one) == expected_at(SEED, one.version, ROWS), one.version
        if verified:
            with self.readable() as log:
                report = verify(log, store)
            assert not report.findings, report.findings
        return view

    def content(self, entry: Any) -> dict[str, dict[bytes, bytes]]:
        found: dict[str, dict[bytes, bytes]] = {}
        for table in entry.tables:
            found[table] = {}
            for group in range(KEY_GROUPS):
                for rows in self.store().scan(entry.read_at(table), group):
                    keys, values = rows["key"].to_pylist(), rows["value"].to_pylist()
                    found[table].update(zip(keys, values, strict=True))
        return found

    # -- behind the log, with clients of our own -------------------------------------------------------

    def admin(self) -> AdminClient:
        """To be kept until its answers are in: without it they never come."""
        return AdminClient({"bootstrap.servers": self.direct})

    def produce(self, topic: str, *values: bytes | None, partition: int = 0, **settings: Any) -> list[int]:
        """Messages by a plain producer; their offsets."""
        offsets: list[int] = []
        producer = Producer({"bootstrap.servers": self.direct, "linger.ms": 0, **settings})
        for value in values:
            producer.produce(
                topic, value, partition=partition, on_delivery=lambda _, m: offsets.append(m.offset())
            )
        assert producer.flush(DEADLINE_S) == 0
        return offsets

    def ends(self, topic: str, partition: int = 0) -> tuple[int, int]:
        with self._consumer() as consumer:
            first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=DEADLINE_S)
            return first, end

    def raw(self, topic: str, partition: int = 0) -> list[Any]:
        """Every message that is there, as a plain consumer sees it."""
        found: list[Any] = []
        with self._consumer() as consumer:
            first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=DEADLINE_S)
            consumer.assign([TopicPartition(topic, partition, first)])
            until = time.monotonic() + DEADLINE_S
            while first < end:
                assert time.monotonic() < until, f"{topic} could not be read up to {end}"
                met = consumer.consume(100, 0.5)
                found += [one for one in met if one.error() is None and one.offset() < end]
                (place,) = consumer.position([TopicPartition(topic, partition)])
                first = max(first, place.offset)
        return found

    @contextlib.contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = Consumer(
            {"bootstrap.servers": self.direct, "group.id": "looking", "fetch.wait.max.ms": 10}
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def topics(self) -> set[str]:
        """Those of the log that are there."""
        return {self.decisions, self.changelog} & self.admin().list_topics(timeout=DEADLINE_S).topics.keys()

    def remake(self, topic: str, *values: bytes | None) -> None:
        """Delete it and make it again, as if by hand, with these messages in each partition."""
        admin = self.admin()
        partitions = len(admin.list_topics(topic, DEADLINE_S).topics[topic].partitions)
        for done in admin.delete_topics([topic], operation_timeout=DEADLINE_S).values():
            done.result(DEADLINE_S)

        def made() -> bool:
            try:
                admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(DEADLINE_S)
            except KafkaException as error:  # it may still be on its way out
                return _refuse_unless(error, KafkaError.TOPIC_ALREADY_EXISTS)
            return True

        def known() -> bool:
            try:
                return bool([self.ends(topic, partition) for partition in range(partitions)])
            except KafkaException as error:
                return _refuse_unless(error, *NOT_YET)

        wait_until(made, f"{topic} is made again", DEADLINE_S)
        wait_until(known, f"the broker leads {topic}", DEADLINE_S)
        for partition in range(partitions):
            self.produce(topic, *values, partition=partition)

    def configure(self, topic: str, **settings: object) -> None:
        entries = [
            ConfigEntry(name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        admin = self.admin()
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(DEADLINE_S)

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> None:
        admin = self.admin()
        for done in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
            done.result(DEADLINE_S)

    def close(self) -> None:
        """Nothing of it is left on the broker."""
        self.opened.close()
        admin = self.admin()
        for done in admin.delete_topics([self.decisions, self.changelog]).values():
            with contextlib.suppress(KafkaException):  # a test may have removed it
                done.result(DEADLINE_S)
        self.store().drop()


def _refuse_unless(error: KafkaException, *codes: int) -> bool:
    if error.args[0].code() not in codes:
        raise error
    return False


@contextlib.contextmanager
def world_on(bootstrap: str, direct: str | None = None, **options: Any) -> Iterator[World]:
    made = World(bootstrap, direct or bootstrap, **options)
    try:
        yield made
    finally:
        made.close()
