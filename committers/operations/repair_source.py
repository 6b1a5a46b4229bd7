"""The sources of rows for a repair when no log holds them: another store of the same log, or an export.

Before anything is written a source's uuid, version and digest are compared with the namespace's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.background.pin import VersionPin
from tidegate.committers.barrier import catalog_entry
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.decision_log import DecisionLog
from tidegate.committers.exports.export_format import batches_of
from tidegate.committers.exports.import_rows import read_whole
from tidegate.committers.repair.lost_groups import Source, not_for
from tidegate.committers.repair.lost_pointer import resumed_horizon
from tidegate.committers.steps.decided_versions import decided_version
from tidegate.errors import ConfigError, SnapshotExpiredError
from tidegate.keys.groups import key_group_of_each
from tidegate.sinks.capabilities import SupportsRebuild
from tidegate.sinks.records import CatalogEntry, Identity
from tidegate.sinks.rules.layout import payloads
from tidegate.sinks.rules.reads import windows
from tidegate.sinks.store import Store
from tidegate.wal.frame import Run


def refuse_before_open(coordinator: Coordinator, source: StoreSource | ExportSource) -> None:
    """Check a source for a store that shows nothing, before its pointer is put back. It writes nothing.

    Raises: ConfigError: the source is of another namespace or history, or is older than the log reaches back.
    """
    store, state = coordinator.store, coordinator.decisions.catch_up()
    if not isinstance(store, SupportsRebuild):
        raise not_for(store)
    if state is None or (
        store.identity() is not None and (store.pointer().visible or store.pointer().filling_at)
    ):
        return
    uuid, version, digest = source.newest()
    _refuse_other_uuid(coordinator.decisions, source.where, uuid)
    horizon = resumed_horizon(coordinator, 0)
    oldest = (
        horizon - 1 if isinstance(source, StoreSource) else horizon
    )  # a store that lags is caught up first
    if not horizon or version < oldest:
        reach = f"from version {horizon} on" if horizon else "the rows of no version"
        fitting = f"take a source with version {horizon} or a newer one" if horizon else "no source fits"
        raise ConfigError(
            f"{source.where} has version {version}, {store.where} shows nothing, and {coordinator.log.where}"
            f" has {reach}: {fitting}. Nothing was written. Of an export `tidegate import FOLDER --namespace"
            " NEW_NAME` makes a new namespace"
        )
    decided = decided_version(coordinator.decisions, version)
    if decided is not None:
        _refuse_digest(source.where, version, {decided.digest}, digest)


class StoreSource(Source):
    """Another store of the same log."""

    def __init__(self, store: Store) -> None:
        self._store, self.where = store, store.where
        self._held: VersionPin | None = None

    def newest(self) -> tuple[str, int, str]:
        """Return the namespace's uuid, and the newest version with its digest. Raises: ConfigError."""
        identity, visible = self._identity(), self._store.pointer().visible
        entries = self._store.catalog(visible, visible)
        return identity.uuid, visible, entries[0].digest if entries else "none"

    def _identity(self) -> Identity:
        identity = self._store.identity()
        if identity is None:
            raise ConfigError(f"{self.where}: there is no namespace here; give a store that has this one")
        return identity

    @contextlib.contextmanager
    def hold(self, coordinator: Coordinator) -> Iterator[CatalogEntry]:
        """Pin the newest version that is visible in both stores, else the oldest that this one has."""
        _refuse_other_uuid(coordinator.decisions, self.where, self._identity().uuid)
        theirs = self._store.pointer()
        version = max(min(theirs.visible, coordinator.store.pointer().visible), theirs.horizon)
        entry = _entry(coordinator, self.where, version)
        try:
            self._held = pin = VersionPin(self._store, version, coordinator.clock, "repair")
        except SnapshotExpiredError as error:
            raise ConfigError(
                f"{self.where}: version {version} was retired there meanwhile; nothing was written; run the"
                f" command again: {error}"
            ) from error
        try:
            entries = self._store.catalog(version, version)
            _refuse_other_digest(
                coordinator.decisions, self.where, entry, entries[0].digest if entries else "none"
            )
            yield entry
        finally:
            pin.give_back()

    def runs(self, entry: CatalogEntry, groups: Collection[int], key_groups: int) -> Iterator[Run]:
        """``Source.runs``."""
        assert self._held is not None
        for step in windows(sorted(groups)):
            for table in sorted(entry.tables):
                for group, batch in self._store.scan_groups_stored(entry.read_at(table), step):
                    self._held.keep()
                    live = batch.filter(payloads(batch["value"], entry.decided_at_us).is_valid())
                    yield Run(group, table, live["key"], live["value"])


