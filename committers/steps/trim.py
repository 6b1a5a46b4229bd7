"""Trimming: the log is cut below everything that may still be needed.

It has two halves. On the driver's own thread, right after a publish, a Summary is appended every
``summary_every`` versions. In the background a ``Trimmer`` cuts the decision log in front of a
Summary and drops blobs of the change-log. No zombie can trim what is needed:
docs/decisions/0007-make-late-records-and-late-trims-harmless.md.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from tidegate.base import failpoints
from tidegate.base.clock import Clock
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.decision_log import DecisionLog
from tidegate.errors import CorruptError, StoreUnavailableError, TidegateError, WalGapError
from tidegate.options import Options
from tidegate.sinks.records import Pointer
from tidegate.sinks.store import Store
from tidegate.wal.fold import RECENT_MAX, SummaryPlace, View
from tidegate.wal.log import Log
from tidegate.wal.record import DecidedVersion, Folded, Summary, decode_record

logger = logging.getLogger("tidegate")

TRIMS_PER_RETENTION = 24
"""The least number of trims within ``wal_retain_s``, while versions are published."""


# -- the Summary, on the driver's thread ----------------------------------------------------------


def summarise_if_due(decisions: DecisionLog, summary_every: int) -> None:
    """Append the folded state when ``summary_every`` versions were decided since the last Summary.

    It never fails a commit, and its outcome need not be known: a Summary repeats only what the log already
    contains. Whether it lands twice, late or never, every other record counts as before. A lost one is
    made again after the next version.
    """
    state, summaries = decisions.folded, decisions.view.summaries
    since = summaries[-1].version if summaries else 0
    if state.last_version - since < summary_every:
        return
    failpoints.hit("summary.before_append")
    try:
        decisions.append(Summary(**decisions.header(), state=state))
    except TidegateError as error:
        logger.warning("the Summary at version %s failed, tried again later: %s", state.last_version, error)
    failpoints.hit("summary.after_append")


# -- the cut, in the background -----------------------------------------------------------------------


class Trimmer:
    """The trimming of one namespace's log by one driver. Not thread-safe.

    ``others`` are the other stores by their names in the log, ``name`` is the first one's. The log is cut
    only up to the versions that all stores of the log's list have, and not at all while one does not answer.

    Nothing here checks the epoch: a record that a stale view allows to drop is needed by no driver.
    """

    def __init__(
        self,
        log: Log,
        store: Store,
        options: Options,
        clock: Clock | None = None,
        others: Mapping[str, Store] | None = None,
        name: str = "",
    ) -> None:
        self._log, self._store, self._options, self._clock = log, store, options, clock or Clock()
        self._others, self._name = dict(others or {}), name
        self._cut_at = 0
        self._addresses: dict[int, tuple[str, ...]] = {}
        self._trimmed_to: int | None = None
        self._trim_again_at = 0.0

    def trim(self, view: View, folded_at_us: int, stopped: Callable[[], bool] = lambda: False) -> None:
        """Trim as far as ``view`` and the store's pointer allow, if a trim is due.

        ``folded_at_us`` is a time at or before the read of ``view``. Repeatable: also after an interruption
        at any point. Raises: the errors of log and store; nothing needed was dropped.
        """
        state = view.state
        if state is None or not state.recent or not self._is_due(state):
            return
        pointers = self._pointers(state)
        if pointers is None:
            return
        pointer = least_of(list(pointers.values()))
        if min(max(pointer.horizon, 1), pointer.visible + 1) < state.recent[0].version:
            return  # retirement lags far, or the store went back: some versions they need are unknown here
        before_us = keep_from_us(state, folded_at_us, self._options.wal_retain_s)
        place = cut_place(view.summaries, pointer, before_us)
        if place is not None and place.position != self._cut_at:
            failpoints.hit("trim.before_decisions")
            self._cut(place, state)
            failpoints.hit("trim.after_decisions")
        needed = self._needed(
            [decided for decided in state.recent if decided.version >= pointer.horizon], stopped
        )
        if stopped():
            return
        for store, its_own in pointers.items():
            store.stamp(its_own.visible)
        dropped = self._log.trim_blobs(needed, before_us)
        failpoints.hit("trim.after_blobs")
        logger.debug("trimmed %s bytes of the change-log of %s", dropped.bytes, self._log.where)
        self._trimmed_to = state.last_version
        self._trim_again_at = self._clock.monotonic() + self._options.wal_retain_s / TRIMS_PER_RETENTION

    def _pointers(self, state: Folded) -> dict[Store, Pointer] | None:
        """Read the pointer of every store that follows the log; None: one of them does not answer."""
        strange = {*state.stores} - {*self._others, self._name}
        if strange:  # added by a newer driver: the versions it needs are unknown here
            logger.debug("not trimmed: store %s was not given", ", ".join(sorted(strange)))
            return None
        stores = [self._store, *(self._others[name] for name in state.stores if name in self._others)]
        pointers = {self._store: self._store.pointer()}
        for store in stores[1:]:
            try:
                if store.identity() is None:
                    return None  # not created yet, or lost: it is filled first
                pointers[store] = store.pointer()
            except StoreUnavailableError as error:
                logger.debug("not trimmed: %s", error)
                return None
        return pointers

    def _is_due(self, state: Folded) -> bool:
        """Whether a trim is due: at a driver's start, then by versions or time, as it lists the whole log."""
        return (
            self._trimmed_to is None
            or state.last_version - self._trimmed_to >= self._options.summary_every
            or self._clock.monotonic() >= self._trim_again_at
        )

    def _cut(self, place: SummaryPlace, state: Folded) -> None:
        """Cut in front of the Summary, after reading it again at its folded position."""
        with contextlib.suppress(WalGapError):  # another driver cut further meanwhile
            _check_summary(self._log, place, state.namespace)
            self._log.trim_decisions(place.position)
        self._cut_at = place.position

    def _needed(self, versions: Sequence[DecidedVersion], stopped: Callable[[], bool]) -> set[str]:
        """Collect the addresses of these versions' manifests and frames. Each manifest is read once."""
        known = self._addresses
        self._addresses = {
            decided.version: known[decided.version] for decided in versions if decided.version in known
        }
        for decided in versions:
            if decided.version not in self._addresses and not stopped():
                frames = read_manifest(self._log, decided, rows=False).frames()
                addresses = (decided.manifest_address, *(frame.address for frame in frames))
                self._addresses[decided.version] = addresses
        return {address for addresses in self._addresses.values() for address in addresses}


