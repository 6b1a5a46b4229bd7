"""The decided versions, including those that the fold no longer keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidegate.committers.decision_log import DecisionLog
from tidegate.errors import WalGapError
from tidegate.wal import catch_up
from tidegate.wal.fold import recent_version
from tidegate.wal.log import Log
from tidegate.wal.record import BatchOrigin, DecidedVersion, Folded

decided_versions = catch_up.decided_versions
"""Kept under this name for the steps of a commit."""


class LastBatch(NamedTuple):
    """The last batch that a query's next one follows. ``source_offsets``: its end, as Spark prints it.

    ``source_offsets`` is '' if the log no longer has them.
    """

    origin: BatchOrigin
    version: int
    decided_at_us: int
    source_offsets: str


class RetirementBacklog:
    """The decided versions that one thread has not yet dropped from one store.

    A version is retired at most ``keep_versions`` and ``max_layers`` after its decision, which may be more
    than the fold keeps. The backlog grows with the fold, so the log is read at most once, at the start. It is
    read again when the fold no longer has the backlog's last version: the log may have lost it since.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._start = 0
        """The version from which on ``_versions`` has all that the log still had; 0: nothing was read."""
        self._versions: list[DecidedVersion] = []

    def since(self, state: Folded, version: int) -> Iterator[DecidedVersion]:
        """Yield as ``decided_versions``, and forget all versions before ``version``."""
        version = max(version, 1)
        newest = self._versions[-1] if self._versions else None
        known = newest.version if newest else 0
        # Its digest covers all decisions before it, so the backlog is of this history.
        same_history = newest is not None and recent_version(state, known) == newest
        if not self._start or not self._start <= version <= known or not same_history:
            self._versions = list(decided_versions(self._log, state, version))
        else:
            newer = [decided for decided in state.recent if decided.version > known]
            older = [decided for decided in self._versions if decided.version >= version]
            self._versions = [*older, *newer]
        self._start = version
        yield from tuple(self._versions)


def decided_versions_from(decisions: DecisionLog, version: int, store: str) -> Iterator[DecidedVersion]:
    """Yield ``version`` and all later decided versions, oldest first.

    ``store`` is the location of the store that lacks them, for the message. Raises: WalGapError: the log no
    longer has them.
    """
    state, expected = decisions.folded, version
    for decided in decided_versions(decisions.log, state, version):
        if decided.version != expected:
            break
        yield decided
        expected += 1
    if expected <= state.last_version:
        msg = (
            f"version {expected} is not whole in {store}, and {decisions.where} no"
            " longer holds its decision: it was trimmed, wal_retain_s sets how far back the log reaches;"
            " restore the store from a newer copy, or use a new namespace"
        )
        raise WalGapError(msg)


def decided_version(decisions: DecisionLog, version: int) -> DecidedVersion | None:
    """Return one decided version; None: it is not decided, or the log no longer has its decision."""
    decided = next(decided_versions(decisions.log, decisions.folded, version), None)
    return decided if decided is not None and decided.version == version else None
