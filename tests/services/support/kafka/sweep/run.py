"""The crash sweep with the log on Kafka: kill a driver at every frame on the wire, finish in every way.

    tools/run python tests/services/support/kafka/sweep/run.py                     everything
    tools/run python tests/services/support/kafka/sweep/run.py --every 4           every fourth case
    tools/run python tests/services/support/kafka/sweep/run.py --only after-PRODUCE@3 --way recover

Pass one runs a driver through a proxy and counts its requests, by kind. Pass two kills a new driver at
the n-th of a kind: ``before`` it reaches the broker (it is lost), or ``after``: the broker has done it,
and the driver dies before the reply leaves the proxy. What it left is checked, finished in one of the
ways of ``crash.sweep.run`` (by turns), and checked again. How many requests of a kind there
are differs a little from run to run; a place that is not reached is a run to its end, and is counted.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import os
import queue
import random
import select
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from crash.sweep import process as crash_process
from crash.sweep import run as crash_sweep
from crash.sweep.check import Elsewhere, Left, SweepError, check, check_end
from crash.sweep.process import PLAIN, Process
from crash.sweep.run import BATCHES, NAMESPACE, WAYS, WORKLOAD, Result, finish, follow, say
from services.support.kafka.server import KafkaCluster
from services.support.kafka.wire import Api
from support.wait import wait_until
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log

if TYPE_CHECKING:
    from services.support.kafka.proxied import ProxiedKafka

ONLY = "tools/run python tests/services/support/kafka/sweep/run.py --only {case} --way {way}"
MODES = ("before", "after")
PARTITIONS = 3
WAIT_S = 20.0
SETTLE_S = 8.0

crash_process.preload("tidegate.wal.kafka.log")


class Case(NamedTuple):
    """A place to die at: the n-th request of a kind, or its reply."""

    mode: str
    kind: str
    nth: int

    def __str__(self) -> str:
        return f"{self.mode}-{self.kind}@{self.nth}"

    @property
    def label(self) -> str:
        """What is counted together."""
        return f"{self.kind}, {self.mode}"


def parse(text: str) -> Case:
    """A case as it is printed."""
    mode, _, rest = text.partition("-")
    kind, _, nth = rest.partition("@")
    if mode not in MODES or kind not in Api.__members__ or not nth.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not as before-PRODUCE@3")
    return Case(mode, kind, int(nth))


class Victim:
    """The process to kill, known as soon as it has started."""

    def __init__(self) -> None:
        self.killed = False
        self._pid: queue.SimpleQueue[int] = queue.SimpleQueue()

    def is_process(self, pid: int) -> None:
        self._pid.put(pid)

    def kill(self) -> bool:
        """SIGKILL; on return it is dead, and whatever was sent to it then is not seen by anyone."""
        self.killed = True
        with contextlib.suppress(ProcessLookupError):
            death = os.pidfd_open(self._pid.get(timeout=WAIT_S))
            try:
                signal.pidfd_send_signal(death, signal.SIGKILL)
                if not select.select([death], [], [], WAIT_S)[0]:
                    raise TimeoutError("a killed process did not end")
            finally:
                os.close(death)
        return True


class KafkaPlace(crash_sweep.Place):
    """Topics of its own, and a folder for all else. One driver at a time goes through the proxy."""

    def __init__(self, kafka: ProxiedKafka, alone: threading.Lock, folder: Path) -> None:
        super().__init__(folder)
        self._kafka, self._alone = kafka, alone
        self.wal = f"kafka://{kafka.direct}"
        self._prefix = f"s{uuid.uuid4().hex[:12]}"
        self._config = folder / "wal.properties"
        self._config.write_text(f"topic_prefix={self._prefix}\npartitions={PARTITIONS}\n")
        options = {"topic_prefix": self._prefix, "partitions": PARTITIONS}
        self._elsewhere = Elsewhere(options, self._segments)

    # -- processes --------------------------------------------------------------------------------

    def _start(self, brokers: str, batches: int) -> Process:
        options = f'{{"topic_prefix": "{self._prefix}", "partitions": {PARTITIONS}}}'
        argv = ["--wal", f"kafka://{brokers}", "--wal-options", options, "--allow-unsafe"]
        argv += ["--store", self.store, "--checkpoint", str(self.checkpoint)]
        return Process(PLAIN, [*argv, *WORKLOAD, "--batches", str(batches)], self.folder / "output")

    def go_on(self, batches: int) -> None:
        self._start(self._kafka.direct, batches).told((0,))

    def command(self, name: str, *more: str, codes: tuple[int, ...] = (0,)) -> str:
        given = ("--wal-config", str(self._config), "--allow-unsafe")
        return super().command(name, *given, *more, codes=codes)

    def die_again(self, case: object, batches: int) -> None:
        chance = random.Random(f"{case}")
        kind = chance.choice(("PRODUCE", "LIST_OFFSETS", "METADATA"))
        self.die(Case(chance.choice(MODES), kind, chance.randrange(1, 20)), batches)

    def count(self) -> Counter[str]:
        """The requests of a driver that nobody kills, by kind."""
        counts: Counter[str] = Counter()

        def on_frame(_: int, direction: str, kind: int) -> None:
            if direction == "request":
                counts[Api(kind).name] += 1

        with self._through_proxy():
            self._kafka.proxy.on_frame(on_frame)
            self._start(self._kafka.bootstrap, BATCHES).told((0,))
        return counts

    def die(self, case: Case, batches: int = BATCHES) -> bool:
        """A driver that dies there; whether it got there, else it came to its end."""
        victim = Victim()
        with self._through_proxy():
            self._arm(case, victim)
            process = self._start(self._kafka.bootstrap, batches)
            victim.is_process(process.pid)
            process.told((0, -signal.SIGKILL))
        if process.exit_code and not victim.killed:
            raise SweepError(f"somebody else killed the driver that was to die at {case}")
        return bool(process.exit_code)

    def _arm(self, case: Case, victim: Victim) -> None:
        count, kind = itertools.count(1), Api[case.kind]
        if case.mode == "before":
            # The frame is lost; what went over its connection before it is still answered.
            self._kafka.proxy.drop_request(
                kind, close=False, where=lambda _: next(count) == case.nth and victim.kill()
            )
            return

        def on_frame(_: int, direction: str, its: int) -> None:
            if direction == "reply" and its == kind and next(count) == case.nth:
                victim.kill()

        self._kafka.proxy.on_frame(on_frame)

    @contextlib.contextmanager
    def _through_proxy(self) -> Iterator[None]:
        """For one driver; on exit the broker has answered all that it sent, so that nothing lands later."""
        proxy = self._kafka.proxy
        with self._alone:
            try:
                yield
                # A connection may stay whose request was lost, or a client's of before: it waits for nothing.
                with contextlib.suppress(TimeoutError):
                    wait_until(lambda: not proxy._relay._connections, "the broker has answered all", SETTLE_S)
            finally:
                proxy.clear()
                proxy.cut()
            if proxy.failures:
                raise proxy.failures.popleft()

    # -- what is there ----------------------------------------------------------------------------

    def check(self) -> Left:
        """On a copy of the store, because whoever opens SQLite's files first mends them."""
        store, beside = self.folder / "store", self.folder / "store-read"
        if store.exists():
            shutil.copytree(store, beside)
        try:
            return check(self.wal, f"sqlite://{beside}", self._elsewhere)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def check_end(self, versions: int, left: Left | None) -> None:
        check_end(self.wal, self.store, versions, left, self._elsewhere)

    def _segments(self) -> frozenset[str]:
        """What the change-log's messages say whose they are, those before the cut left out."""
        settings = {"bootstrap.servers": self._kafka.direct, "group.id": "looking", "fetch.wait.max.ms": 1}
        consumer, topic = Consumer(settings), f"{self._prefix}.{NAMESPACE}.changelog"
        try:
            if topic not in consumer.list_topics(timeout=WAIT_S).topics:
                return frozenset()
            places, count = [], 0
            for partition in range(PARTITIONS):
                first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=WAIT_S)
                places.append(TopicPartition(topic, partition, first))
                count += end - first
            consumer.assign(places)
            messages = consumer.consume(count, WAIT_S) if count else []
        finally:
            consumer.close()
        if len(messages) < count:
            raise SweepError(f"{len(messages)} of {count} messages of {topic} came within {WAIT_S} s")
        return frozenset(message.key().decode() for message in messages)

    @contextlib.contextmanager
    def log(self) -> Iterator[Log]:
        """The log, for whoever looks."""
        with contextlib.closing(open_log(self.wal, NAMESPACE, self._elsewhere.options)) as log:
            yield log

    def topics_are_there(self) -> bool:
        """Whether the log was made, be it empty."""
        with self.log() as log:
            return bool(log.checks())

    def remove(self) -> None:
        """Drop the topics."""
        with self.log() as log:
            log.drop()


