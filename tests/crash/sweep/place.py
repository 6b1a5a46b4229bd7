"""A place to crash drivers at: a log, a store, a checkpoint, and the processes that work on them.

Drivers are ``support.driver_process``: real processes, which failpoints kill or stop. A reader that wrote
nothing of it checks what they leave: every readable version is exactly the batches up to it (I1), each batch
is in one version (I2), nothing that was decided is lost (I4).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from support import driver_process
from support.driver_process import MARKER, expected_at
from tidegate.base import failpoints
from tidegate.committers.operations.verify import verify
from tidegate.errors import FencedError
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.store import Store
from tidegate.wal.fold import View, fold_all
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log
from tidegate.wal.record import BatchOrigin, Folded

BATCHES, SEED, ROWS, KEY_GROUPS = 3, 5, 30, 8
NAMESPACE = "crash"
DEADLINE_S = 110.0

ELSEWHERE = ("repair.", "fill.", "follow.", "pipeline.")
REACHED = tuple(name for name in failpoints.NAMES if not name.startswith(ELSEWHERE))
"""Failpoints that a driver of one store reaches; repair's only after a server lost what it acknowledged."""

Events = list[dict[str, Any]]


class Place:
    """A place in one folder, unless ``wal`` and ``store`` name others; every process is given ``more``."""

    def __init__(
        self,
        folder: Path,
        wal: str = "",
        options: Mapping[str, Any] | None = None,
        *more: str,
        store: str = "",
    ) -> None:
        self.wal, self.store = wal or f"file://{folder}/wal", store or f"sqlite://{folder}/store"
        self.checkpoint = folder / "checkpoint"
        self._options, self._more = dict(options or {}), more

    # -- processes ------------------------------------------------------------------------------------

    def start(self, *more: str, armed: str = "", wal: str = "") -> subprocess.Popen[str]:
        """Start a driver; ``armed``: its failpoints; ``wal``: another URL of the same log."""
        command = [sys.executable, driver_process.__file__, "--wal", wal or self.wal]
        command += ["--wal-options", json.dumps(self._options), *self._more]
        command += ["--store", self.store, "--checkpoint", str(self.checkpoint), "--batches", str(BATCHES)]
        command += ["--seed", str(SEED), "--rows", str(ROWS), "--key-groups", str(KEY_GROUPS)]
        command += ["--summary-every", "1", "--wal-retain", "0.001", *more]  # the log is cut meanwhile
        environment = {**os.environ, failpoints.ENVIRONMENT_VARIABLE: armed}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *more: str, armed: str = "", code: int = 0) -> Events:
        """Run one process to its end; return its events. The exit code is checked."""
        return ended(self.start(*more, armed=armed), code)

    # -- contents ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[Log, Store]]:
        """Open the log and the store, for a reader."""
        with contextlib.ExitStack() as closing:
            log = open_log(self.wal, NAMESPACE, self._options)
            closing.callback(log.close)
            store = open_store(self.store, NAMESPACE)
            closing.callback(store.close)
            yield log, store

    def decided(self) -> Folded | None:
        """Read the state of the decision log, as a reader that wrote none of it."""
        with self.opened() as (log, _):
            return fold_all(View(), log.decisions()).state

    def visible(self) -> int:
        """Return the visible version."""
        with self.opened() as (_, store):
            return store.pointer().visible

    def check(self) -> tuple[int, int]:
        """Check I1 at every visible version, and I2; return the numbers of visible and decided versions."""
        with self.opened() as (log, store):
            state = fold_all(View(), log.decisions()).state
            facts = state.recent if state else ()
            batches = [fact.origin.batch_id for fact in facts if isinstance(fact.origin, BatchOrigin)]
            assert batches == list(range(len(facts))), facts
            visible = store.pointer().visible if store.identity() else 0
            entries = store.catalog() if visible else []
            oldest = max(store.pointer().horizon, 1) if visible else 1
            assert [entry.version for entry in entries] == list(range(oldest, visible + 1))
            for entry in entries:
                fact = facts[entry.version - 1]
                assert (entry.digest, entry.attempt) == (fact.digest, fact.attempt)
                _check_version(store, entry)
            return visible, len(facts)

    def check_all_of_it(self) -> None:
        """Check that log and store agree on everything, as ``tidegate verify`` does."""
        with self.opened() as (log, store):
            report = verify(log, store)
            assert not report.findings, report.findings


def _check_version(store: Store, entry: CatalogEntry) -> None:
    expected = expected_at(SEED, entry.version, ROWS)
    assert set(entry.tables) == set(expected)
    for table in entry.tables:
        found: dict[bytes, bytes] = {}
        for group in range(KEY_GROUPS):
            for batch in store.scan(entry.read_at(table), group):
                found.update(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
        assert found == expected[table], (entry.version, table)
        if table == MARKER:
            assert len(set(found.values())) == 1


# -- killed -------------------------------------------------------------------------------------------


def kill_at(place: Place, name: str, hit: str) -> None:
    """Kill a driver at the ``first`` or a ``later`` hit of a failpoint; check its remains."""
    nth = 3 if hit == "later" else 1
    if hit == "later" and name.startswith("open."):
        # A process opens once: the later open is that of a driver that finds unfinished work.
        place.run(armed="seal.after=kill@3", code=-signal.SIGKILL)
        nth = 1
    more = ["--keep-versions", "1"] if name.startswith("retire.") else []
    nth = 2 if hit == "later" and name.startswith(("retire.", "trim.")) else nth
    place.run(*more, armed=f"{name}=kill@{nth}", code=-signal.SIGKILL)
    visible, decided = place.check()
    assert decided - visible in (0, 1)


def by_restarting(place: Place) -> None:
    """Run the same query again."""
    place.run()
    assert place.check() == (BATCHES, BATCHES)


def by_a_second_driver(place: Place) -> None:
    """Run a driver that lost all commits that Spark noted (T9), so that it replays everything."""
    shutil.rmtree(place.checkpoint / "commits", ignore_errors=True)
    place.run()
    assert place.check() == (BATCHES, BATCHES)


def by_recover(place: Place) -> None:
    """Recover without the query: no new batch, but all that was decided."""
    before = place.decided()
    place.run("--recover")
    visible, decided = place.check()
    assert visible == decided == (before.last_version if before else 0)


FINISHES: tuple[Callable[[Place], None], ...] = (by_restarting, by_a_second_driver, by_recover)


# -- stopped ------------------------------------------------------------------------------------------


def ended(process: subprocess.Popen[str], code: int = 0) -> Events:
    """Wait for a process's end; return its events. The exit code is checked."""
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == code, (process.returncode, out, err)
    return [json.loads(line) for line in out.splitlines()]


def stops(process: subprocess.Popen[str]) -> bool:
    """Wait until it is stopped (True), or has ended (False)."""
    import psutil

    watched, end = psutil.Process(process.pid), time.monotonic() + DEADLINE_S
    while process.poll() is None:
        if watched.status() == psutil.STATUS_STOPPED:
            return True
        assert time.monotonic() < end, "the process neither stopped at its failpoint nor ended"
        time.sleep(0.01)
    return False


def wake(process: subprocess.Popen[str]) -> None:
    """Send SIGCONT."""
    os.kill(process.pid, signal.SIGCONT)


def wakes_fenced(zombie: subprocess.Popen[str]) -> None:
    """Wake a zombie (T1): it continues, and learns that it is no longer the writer."""
    wake(zombie)
    events = ended(zombie, FencedError.exit_code)
    assert events[-1]["error"] == "FencedError", events
