"""Background work of a driver under torture, by which it reaches the failpoints that a commit does not.

The cell's failpoint selects it. Old versions are retired and the log is cut, versions are completed in a
pipeline, a second store is added and follows, or every version is put back as if it had been lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.background.follower import Follower, follower_for
from tidegate.committers.background.membership import add_store
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.decision_log import Backoff
from tidegate.committers.repair.repair import repair
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.errors import StoreUnavailableError, WalGapError, WalUnavailableError
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.records import Counts, Stamp
from tidegate.sinks.store import Store
from tidegate.wal.file.log import FileLog

TIDIES, PIPELINES, FOLLOWS, REPAIRS = "tidies", "pipelines", "follows", "repairs"
SIDE_WORK = {
    "retire.": TIDIES,
    "trim.": TIDIES,
    "summary.": TIDIES,
    "pipeline.": PIPELINES,
    "fill.": FOLLOWS,
    "follow.": FOLLOWS,
    "repair.": REPAIRS,
}
"""Background work by the first word of a failpoint. At all others a driver only commits."""

SECOND = "second"
"""The name of the second store of cells that have one: SQLite, in the cell's own folder."""
ADDED_AT = 2
"""The number of committed batches at which the second store is added, and filled."""


def side_work_at(failpoint: str) -> str:
    """Return the background work of drivers in cells of this failpoint; '' for none."""
    return next((work for prefix, work in SIDE_WORK.items() if failpoint.startswith(prefix)), "")


# -- a second store -----------------------------------------------------------------------------------------


def with_second(driver: Coordinator, url: str) -> bool:
    """Give the driver the second store if the log lists it; return whether it does."""
    state = driver.decisions.catch_up()
    if state is None or SECOND not in state.stores:
        return False
    driver.endpoints = dataclasses.replace(driver.endpoints, also=(StoreRef(SECOND, url),))
    return True


class Second:
    """The second store of one driver: added once there are versions to fill it with, then kept up to date.

    It works on the driver's own thread, so that a fault always strikes at the same place.
    """

    def __init__(self, driver: Coordinator, store: Store, url: str) -> None:
        self._driver, self._store, self._at = driver, store, StoreRef(SECOND, url)
        self._follower: Follower | None = None
        if driver.endpoints.also:
            self._follower = follower_for(driver, self._at, store)

    def step(self, batches: int, opened: Callable[[], None]) -> None:
        """After a batch, add the store when it is time, and catch up with the log's end, in a few tries.

        ``opened`` is called when the driver took a new epoch to add it. FencedError: a newer driver owns it.
        """
        if self._follower is None:
            if batches < ADDED_AT:
                return
            self._follower = add_store(self._driver, self._at, self._store)
            self._driver.endpoints = dataclasses.replace(self._driver.endpoints, also=(self._at,))
            opened()
        self._follower.catch_up()
        if self._follower.failed is not None:
            raise self._follower.failed

    def finish(self, deadline_s: float, between: Callable[[], None] = lambda: None) -> None:
        """Catch up with the log's end; ``between`` is called before each try.

        StoreUnavailableError: not in time.
        """
        follower, driver = self._follower, self._driver
        backoff = Backoff(driver.clock, deadline_s)
        while follower is not None and follower.standing.behind_s:
            if backoff.expired:
                standing = follower.standing
                raise StoreUnavailableError(
                    f"the second store shows version {standing.visible} of {standing.decided}:"
                    f" {standing.error}"
                )
            backoff.wait()
            between()
            self.step(ADDED_AT, lambda: None)


# -- an old namespace ---------------------------------------------------------------------------------------


def age(driver: Coordinator, trimmer: Trimmer) -> None:
    """Retire and trim, as time does, so that only the store has the rows of versions below the visible one.

    WalUnavailableError: the log still holds the first version.
    """
    retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
    if isinstance(driver.log, FileLog):  # the log trusts no file's time to the second
        for segment in driver.log.folder.rglob("*.seg"):
            os.utime(segment, (0, 0))
    trimmer.trim(driver.decisions.view, driver.clock.now_us())
    first = driver.folded.recent[0]
    with contextlib.suppress(WalGapError):
        read_manifest(driver.log, first)
        raise WalUnavailableError(
            f"{driver.log.where}: version {first.version} was trimmed and still exists, so the namespace is"
            " not as an old one is: compare the clocks of the log's servers and of this machine"
        )


# -- repair -------------------------------------------------------------------------------------------------


def put_back_everything(driver: Coordinator) -> None:
    """Repair as if every server had changed and lost every version: each is applied and sealed again.

    FencedError: a newer driver runs. Other errors leave the repair to the next driver.
    """
    with _as_if_lost(driver.store):
        repair(driver)


@contextlib.contextmanager
def _as_if_lost(store: Any) -> Iterator[None]:
    """Report every version from the horizon on as missing, when the store is asked for it the first time."""
    missing, comparing, versions = store.missing, store.comparing, set[int]()

    def all_missing(stamp: Stamp, counts: Counts) -> dict[int, Any]:
        if stamp.version in versions:
            lost: dict[int, Any] = missing(stamp, counts)
            return lost
        versions.add(stamp.version)
        return dict(counts)

    @contextlib.contextmanager
    def comparing_all(epoch: int) -> Iterator[int]:
        with comparing(epoch) as oldest:
            yield min(oldest, max(store.pointer().horizon, 1))

    store.missing, store.comparing = all_missing, comparing_all
    try:
        yield
    finally:
        store.missing, store.comparing = missing, comparing
