"""The commit: the order in which a barrier becomes a visible version.

``until_decided`` is the protocol's first half in one straight function. ``complete`` is the second half,
which any driver that finds a decided version may run. ``commit`` runs both, one after the other;
``pipeline.py`` runs the second half while the next barrier is in its first. ``states.TABLE`` holds the order
of the states. Each step has a file of its own: ``decide``, ``seal``, ``publish``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidegate.base import failpoints
from tidegate.committers.apply.apply import NONE_HELD
from tidegate.committers.barrier import (
    Barrier,
    catalog_entry,
    check_tables,
    decided_of,
    manifest_of,
    stage_spec,
)
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.decision_log import Backoff
from tidegate.committers.repair.repair import repair
from tidegate.committers.states import Event, Machine, State
from tidegate.committers.steps.acks import check_acks
from tidegate.committers.steps.decide import decide
from tidegate.committers.steps.decided_versions import decided_versions_from
from tidegate.committers.steps.epoch import claim_epoch
from tidegate.committers.steps.publish import publish
from tidegate.committers.steps.retire import behind_most
from tidegate.committers.steps.seal import RETRIED, apply_and_seal
from tidegate.committers.steps.trim import summarise_if_due
from tidegate.errors import (
    CorruptError,
    OutcomeUnknownError,
    StoreNotVerifiedError,
    TidegateError,
    WalUnavailableError,
)
from tidegate.wal.catch_up import source_offsets_of
from tidegate.wal.fold import recent_version, replay_of
from tidegate.wal.manifest import Manifest, encode_manifest, manifest_digest
from tidegate.wal.record import BatchOrigin, DecidedVersion, ImportOrigin, LoadOrigin
from tidegate.wal.staging.spec import StageSpec

logger = logging.getLogger("tidegate")


class InFlight(NamedTuple):
    """A version that is decided, and the arguments of ``complete`` for it.

    ``manifest`` is None when another attempt won: the log has its manifest. ``held``: the frames that the
    driver itself staged for it, as ``Coordinator.held``.
    """

    decided: DecidedVersion
    manifest: Manifest | None
    machine: Machine
    held: Mapping[str, bytes] = NONE_HELD


def commit(coordinator: Coordinator, barrier: Barrier, staged_by: StageSpec | None = None) -> DecidedVersion:
    """Make one barrier visible as the next version: all of it, or nothing.

    ``staged_by`` is the spec of a barrier whose tasks have staged already.

    Durable: on return the version is in the log and the store, and visible. Raises: before the decision
    BadRecordError, ConflictError, WalUnavailableError, and any error of staging, which prove that nothing of
    the barrier reached the store. OutcomeUnknownError: it may be decided; opening again settles it.
    LineageError: another driver decided this batch, from other offsets; ours are not in. After the decision
    StoreUnavailableError, FencedError, CorruptError: the version stays decided, and the next driver that
    opens finishes it.
    """
    base = coordinator.last_decided
    in_flight_version = until_decided(coordinator, barrier, staged_by=staged_by)

    # Phase two: from here on the version becomes visible, by us or by the next driver (I4).
    for each in decided_since(coordinator, base, in_flight_version):
        complete(coordinator, each.decided, each.manifest, each.machine)

    # The version is visible. A Summary may be due; the outcome of its append changes nothing for the version.
    summarise_if_due(coordinator.decisions, coordinator.options.summary_every)
    failpoints.hit("commit.before_return")
    return in_flight_version.decided


def until_decided(
    coordinator: Coordinator,
    barrier: Barrier,
    wait_for_backlog: Callable[[], None] = lambda: None,
    staged_by: StageSpec | None = None,
) -> InFlight:
    """Stage a barrier and decide it: phase one.

    ``wait_for_backlog`` is called right before the decision, when everything is staged. ``staged_by``: as for
    ``commit``. Durable: on return the version is in the log; it is not visible. Raises: the errors of
    ``commit`` before the decision, and those of ``wait_for_backlog``, after which nothing is decided.
    """
    machine = Machine(watch=coordinator.watch)
    base = coordinator.folded
    check_tables(coordinator, barrier)
    spec = staged_by or stage_spec(coordinator, barrier, coordinator.clock.new_id())
    attempt = spec.attempt
    machine.on(Event.BEGUN)

    # Every task's change-log is durable in the log, then its ack counts (I3).
    acks = barrier.stage(spec, base.last_version)
    check_acks(acks, attempt, barrier.parallelism, base.key_groups)
    machine.on(Event.ACKED)

    # The manifest contains the acks; until the next record nothing is decided (I5).
    failpoints.hit("manifest.before_write")
    manifest = manifest_of(coordinator, barrier, attempt, acks, _source_offsets(coordinator, barrier))
    content = encode_manifest(manifest)
    (address,) = coordinator.log.stage(f"{attempt}-manifest", [content])
    machine.on(Event.MANIFEST_WRITTEN)
    failpoints.hit("manifest.after_write")
    _let_retirement_catch_up(coordinator)
    wait_for_backlog()  # last: it raises when the pipeline has failed meanwhile

    # The commit point: one record, and which attempt the fold gives for the barrier.
    record = decided_of(coordinator, barrier, manifest, address, manifest_digest(content), spec.at_us)
    decided = decide(coordinator.decisions, machine, record)
    if coordinator.epoch != record.epoch:
        claim_epoch(coordinator)
    won = decided.attempt == attempt
    if not won and isinstance(barrier.origin, BatchOrigin):
        replay_of(coordinator.folded, barrier.origin)  # LineageError when it was from other offsets
    coordinator.last_manifest = manifest if won else None
    return InFlight(decided, coordinator.last_manifest, machine, coordinator.held)


def _source_offsets(coordinator: Coordinator, barrier: Barrier) -> str:
    """Return the source offsets of the last batch that the version will contain; '' if they are not known.

    A load has those of the version before, so that readers find them in the newest version alone.
    """
    before = recent_version(coordinator.folded, coordinator.folded.last_version)
    if barrier.source_offsets or before is None or not isinstance(barrier.origin, LoadOrigin | ImportOrigin):
        return barrier.source_offsets
    last = coordinator.last_manifest
    if last is not None and last.version == before.version:
        return last.source_offsets
    with contextlib.suppress(CorruptError):  # of a version that is visible nothing else reads it
        if offsets := source_offsets_of(coordinator.log, before):
            return offsets
    entries = coordinator.store.catalog(before.version, before.version)  # its manifest may be trimmed
    return entries[0].source_offsets if entries else ""


def _let_retirement_catch_up(coordinator: Coordinator) -> None:
    """Delay the decision while too many versions wait to be retired, at most ``apply_deadline_s``.

    Such versions take space in the store, and readers look through them. After the deadline the decision
    is made all the same, with a warning.
    """
    if not coordinator.priority.behind:
        return
    most, deadline_s = (
        behind_most(coordinator.store, coordinator.options),
        coordinator.options.apply_deadline_s,
    )
    if coordinator.priority.wait_for_backlog(most, 0):
        return
    coordinator.waiting_for(f"{coordinator.priority.behind} older versions to be retired")
    if not coordinator.priority.wait_for_backlog(most, deadline_s):
        logger.warning(
            "the retirement of older versions has taken more than %s s while %s became visible: readers"
            " look through all of them, and they use space; write fewer or larger batches, or give the store"
            " more servers",
            deadline_s,
            coordinator.priority.behind,
        )


def complete(
    coordinator: Coordinator,
    decided: DecidedVersion,
    manifest: Manifest | None = None,
    machine: Machine | None = None,
) -> None:
    """Apply, seal and publish a decided version.

    Durable: on return it is in the store, and visible. Repeatable: by any driver that owns the epoch.
    Raises: StoreUnavailableError: the deadline passed; the version stays decided. StoreNotVerifiedError: the
    same, because its servers kept changing. FencedError: a newer driver finishes it. CorruptError,
    WalGapError: its change-logs cannot be read; nothing of it was made visible.
    """
    coordinator.watch.of_version(decided.version)
    machine = machine or Machine(State.DECIDED, coordinator.watch)
    backoff = coordinator.backoff()
    while machine.state is not State.VISIBLE:
        try:
            manifest = apply_and_seal(coordinator, machine, decided, manifest)
            publish(coordinator, machine, decided, catalog_entry(decided, manifest))
            coordinator.last_manifest = manifest
        except StoreNotVerifiedError as changed:
            if backoff.expired:
                raise
            coordinator.retried(changed)
            _repair_and_republish(coordinator, decided, backoff, changed)
            backoff.wait()
            machine = Machine(State.DECIDED, coordinator.watch)  # decided stays decided: continue from there


def decided_since(coordinator: Coordinator, base: int, mine: InFlight) -> list[InFlight]:
    """List the versions decided after the base, oldest first: the driver's own, and hardly ever any other.

    A driver that cannot learn the outcome of its decision fences itself, and every driver that opened since
    its base. The versions of such a driver are now this driver's to make visible; their batches are skipped
    from now on. Raises: OutcomeUnknownError: the versions are too many to be in memory, and the log does
    not answer; this driver's own version is decided.
    """
    if (
        coordinator.last_decided == mine.decided.version == base + 1
        or coordinator.folded.epoch != coordinator.epoch
    ):
        return [mine]
    first = min(base + 1, mine.decided.version)
    try:
        versions = list(decided_versions_from(coordinator.decisions, first, coordinator.store.where))
    except WalUnavailableError as error:  # raised by a commit, it means that nothing was decided
        msg = (
            f"version {mine.decided.version} is decided, like others that are not visible yet:"
            f" {error}; restart the query or run `tidegate recover`"
        )
        raise OutcomeUnknownError(msg) from error
    return [
        mine if decided == mine.decided else InFlight(decided, None, Machine(State.DECIDED))
        for decided in versions
    ]


def _repair_and_republish(
    coordinator: Coordinator, decided: DecidedVersion, backoff: Backoff, why: TidegateError
) -> None:
    """Repair the store after its servers changed during the version; publish lost versions again.

    The pointer's own server may be one of the changed ones, so versions before this one may have to be
    published again. The repair is tried until the deadline.
    """
    logger.warning("version %s waits for a repair: %s", decided.version, why)
    while True:
        try:
            repair(coordinator)
            visible = coordinator.store.pointer().visible
            for earlier in decided_versions_from(coordinator.decisions, visible + 1, coordinator.store.where):
                if earlier.version < decided.version:
                    complete(coordinator, earlier)
            return
        except (*RETRIED, StoreNotVerifiedError):
            if backoff.expired:
                raise
            backoff.wait()
