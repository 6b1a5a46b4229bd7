"""Repair: the versions that a store's servers lost are put back from the log, in order.

A server that restarts or is promoted may have lost a suffix of what it acknowledged. ``Store.comparing``
returns the first version that may be affected. Every later version is checked in every key group that it
touched, and applied again where it is incomplete. Versions that were never lost are only read.
docs/decisions/0013 explains why no roll-back of floors or merges is needed.
"""

from __future__ import annotations

import contextlib
import logging

from tidegate.base import failpoints
from tidegate.committers.apply import apply
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.repair.log_reach import refused_rows
from tidegate.committers.repair.lost_groups import Mended, Source, copy_from, put_back_in, rebuild, unrepaired
from tidegate.committers.repair.lost_pointer import put_back_entries
from tidegate.committers.steps.decided_versions import decided_versions_from
from tidegate.errors import WalGapError
from tidegate.wal.record import DecidedVersion

__all__ = ["Mended", "check_schemas", "repair"]

logger = logging.getLogger("tidegate")


def repair(coordinator: Coordinator, source: Source | None = None) -> list[Mended]:
    """Compare the store with the log and put back what is missing; return that. The driver must be open.

    ``source`` has the rows that the log no longer holds. Meanwhile readers are refused, or get right
    answers. Durable: on return every server is verified, and holds every decided version, visible or not.
    Repeatable: also after an interruption, and concurrently with another driver's. Raises: WalGapError: the
    log no longer holds all that was lost; the rest was put back, the rows that are left stay as they are, and
    reads of those key groups are refused. StoreNotVerifiedError: servers changed again meanwhile; repeat.
    ConfigError: ``source`` does not fit; nothing was written.
    """
    entries = put_back_entries(coordinator)  # first: they have the table starts, which a copy has to fit
    with contextlib.ExitStack() as comparing:
        copy = None if source is None else comparing.enter_context(copy_from(coordinator, source))
        oldest = comparing.enter_context(coordinator.store.comparing(coordinator.epoch))
        coordinator.decisions.catch_up()  # after the comparison began: what was sealed before is decided
        mended, gaps = rebuild(coordinator, oldest, copy)
        for one in mended:
            what = "all versions up to" if one.base else "version"
            logger.warning("%s %s were put back in %s key groups", what, one.version, one.key_groups)
        for decided in decided_versions_from(coordinator.decisions, oldest, coordinator.store.where):
            if put_back := _put_back(coordinator, decided):
                mended.append(Mended(decided.version, put_back))
                logger.warning("version %s was put back in %s key groups", decided.version, put_back)
        failpoints.hit("repair.before_listing")
    if gaps:
        raise unrepaired(coordinator, gaps)
    return [*(Mended(version, 0) for version in entries), *mended]


def check_schemas(coordinator: Coordinator) -> None:
    """Check that the visible version has its schemas. Raises: IncompleteError: it lacks one."""
    store, visible = coordinator.store, coordinator.store.pointer().visible
    for entry in store.catalog(visible, visible) if visible else ():
        schema_ids = {table_at.schema_id for table_at in entry.tables.values()}
        if lost := schema_ids - store.schemas_of(sorted(schema_ids)).keys():
            named = f"schemas {', '.join(sorted(lost))} were written again"
            raise refused_rows(coordinator, f"{store.where}: {named}, and are not there")


def _put_back(coordinator: Coordinator, decided: DecidedVersion) -> int:
    """Apply the version again where it is incomplete; return in how many key groups.

    The horizon's version is counted on Redis alone. Elsewhere it may be one that the log lacks: the store was
    filled at it from a backup.
    """
    try:
        manifest = apply.read_manifest(coordinator.log, decided)
    except WalGapError:
        if coordinator.store.can_rewrite and decided.version <= coordinator.store.pointer().horizon:
            return 0
        raise
    return put_back_in(coordinator, decided, manifest, manifest.counts())