# -- the sweep --------------------------------------------------------------------------------------


class Sweep:
    """A broker behind its proxy, and a folder; places are made there and removed."""

    def __init__(self, kafka: ProxiedKafka, folder: Path) -> None:
        self.kafka, self.folder = kafka, folder
        self._alone = threading.Lock()

    @contextlib.contextmanager
    def place(self, name: object) -> Iterator[KafkaPlace]:
        """A new place."""
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
        place = KafkaPlace(self.kafka, self._alone, folder)
        try:
            yield place
        finally:
            place.remove()
            shutil.rmtree(folder)

    def count(self) -> Counter[str]:
        """Pass one."""
        with self.place("count") as place:
            counts = place.count()
            place.check_end(BATCHES, None)
        return counts

    def run_case(self, case: Case, way: str) -> Result:
        """One case in one way."""
        reached = True
        try:
            with self.place(case) as place:
                reached = place.die(case)
                finish(case, way, place, place.check())
        except Exception as error:  # noqa: BLE001 - whatever it is, the sweep goes on and says so
            return Result(case, way, f"{type(error).__name__}: {error}", reached)
        return Result(case, way, "", reached)

    def run(self, chosen: Sequence[tuple[Case, str]], jobs: int = 2) -> Iterator[Result]:
        """Pass two: cases with their ways, some at a time."""
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(lambda each: self.run_case(*each), chosen)


