"""A query without Spark on a log in Kafka: what it commits, where a test acts, what must be there then.

The log is Kafka, the store SQLite. Batch b makes version b + 1 and nothing else does, and rows are a function
of the batch id alone, so that a reader who wrote neither can tell what each version must hold.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from support.concurrency import WAIT_S, Once, failing_at, meanwhile, within  # noqa: F401 - for who acts on a query
from support.driver_process import MARKER, expected_at, rows_of
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.verify import verify
from tidegate.committers.states import State, Watch
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.fold import View, fold_all, replay_of
from tidegate.wal.kafka.log import KafkaLog
from tidegate.wal.open_log import open_log
from tidegate.wal.record import DecidedVersion, Folded

SEED, ROWS, KEY_GROUPS, BATCHES = 11, 500, 8, 3
FRAME_BYTES, BATCH_ROWS = 200, 20
"""Some 60 frames a batch, made of 50 pieces of rows."""
AWAY_S, BACK_S = 2.0, 60.0
"""Deadlines of a driver whose log stays away, and of one whose log comes back."""
GIVES_UP_S = 12 * AWAY_S
"""Two deadlines, in each a request under way that waits for time-outs of its own; and a busy machine."""

CONTENTS_MAX = 10
"""About so many versions have their rows compared."""

FEW_AHEAD = {"fetch.message.max.bytes": 1024, "queued.max.messages.kbytes": 1, "fetch.queue.backoff.ms": 1}
"""A reader asks the brokers every few frames: else all would be here before anything happens to them."""


class SteppedBarrier(ArrowBarrier):
    """Tells of each piece of its rows while they are staged."""

    on_piece: Callable[[int], None] = staticmethod(lambda _: None)

    def batches(self, task: int) -> Iterator[Any]:  # type: ignore[override]
        for nth, rows in enumerate(super().batches(task)):
            self.on_piece(nth)
            yield rows


class StateWatch(Watch):
    """A watch that hands each state to the query's ``on_state``."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def entered(self, state: State) -> None:
        self._query.on_state(state)


class Query:
    """One namespace. Each ``driver`` is a new one, as after a restart; ``run`` opens it and commits batches.

    ``client``: further options of the log; they win over those that are set here.
    """

    def __init__(self, bootstrap: str, folder: Path, **client: Any) -> None:
        self.wal, self.store_url = f"kafka://{bootstrap}", f"sqlite://{folder}/store"
        self.prefix, self.namespace = f"q{uuid.uuid4().hex[:12]}", "query"
        self.decisions, self.changelog = (
            f"{self.prefix}.{self.namespace}.{kind}" for kind in ("decisions", "changelog")
        )
        self._client = {"topic_prefix": self.prefix, "partitions": 2} | client
        self.folder = folder
        self._opened = contextlib.ExitStack()
        self.on_piece: Callable[[int], None] = lambda _: None
        self.on_state: Callable[[State], None] = lambda _: None

    def log(self, **client: Any) -> KafkaLog:
        made = open_log(self.wal, self.namespace, self._client | client)
        self._opened.callback(made.close)
        assert isinstance(made, KafkaLog)
        return made

    def store(self) -> Any:
        made = open_store(self.store_url, self.namespace)
        self._opened.callback(made.close)
        return made

    def driver(self, deadline_s: float = BACK_S, *, safe: bool = False, **client: Any) -> Coordinator:
        """A driver of its own, not open yet; the log's time-out goes by the deadline."""
        options = Options(
            key_groups=KEY_GROUPS,
            frame_bytes=FRAME_BYTES,
            parallelism=2,
            decide_deadline_s=deadline_s,
            apply_deadline_s=deadline_s,
            allow_unsafe=not safe,
        )
        log = self.log(**{"timeout_s": max(deadline_s / 2, AWAY_S)} | client)
        endpoints = Endpoints(self.namespace, self.wal, self.store_url, self._client)
        return Coordinator(endpoints, log, self.store(), options, watch=StateWatch(self))

    def impatient(self, driver: Coordinator) -> None:
        """From now on the driver gives up soon. What must succeed has all the time until then."""
        driver.decisions.log, driver.decisions.deadline_s = self.log(timeout_s=AWAY_S), AWAY_S
        driver.options = dataclasses.replace(driver.options, apply_deadline_s=AWAY_S)

    def run(self, batches: int = BATCHES, deadline_s: float = BACK_S, **client: Any) -> Coordinator:
        """A driver that starts anew: it opens and commits what is not decided yet."""
        driver = self.driver(deadline_s, **client)
        open_namespace(driver, "lineage")
        for batch_id in range(batches):
            self.commit(driver, batch_id)
        return driver

    def commit(self, driver: Coordinator, batch_id: int) -> DecidedVersion:
        """One batch; nothing is done when it was decided before."""
        origin = batch("lineage", batch_id)
        fact = replay_of(driver.folded, origin)
        if fact is not None:
            return fact
        rows = rows_of(SEED, batch_id, ROWS)
        barrier = SteppedBarrier(driver.log, rows, origin, KEY_GROUPS, batch_rows=BATCH_ROWS)
        barrier.on_piece = self.on_piece
        return commit(driver, barrier)

    # -- what is there ----------------------------------------------------------------------------

    def decided(self) -> Folded | None:
        """The state of the decision log, as somebody reads it who wrote nothing."""
        return fold_all(View(), self.log().decisions()).state

    def check(self, versions: int = BATCHES) -> None:
        """I1 to I4: all versions decided once and visible, each with exactly its rows; ``verify`` agrees.

        Of many versions only some have their rows read: the last one's come from all batches anyway.
        """
        state = self.decided()
        assert state is not None
        assert [fact.origin.batch_id for fact in state.recent] == list(range(versions))
        store = self.store()
        assert store.pointer().visible == versions
        entries = store.catalog()
        assert [entry.version for entry in entries] == list(range(1, versions + 1))
        looked_at = max(versions // CONTENTS_MAX, 1)
        for entry, fact in zip(entries, state.recent, strict=True):
            assert (entry.digest, entry.attempt) == (fact.digest, fact.attempt)
            if entry.version % looked_at and entry.version != versions:
                continue
            assert _found(store, entry) == expected_at(SEED, entry.version, ROWS)
        assert verify(self.log(), store).findings == []

    def attempts(self) -> list[str]:
        """The decided attempts, by version."""
        state = self.decided()
        return [fact.attempt for fact in state.recent] if state else []

    def close(self) -> None:
        self._opened.close()


def _found(store: Any, entry: Any) -> Mapping[str, Mapping[bytes, bytes]]:
    content: dict[str, dict[bytes, bytes]] = {}
    for table in entry.tables:
        rows = content.setdefault(table, {})
        for group in range(KEY_GROUPS):
            for found in store.scan(entry.read_at(table), group):
                rows.update(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))
    assert len(set(content[MARKER].values())) == 1
    return content