def keep_from_us(state: Folded, folded_at_us: int, wal_retain_s: float) -> int:
    """Return the time before which every staged blob is decided in ``state``, or never will be.

    A barrier's staging starts after the version before its own is folded. So a blob that was staged before
    the last version of ``state`` was decided belongs to that version or an earlier one. Every decision of
    those is in ``state``, even if another driver is deciding now and ``state`` is old. Blobs of a further
    ``wal_retain_s`` are kept for ``repair``, and because the clocks of drivers and log need not agree.
    """
    return min(folded_at_us, state.decided_at_us) - int(wal_retain_s * 1_000_000)


def least_of(pointers: Sequence[Pointer]) -> Pointer:
    """Return the version that every store has, and the oldest one that any of them may still retire.

    A store that is being filled needs the versions after the one that it is filled at.
    """
    return Pointer(
        visible=min(pointer.visible or pointer.filling_at for pointer in pointers),
        horizon=min(pointer.horizon for pointer in pointers),
    )


def cut_place(summaries: Sequence[SummaryPlace], pointer: Pointer, before_us: int) -> SummaryPlace | None:
    """Find the newest valid Summary below which all is published, and decided before ``before_us``.

    Its recent versions reach back to the horizon at least, from where retirement continues.
    """
    for place in reversed(summaries):
        reaches = place.version < max(pointer.horizon, 1) + RECENT_MAX
        if reaches and place.version <= pointer.visible and place.decided_at_us < before_us:
            return place
    return None


def _check_summary(log: Log, place: SummaryPlace, namespace: str) -> None:
    """Check that the place still has the Summary that was folded there. Raises: CorruptError."""
    where = f"{log.where}, position {place.position}"
    entry = next(iter(log.decisions(place.position)), None)
    record = None if entry is None else decode_record(entry.content, where)
    if not isinstance(record, Summary) or (record.namespace, record.state.digest) != (
        namespace,
        place.digest,
    ):
        msg = f"{where}: the Summary of version {place.version} is gone: this is another log"
        raise CorruptError(msg)
