"""Repair below the horizon: lost rows of the versions up to it.

Retirement leaves the newest row of each key of these versions, and no count shows whether it is there. So the
rows are compared by keys, as ``verify`` does: the log is read backwards from the horizon's version, and the
first change of a key that is met counts. A key for which readers get another value is written again as a row
of the horizon's version, so that no replaced row becomes visible again. docs/decisions/0071.

This reads the whole log once. ``repair`` alone, which a running query calls, compares from the horizon on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from tidegate.base import failpoints
from tidegate.committers.apply import apply
from tidegate.committers.barrier import catalog_entry
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.repair.compare_rows import Horizon, Unlike
from tidegate.committers.repair.log_reach import refused_rows
from tidegate.committers.repair.lost_groups import Mended, Source
from tidegate.committers.repair.repair import repair
from tidegate.committers.steps.decided_versions import decided_versions
from tidegate.errors import SnapshotExpiredError, StoreNotVerifiedError, WalGapError
from tidegate.sinks.records import CatalogEntry, Stamp
from tidegate.wal.frame import Run
from tidegate.wal.record import DecidedVersion, TableSchema

logger = logging.getLogger("tidegate")


class Repaired(NamedTuple):
    """The result of a repair: the versions that it put back, oldest first.

    ``not_compared`` describes the rows that it did not compare with the log, and a remedy; '': none.
    """

    put_back: list[Mended]
    not_compared: str = ""


def repair_all(coordinator: Coordinator, source: Source | None = None) -> Repaired:
    """Compare the store with the log as far back as that reaches, and put back what is missing.

    The driver must be open; ``source`` as in ``repair``. Durable: on return. Repeatable: yes. Raises: as
    ``repair``; IncompleteError: a row was written again and readers still do not get it.
    """
    mended = repair(coordinator, source)
    horizon = coordinator.store.pointer().horizon
    if coordinator.store.pointer().filling_at or not horizon:
        return Repaired(mended)  # filled again from the other store; or compared from version 1 on
    where = coordinator.store.where
    if not coordinator.store.can_rewrite:
        why = (
            f"rows of version {horizon} and older ones were not compared one by one in {where}:"
            " `tidegate verify` does that"
        )
    else:
        try:
            base = _Base(coordinator, horizon)
            mended = base.repair() + mended
        except SnapshotExpiredError as error:
            msg = f"{where}: version {horizon} was retired during the repair; repeat it: {error}"
            raise StoreNotVerifiedError(msg) from error
        if base.oldest == 1:
            return Repaired(mended)
        why = (
            f"rows that versions before {base.oldest} wrote were not compared in {where}, as"
            f" {coordinator.log.where} no longer has these versions: if the servers may have lost such rows,"
            " too, put the store back from a copy, or fill a new one from another store"
            " (`tidegate store add NAME=URL`)"
        )
    logger.warning("%s", why)
    return Repaired(mended, why)


class _Base:
    """The rows of one driver's store at and below its horizon.

    ``oldest`` is the oldest version that could be read from the log.
    """

    def __init__(self, coordinator: Coordinator, horizon: int) -> None:
        self._coordinator, self._horizon = coordinator, horizon
        self.oldest = horizon + 1
        self._groups: dict[int, set[int]] = {}

    def repair(self) -> list[Mended]:
        """Compare, and write again the rows that readers at the horizon lack; return their versions."""
        versions, changes = self._readable_facts()
        if versions:
            newest, store = versions[0], self._coordinator.store
            entry = catalog_entry(newest, apply.read_manifest(self._coordinator.log, newest))
            horizon = Horizon(store, entry, self._coordinator.folded.key_groups, changes, {})
            for groups in horizon.passes():
                for decided in versions:
                    if decided.version < self.oldest:
                        break
                    try:
                        self._compare(decided, entry, horizon, groups)
                    except WalGapError:  # it was trimmed since its manifest was read
                        self.oldest = decided.version + 1
        for version, groups_of_version in sorted(self._groups.items()):
            count = len(groups_of_version)
            logger.warning("rows of version %s were written again in %s key groups", version, count)
        return [Mended(version, len(groups)) for version, groups in sorted(self._groups.items())]

    def _readable_facts(self) -> tuple[list[DecidedVersion], int]:
        """List the versions from the horizon's down to the oldest without a gap in the log, newest first.

        The second result is the number of their changes. Schemas that the store lost are put back.
        """
        coordinator, versions, changes = self._coordinator, list[DecidedVersion](), 0
        schemas: dict[str, TableSchema] = {}
        known = [
            decided
            for decided in decided_versions(coordinator.log, coordinator.folded, 1)
            if decided.version <= self._horizon
        ]
        for decided in reversed(known):
            if decided.version != self.oldest - 1:
                break
            try:
                manifest = apply.read_manifest(coordinator.log, decided)
            except WalGapError:
                break
            self.oldest = decided.version
            versions.append(decided)
            changes += sum(frame.changes for frame in manifest.frames())
            schemas |= manifest.schemas
        if versions:
            entry = apply.read_manifest(coordinator.log, versions[0])
            lacked = {
                table_at.schema_id for table_at in entry.table_schemas.values()
            } - coordinator.store.schemas().keys()
            coordinator.store.put_schemas([schemas[name] for name in sorted(lacked & schemas.keys())])
        return versions, changes

    def _compare(self, decided: DecidedVersion, entry: CatalogEntry, horizon: Horizon, groups: range) -> None:
        log, store = self._coordinator.log, self._coordinator.store
        manifest = apply.read_manifest(log, decided)
        stamp = Stamp(entry.version, entry.decided_at_us)
        for work in apply.plan(manifest, decided, 1):
            for chunk in apply.chunks_of(work, log):
                differences = horizon.unlike(decided.version, chunk, groups)
                lost = [(run, unlike) for run, unlike in differences if unlike]
                if not lost:
                    continue
                store.rewrite(stamp, list(_runs(lost)))
                failpoints.hit("repair.after_version")
                for run, unlike in lost:
                    if still := horizon.differing(run.table, {one.key: one.stored for one in unlike}):
                        what = (
                            f"{store.part_of(run.group)}: {len(still)} rows of version {decided.version} in"
                            f" key group {run.group} of table {run.table} were written again, and readers at"
                            f" version {entry.version} still do not get them"
                        )
                        raise refused_rows(self._coordinator, what)
                    self._groups.setdefault(decided.version, set()).add(run.group)


def _runs(lost: Sequence[tuple[Run, list[Unlike]]]) -> Iterator[Run]:
    for run, unlike in lost:
        keys, values = zip(*((one.key, one.stored) for one in unlike), strict=True)
        yield Run(run.group, run.table, pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
