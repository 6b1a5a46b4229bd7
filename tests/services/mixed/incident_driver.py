"""The driver of test_incidents.py, without Spark: a sink's reports and background work around its commits.

    python incident_driver.py WAL STORE PORT

A word on standard input is a command, answered by a line. ``commit`` makes a version in a thread, ``bad`` a
batch with a row that cannot be staged, ``stop`` ends the query as planned.
"""

from __future__ import annotations

import sys
import threading

from tidegate.committers.background.worker import Background
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import BadRecordError, TidegateError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.spark.reporting import SinkReporter
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.open_log import open_log

LINEAGE, KEY_GROUPS = "query-1", 4


class Query:
    """A query whose batches are made on request; it opens the namespace at its first batch, like a sink."""

    def __init__(self, wal: str, store: str, port: int) -> None:
        self._options = Options(
            key_groups=KEY_GROUPS,
            allow_unsafe=True,
            heartbeat_s=0.3,
            stuck_alarm_s=1.0,
            apply_deadline_s=8.0,
            metrics_port=port,
        )
        self._at = Endpoints("flights", wal, store, {"timeout_s": 8.0}, {"timeout_s": 1.0})
        self._reporter = SinkReporter(self._at, self._options)
        self._driver: Coordinator | None = None
        self._background: Background | None = None

    def commit(self, *, bad: bool = False) -> None:
        number = 0
        try:
            driver = self._driver or self._open()
            number = driver.folded.last_version
            rows = {"t": {b"k": b"%d" % number}}
            barrier = ArrowBarrier(driver.log, rows, batch(LINEAGE, number), KEY_GROUPS)
            with self._reporter.watching(driver, barrier.origin) as phases:
                if bad:
                    raise BadRecordError("table t, key null: a key is never null")
                decided = commit(driver, barrier)
                self._reporter.published(decided, driver.last_manifest, phases)
        except TidegateError as error:
            self._reporter.failed(number, error)
            self.stop()

    def _open(self) -> Coordinator:
        at = self._at
        log, store = (
            open_log(at.wal, "flights", at.wal_options),
            open_store(at.store, "flights", at.store_options),
        )
        self._driver = driver = Coordinator(at, log, store, self._options)
        self._reporter.running()
        with self._reporter.watching(driver, None):
            open_namespace(driver, LINEAGE)
        self._background = Background(
            log,
            store,
            self._options,
            lambda: driver.epoch,
            at=self._reporter.at,
            folded=lambda: driver.decisions.view.state,
        )
        return driver

    def stop(self) -> None:
        """End it; what it reports last is what a sink reports when it is closed."""
        if self._background is not None:
            self._background.stop()
        if self._driver is not None:
            self._driver.log.close()
            self._driver.store.close()
        self._driver = self._background = None
        self._reporter.closed()


def main(wal: str, store: str, port: str) -> None:
    query = Query(wal, store, int(port))
    print("ready", flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "stop":
            query.stop()
        else:
            threading.Thread(target=query.commit, kwargs={"bad": word == "bad"}, daemon=True).start()
        print(word, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