class ExportSource(Source):
    """A folder written by ``tidegate export``. Every file is compared with its checksum first."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.where = folder, str(folder)
        self._manifest, _ = read_whole(folder)

    def newest(self) -> tuple[str, int, str]:
        """Return the namespace's uuid, and the exported version with its digest."""
        return self._manifest.uuid, self._manifest.version, self._manifest.digest

    @contextlib.contextmanager
    def hold(self, coordinator: Coordinator) -> Iterator[CatalogEntry]:
        """Give the entry of the exported version; a folder needs no pin."""
        manifest = self._manifest
        _refuse_other_uuid(coordinator.decisions, self.where, manifest.uuid)
        entry = _entry(coordinator, self.where, manifest.version)
        _refuse_other_digest(coordinator.decisions, self.where, entry, manifest.digest)
        if missing := sorted(entry.tables.keys() - manifest.tables.keys()):
            raise ConfigError(
                f"{self.where} has no table {', '.join(missing)}: a key group is put back with all of its"
                " tables; export without --table"
            )
        yield entry

    def runs(self, entry: CatalogEntry, groups: Collection[int], key_groups: int) -> Iterator[Run]:
        """``Source.runs``."""
        for table, table_at in sorted(entry.tables.items()):
            stride = table_at.apart
            for batch in batches_of(self._folder, table, self._manifest.tables[table]):
                of_each = np.array(key_group_of_each(batch["key"].to_pylist(), key_groups, stride), np.int64)
                for group in sorted(set(of_each.tolist()) & set(groups)):
                    rows = batch.filter(pa.array(of_each == group))
                    yield Run(group, table, rows["key"], rows["value"])


def _refuse_other_uuid(decisions: DecisionLog, where: str, uuid: str) -> None:
    if uuid != decisions.folded.namespace:
        raise ConfigError(
            f"{where} is of namespace {uuid}, the log of {decisions.folded.namespace}: its rows are not"
            " this namespace's; nothing was written"
        )


def _entry(coordinator: Coordinator, where: str, version: int) -> CatalogEntry:
    """Read the catalog's entry of the version; build it for one that is decided and not visible."""
    coordinator.decisions.catch_up()
    pointer, last = coordinator.store.pointer(), coordinator.folded.last_version
    if pointer.filling_at or not max(pointer.horizon, 1) <= version <= max(pointer.visible, last):
        raise ConfigError(
            f"{where} has version {version}, {coordinator.store.where} shows versions {pointer.horizon} to"
            f" {pointer.visible}, the log's last one is {last}: take a source with one of these; nothing was"
            " written"
        )
    if version > pointer.visible:
        decided = decided_version(coordinator.decisions, version)
        if decided is None:
            raise ConfigError(
                f"{coordinator.log.where} no longer has the decision of version {version}: take a source with"
                " another version; nothing was written"
            )
        return catalog_entry(decided, read_manifest(coordinator.log, decided))
    entries = coordinator.store.catalog(version, version)
    if not entries:
        raise ConfigError(
            f"{coordinator.store.where} has lost its catalog's entry of version {version}: take another"
            " version, or see `tidegate verify`; nothing was written"
        )
    return entries[0]


def _refuse_other_digest(decisions: DecisionLog, where: str, entry: CatalogEntry, digest: str) -> None:
    decided = decided_version(decisions, entry.version)
    ours = {entry.digest, decided.digest} if decided else {entry.digest}
    _refuse_digest(where, entry.version, ours, digest)


def _refuse_digest(where: str, version: int, ours: set[str], digest: str) -> None:
    if ours != {digest}:
        raise ConfigError(
            f"{where}: version {version} has digest {digest}, here it has {' and '.join(sorted(ours))}:"
            " they are of two histories; nothing was written"
        )
