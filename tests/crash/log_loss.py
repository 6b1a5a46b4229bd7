"""A log that lost its last records: one driver dies at a step, the log is cut, another driver opens.

Either every outcome is right (each readable version holds the rows of one attempt, recounted from
dictionaries), or the open is refused with the remedy, and the remedy works.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.base import failpoints
from tidegate.base.clock import Clock
from tidegate.base.failpoints import FailpointError
from tidegate.committers.commit import commit, complete
from tidegate.committers.coordinator import Coordinator, OpenRequest
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.errors import TidegateError, WalGapError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.records import ReadAt
from tidegate.sinks.store import Store
from tidegate.testing.arrow_barrier import ArrowBarrier, Rows, batch
from tidegate.wal.fold import View, decided_for, fold_all
from tidegate.wal.log import Log
from tidegate.wal.staging.acks import Ack
from tidegate.wal.staging.spec import StageSpec

LINEAGE = "8a1f6b0e-3c55-4c8e-9a57-2f1a0c1d5b11"
KEY_GROUPS = 8
BEFORE = 4
"""The number of versions that are visible before the driver dies."""
STEPS = {
    "claimed": "open.after_claim",
    "decided": "decide.after_append",
    "begun": "apply.after_begin",
    "applied": "apply.after_chunk",
    "sealed": "publish.before",
    "flipped": "publish.after",
    "returned": "commit.before_return",
    "trimmed": "trim.after_blobs",
}
"""Steps at which a driver dies, by failpoint: as it opens after these versions, or in the next one."""


@dataclasses.dataclass
class NotingBarrier(ArrowBarrier):
    """A barrier that notes the rows of each attempt."""

    noted: dict[str, Rows] = dataclasses.field(default_factory=dict)

    def stage(self, spec: StageSpec, base_version: int) -> Sequence[Ack]:
        self.noted[spec.attempt] = self.rows
        return super().stage(spec, base_version)


@dataclasses.dataclass
class LossWorld:
    """One namespace. ``make_log`` and ``make_store`` open it again; ``rows`` are those of each attempt."""

    make_log: Callable[[], Log]
    make_store: Callable[[], Store]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    rows: dict[str, Rows] = dataclasses.field(default_factory=dict)

    def driver(self, clock: Clock | None = None) -> Coordinator:
        given = {"key_groups": KEY_GROUPS, "apply_deadline_s": 20.0, "summary_every": 2, "keep_versions": 50}
        endpoints = Endpoints("n", "memory://unused", "memory://unused")
        return Coordinator(
            endpoints,
            self.make_log(),
            self.make_store(),
            Options(**given | self.options),
            clock or Clock(),
        )

    def opened(
        self, clock: Clock | None = None, *, discard_lost: bool = False, log: Log | None = None
    ) -> Coordinator:
        """Open a driver; ``log``: an instance that another one used, with its producer."""
        driver = self.driver(clock)
        driver.decisions.log = log or driver.log
        driver.request = OpenRequest(discard_lost=discard_lost)
        open_namespace(driver, LINEAGE)
        return driver

    def commit(self, driver: Coordinator, batch_id: int, rows: Rows) -> None:
        """Commit as a query does: a batch that was decided is not run again."""
        origin = batch(LINEAGE, batch_id)
        if decided_for(driver.folded, origin) is None:
            commit(driver, NotingBarrier(driver.log, rows, origin, KEY_GROUPS, noted=self.rows))

    def check(self, versions: int) -> None:
        """Check I1: every readable version holds exactly the rows of the attempts that the log decided."""
        log, store = self.make_log(), self.make_store()
        state = fold_all(View(), log.decisions()).state
        assert state is not None
        assert (state.last_version, store.pointer().visible) == (versions, versions)
        held: dict[bytes, bytes] = {}
        content = {}
        for fact in state.recent:
            for key, value in self.rows[fact.attempt]["t"].items():
                held.pop(key, None)
                if value is not None:
                    held[key] = value
            content[fact.version] = dict(held)
        for entry in store.catalog():
            assert read(store, entry.version) == content[entry.version], f"version {entry.version}"
        store.close()
        log.close()


def read(store: Store, version: int) -> dict[bytes, bytes]:
    """Read all rows of the table at a version."""
    found: dict[bytes, bytes] = {}
    for group in range(KEY_GROUPS):
        for rows in store.scan(ReadAt("t", version), group):
            found.update(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))
    return found


def rows_before(batch_id: int) -> Rows:
    """Make the rows of a version before the lost one."""
    return {"t": {b"k%d" % key: b"%d" % batch_id for key in range(batch_id, 20)}}


LOST: Rows = {"t": {b"k1": b"lost", b"k2": None, **{b"ghost%d" % n: b"lost" for n in range(12)}}}
AGAIN: Rows = {"t": {b"k1": b"again", b"k3": b"again"}}
"""Rows of the batch that is decided twice: other rows, fewer, in fewer key groups."""


def dies_at(world: LossWorld, step: str, clock: Clock | None = None) -> Coordinator:
    """Make some versions, and die at a step of the next one; return the driver as it was left."""
    driver = world.opened(clock)
    for batch_id in range(BEFORE):
        world.commit(driver, batch_id, rows_before(batch_id))
    if step == "claimed":
        driver = world.driver(clock)
    failpoints.arm(f"{STEPS[step]}=raise")
    try:
        with contextlib.suppress(FailpointError):
            if step == "claimed":
                open_namespace(driver, LINEAGE)
            else:
                world.commit(driver, BEFORE, LOST)
                trim(driver)
    finally:
        failpoints.arm(None)
    return driver


def trim(driver: Coordinator) -> None:
    """Retire and trim as far as one readable version allows, with the shortest retention."""
    options = dataclasses.replace(driver.options, keep_versions=1, apply_deadline_s=1e-7, wal_retain_s=1e-6)
    retire_up_to(driver.log, driver.store, driver.folded, options, lambda: False)
    Trimmer(driver.log, driver.store, options, driver.clock).trim(
        driver.decisions.view, driver.clock.now_us()
    )


def goes_on(
    world: LossWorld,
    dead: Coordinator,
    put_back: Callable[[], None] | None,
    clock: Clock | None = None,
    *,
    log: Log | None = None,
) -> str:
    """Open as the next driver, with the remedy if that is refused, and write on; return how it went.

    Without ``put_back`` it ends where the log has to be restored. ``log``: the instance that it opens with.
    At the end the dead driver wakes up, and neither completes nor decides anything.
    """
    way = "opened"
    try:
        driver = world.opened(clock, log=log)
    except WalGapError as refused:
        told = str(refused)
        way = "discarded" if "--discard-lost" in told else "put back"
        assert way == "discarded" or "restore the" in told, told
        if way == "put back":
            if put_back is None:
                return way
            put_back()
            driver = world.opened(clock, log=log)
        else:  # by a command, which is a process of its own
            driver = world.opened(clock, discard_lost=True)
    world.commit(driver, BEFORE, AGAIN)
    world.commit(driver, BEFORE + 1, rows_before(1))
    world.check(BEFORE + 2)
    wakes_up(world, dead)
    world.check(BEFORE + 2)
    world.commit(driver, BEFORE + 2, rows_before(2))
    world.check(BEFORE + 3)
    return way


def wakes_up(world: LossWorld, dead: Coordinator) -> None:
    """Let the dead driver continue with the version that it had decided, then with the next batch."""
    for fact in dead.folded.recent[-1:]:
        with contextlib.suppress(TidegateError):
            complete(dead, fact)
    try:
        world.commit(dead, BEFORE + 7, LOST)
    except TidegateError:
        return
    raise AssertionError("a driver that was fenced has decided a version")