def cases(counts: Counter[str]) -> list[Case]:
    """Every place to die at."""
    return [
        Case(mode, kind, nth)
        for kind in sorted(counts)
        for mode in MODES
        for nth in range(1, counts[kind] + 1)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Sweep; 0 when nothing was wrong. Progress and the tables go to standard output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=int, default=1, metavar="K", help="only every K-th case")
    parser.add_argument("--from", dest="first", type=int, default=1, metavar="N", help="start at the N-th")
    parser.add_argument("--kinds", help="only these kinds of requests, as in PRODUCE,METADATA")
    parser.add_argument("--only", type=parse, metavar="MODE-KIND@N", help="one case")
    parser.add_argument("--way", choices=WAYS, help="finish in this way only")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--count", action="store_true", help="only count")
    args = parser.parse_args(argv)
    from services.support.kafka.proxied import (  # here, for pytest takes it for a plugin of its own
        ProxiedKafka,
        proxy_of,
    )

    with contextlib.ExitStack() as running:
        folder = running.enter_context(crash_sweep.working_folder())
        cluster = running.enter_context(KafkaCluster(folder / "kafka", proxied=True))
        proxy = running.enter_context(proxy_of(cluster))
        kafka = ProxiedKafka(cluster, proxy, cluster.proxied_bootstrap, cluster.bootstrap)
        sweep = Sweep(kafka, folder)
        chosen = [args.only]
        if not args.only:
            counts = sweep.count()
            say("".join(f"{kind:30}{counts[kind]:>6}\n" for kind in sorted(counts)))
            if args.count:
                return 0
            kinds = args.kinds.split(",") if args.kinds else counts
            chosen = [case for case in cases(counts) if case.kind in kinds][args.first - 1 :: args.every]
            say(f"{sum(counts.values())} requests, {len(chosen)} cases")
        ways = itertools.cycle([args.way] if args.way else WAYS)
        pairs = list(zip(chosen, ways, strict=False))
        return follow(sweep.run(pairs, args.jobs), f"{len(pairs)} crashes", ONLY)


if __name__ == "__main__":
    sys.exit(main())
