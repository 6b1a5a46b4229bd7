"""The caches of state that hold at the last version: the driver's information for the tasks of the
next barrier.
"""

from __future__ import annotations

import logging

from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.coordinator import Coordinator
from tidegate.errors import TidegateError
from tidegate.sinks.cache.in_flight import EarlierLinks, frames_of
from tidegate.sinks.cache.links import links_at
from tidegate.spark.state.cache import NO_LINKS, LinksAt
from tidegate.wal.fold import recent_version
from tidegate.wal.record import BatchOrigin, DecidedVersion, LoadOrigin

logger = logging.getLogger("tidegate")

LOOK_BACK = 8
"""The most versions without any change that are skipped in the search for the links in the log."""


class StateLinks:
    """The links that hold at the driver's last version, computed again after each newer one."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._last = NO_LINKS

    def at_last(self) -> LinksAt:
        """Return the links at the version folded last; none, so empty caches, when its manifest
        cannot be read.

        The manifest is the one that this driver decided; after a restart it is read from the log.
        """
        version = self._coordinator.folded.last_version
        if version != self._last.version:
            try:
                self._last = self._at(version, LOOK_BACK)
            except TidegateError as error:
                logger.warning("caches of state start empty at version %s: %s", version, error)
                self._last = LinksAt(version, ())
        return self._last

    def _at(self, version: int, further: int) -> LinksAt:
        if version == self._last.version:
            return self._last
        fact = recent_version(self._coordinator.folded, version)
        if fact is None or not further:
            return LinksAt(version, ())
        manifest = self._coordinator.last_manifest
        if manifest is None or (manifest.version, manifest.attempt) != (version, fact.attempt):
            manifest = read_manifest(self._coordinator.log, fact)
        if not _is_staged(fact):
            return LinksAt(version, links_at(manifest))
        if not manifest.frames():
            before = self._at(version - 1, further - 1)
            return LinksAt(version, links_at(manifest, before.links), before.behind)
        links = links_at(manifest)
        before = self._last
        if before.version != version - 1:
            return LinksAt(version, links)
        now, then = EarlierLinks(version, links), EarlierLinks(before.version, before.links)
        return LinksAt(version, links, before.behind.followed(then, now, frames_of(manifest)))


def _is_staged(fact: DecidedVersion) -> bool:
    """Return whether frames contain all changes of the version: a restored one may have none."""
    return isinstance(fact.origin, BatchOrigin | LoadOrigin)
