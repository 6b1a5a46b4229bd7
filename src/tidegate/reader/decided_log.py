"""The decisions of a log as readers use them: folded as it grows, and compared with what a store shows."""

from __future__ import annotations

import logging

from tidegate.base import forks
from tidegate.errors import ConfigError, CorruptError, WalGapError
from tidegate.sinks.records import Pointer
from tidegate.sinks.rules.version_ref import VersionRef
from tidegate.wal.catch_up import decided_versions
from tidegate.wal.fold import View, fold_all, recent_version
from tidegate.wal.log import Log
from tidegate.wal.record import DecidedVersion, Folded

logger = logging.getLogger("tidegate")


class DecidedLog:
    """The decisions of the log of one namespace, whose uuid is ``uuid``. Thread-safe; it writes nothing."""

    def __init__(self, log: Log, uuid: str) -> None:
        self.log = log
        self._uuid = uuid
        self._view = View()
        self._lock = forks.Lock()

    @property
    def folded(self) -> Folded:
        """The state that was folded last."""
        assert self._view.state is not None
        return self._view.state

    def recent(self, version: int) -> DecidedVersion | None:
        """Return a decided version; None: it is not among the last 1,000. Raises: as ``fold``."""
        self.fold(version)
        return recent_version(self.folded, version)

    def at(self, version: int) -> DecidedVersion | None:
        """Return a decided version, however old; None: the log no longer has its decision.

        Raises: as ``fold``. A version that is not among the last 1,000 costs one pass over the decisions.
        """
        self.fold(version)
        decided = next(decided_versions(self.log, self.folded, version), None)
        return decided if decided is not None and decided.version == version else None

    def ref(self, version: int) -> VersionRef:
        """Return a decided version with its history; without a digest if the log no longer has its decision.

        Raises: as ``fold``.
        """
        decided = self.at(version) if version else None
        return VersionRef(version, self._uuid, "" if decided is None else decided.digest)

    def fold(self, version: int) -> None:
        """Fold the log, unless it was folded up to this version.

        Raises: ConfigError: it is the log of another namespace, or empty. Otherwise as ``Log.decisions``.
        """
        with self._lock:
            view = self._view
            if view.state is not None and view.state.last_version >= version:
                return
            try:
                view = fold_all(view, self.log.decisions(view.position))
            except (WalGapError, CorruptError):  # it was cut, at its start or, by a loss, at its end
                view = fold_all(View(), self.log.decisions())
            if view.state is None or view.state.namespace != self._uuid:
                of_log = "nothing" if view.state is None else f"namespace {view.state.namespace}"
                raise ConfigError(
                    f"log {self.log.where} holds {of_log}, the store is of {self._uuid}: check the option wal"
                )
            self._view = view

    def check_same_history(self, pointer: Pointer, upto: int = 0) -> None:
        """Fold the log up to the store's visible version, and compare the two histories.

        A version's digest covers all decisions up to it. A log may lose a decision that was folded here and
        never visible, and get another one of its number: then the log is folded again. Raises: CorruptError:
        the visible version was not decided in this log.
        """
        upto = max(upto, pointer.visible)
        self.fold(upto)
        if self._is_of(pointer):
            return
        logger.warning("log %s lost a decision that was read here: it is read again", self.log.where)
        with self._lock:
            self._view = View()
        self.fold(upto)
        if not self._is_of(pointer):
            raise CorruptError(
                f"version {pointer.visible} has digest {pointer.digest} in the store, and another one in log"
                f" {self.log.where}: they are of two histories; check the option wal, or restore the log that"
                " belongs to this store"
            )

    def _is_of(self, pointer: Pointer) -> bool:
        fact = recent_version(self.folded, pointer.visible)
        if fact is None:  # so old that it is not kept, or never decided
            return self.folded.last_version >= pointer.visible
        return fact.digest == pointer.digest
