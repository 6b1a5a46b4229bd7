"""The commit: the order in which a barrier becomes a visible version.

``commit`` is the whole protocol in one straight function; ``complete`` is its second half,
which whoever finds a decided version may run. What may follow what stands in
``states.TABLE``. Each step has a file of its own: ``decide``, ``seal``, ``publish``.
"""

from __future__ import annotations

from tidegate import failpoints
from tidegate.committers.acks import check_acks
from tidegate.committers.barrier import Barrier, catalog_entry, decided_of, manifest_of, stage_spec
from tidegate.committers.decide import decide
from tidegate.committers.driver import Driver
from tidegate.committers.publish import publish
from tidegate.committers.seal import seal_everywhere
from tidegate.committers.states import Event, Machine, State
from tidegate.committers.trim import summarise_if_due
from tidegate.wal.fold import replay_of
from tidegate.wal.record import BatchOrigin, Manifest, VersionFact, encode_manifest, manifest_digest


def commit(driver: Driver, barrier: Barrier) -> VersionFact:
    """Make one barrier visible as the next version: all of it, or nothing.

    On return the version is durable in the log and the store, and visible. Errors before the
    decision prove that nothing of the barrier reached the store (BadRecordError,
    ConflictError, WalUnavailableError, and whatever staging raised). OutcomeUnknownError:
    it may be decided; opening again settles it. LineageError: another driver decided this
    batch, from other offsets; ours are not in. After the decision (StoreUnavailableError,
    FencedError, CorruptError) the version stays decided and is finished by whoever opens next.
    """
    machine = Machine(watch=driver.watch)
    base = driver.folded
    attempt = driver.clock.new_id()
    spec = stage_spec(driver, barrier, attempt)
    machine.on(Event.BEGUN)

    # Phase one: every task's change-log is durable in the log, then its ack counts (I3).
    acks = barrier.stage(spec, base.last_version)
    check_acks(acks, attempt, barrier.parallelism, base.key_groups)
    machine.on(Event.ACKED)

    # The manifest gathers the acks; until the next record nothing is decided (I5).
    failpoints.hit("manifest.before_write")
    manifest = manifest_of(driver, barrier, attempt, acks)
    content = encode_manifest(manifest)
    (address,) = driver.log.stage(f"{attempt}-manifest", [content])
    machine.on(Event.MANIFEST_WRITTEN)
    failpoints.hit("manifest.after_write")

    # The commit point: one record, and which attempt the fold gives for the barrier.
    record = decided_of(driver, barrier, manifest, address, manifest_digest(content))
    fact = decide(driver, machine, record)
    won = fact.attempt == attempt
    if not won and isinstance(barrier.origin, BatchOrigin):
        replay_of(driver.folded, barrier.origin)  # LineageError when it was from other offsets

    # Phase two: from here on the version becomes visible, by us or by whoever comes next (I4).
    complete(driver, fact, manifest if won else None, machine)

    # Beside the version, which is visible: now and then one more record, whatever becomes of it.
    summarise_if_due(driver)
    failpoints.hit("commit.before_return")
    return fact


def complete(
    driver: Driver, fact: VersionFact, manifest: Manifest | None = None, machine: Machine | None = None
) -> None:
    """Apply, seal and publish a decided version; may be repeated by anyone who owns the epoch.

    On return it is visible and durable. StoreUnavailableError: the deadline passed, decided
    stays decided. FencedError: a newer driver finishes it. CorruptError, WalGapError: its
    change-logs cannot be read; nothing of it was made visible.
    """
    machine = machine or Machine(State.DECIDED, driver.watch)
    manifest = seal_everywhere(driver, machine, fact, manifest)
    publish(driver, machine, fact, catalog_entry(fact, manifest))
