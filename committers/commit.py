"""The commit: the order in which a barrier becomes a visible version.

``until_decided`` is the protocol's first half in one straight function; ``complete`` is the second,
which whoever finds a decided version may run. ``commit`` runs both, one after the other;
``pipeline.py`` runs the second beside the first half of the next barrier. What may follow what
stands in ``states.TABLE``. Each step has a file of its own: ``decide``, ``seal``, ``publish``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from tidegate import failpoints
from tidegate.committers.acks import check_acks
from tidegate.committers.barrier import Barrier, catalog_entry, decided_of, manifest_of, stage_spec
from tidegate.committers.decide import decide
from tidegate.committers.driver import Driver, Patience
from tidegate.committers.facts import facts_from
from tidegate.committers.phases import Phases
from tidegate.committers.publish import publish
from tidegate.committers.repair import repair
from tidegate.committers.retire import behind_most
from tidegate.committers.seal import RETRIED, seal_everywhere
from tidegate.committers.states import Event, Machine, State
from tidegate.committers.trim import summarise_if_due
from tidegate.errors import OutcomeUnknownError, StoreNotVerifiedError, TidegateError, WalUnavailableError
from tidegate.wal.fold import replay_of
from tidegate.wal.manifest import Manifest, encode_manifest, manifest_digest
from tidegate.wal.record import BatchOrigin, VersionFact

logger = logging.getLogger("tidegate")


class OnItsWay(NamedTuple):
    """A version that is decided, and what ``complete`` needs for it.

    ``manifest`` is None when another attempt won: the log has its manifest.
    """

    fact: VersionFact
    manifest: Manifest | None
    machine: Machine


def commit(driver: Driver, barrier: Barrier) -> VersionFact:
    """Make one barrier visible as the next version: all of it, or nothing.

    On return the version is durable in the log and the store, and visible. Errors before the
    decision prove that nothing of the barrier reached the store (BadRecordError,
    ConflictError, WalUnavailableError, and whatever staging raised). OutcomeUnknownError:
    it may be decided; opening again settles it. LineageError: another driver decided this
    batch, from other offsets; ours are not in. After the decision (StoreUnavailableError,
    FencedError, CorruptError) the version stays decided and is finished by whoever opens next.
    """
    base = driver.last_decided
    on_its_way = until_decided(driver, barrier)

    # Phase two: from here on the version becomes visible, by us or by whoever comes next (I4).
    for each in decided_since(driver, base, on_its_way):
        complete(driver, *each)

    # Beside the version, which is visible: now and then one more record, whatever becomes of it.
    summarise_if_due(driver)
    failpoints.hit("commit.before_return")
    return on_its_way.fact


def until_decided(
    driver: Driver, barrier: Barrier, wait_for_room: Callable[[], None] = lambda: None
) -> OnItsWay:
    """Phase one: stage a barrier and decide it. On return the version is durable in the log, not visible.

    Errors are those of ``commit`` before the decision. ``wait_for_room`` is called right before
    the decision, when everything is staged; whatever it raises, nothing was decided.
    """
    machine = Machine(watch=driver.watch)
    base = driver.folded
    attempt = driver.clock.new_id()
    spec = stage_spec(driver, barrier, attempt)
    machine.on(Event.BEGUN)

    # Every task's change-log is durable in the log, then its ack counts (I3).
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
    _let_retirement_catch_up(driver)
    wait_for_room()  # last: a line that has failed meanwhile ends here

    # The commit point: one record, and which attempt the fold gives for the barrier.
    record = decided_of(driver, barrier, manifest, address, manifest_digest(content), spec.at_us)
    fact = decide(driver, machine, record)
    won = fact.attempt == attempt
    if not won and isinstance(barrier.origin, BatchOrigin):
        replay_of(driver.folded, barrier.origin)  # LineageError when it was from other offsets
    driver.last_manifest = manifest if won else None
    return OnItsWay(fact, driver.last_manifest, machine)


def _let_retirement_catch_up(driver: Driver) -> None:
    """Versions that wait to be retired take room in the store, and readers look through them: while they are
    many, no more are decided. After ``apply_deadline_s`` they are, with a warning.
    """
    if not driver.way.behind:
        return
    most, deadline_s = behind_most(driver.store, driver.options), driver.options.apply_deadline_s
    if driver.way.wait_for_room(most, 0):
        return
    driver.waits_for(f"{driver.way.behind} older versions to be retired")
    if not driver.way.wait_for_room(most, deadline_s):
        logger.warning(
            "the retirement of older versions has gone on for more than %s s while %s became visible: readers"
            " look through all of them, and they take room; write fewer or larger batches, or give the store"
            " more servers",
            deadline_s,
            driver.way.behind,
        )


def complete(
    driver: Driver, fact: VersionFact, manifest: Manifest | None = None, machine: Machine | None = None
) -> None:
    """Apply, seal and publish a decided version; may be repeated by anyone who owns the epoch.

    On return it is visible and durable. StoreUnavailableError: the deadline passed, decided
    stays decided. StoreNotVerifiedError: so too, its servers kept changing. FencedError: a newer
    driver finishes it. CorruptError, WalGapError: its change-logs cannot be read; nothing of it
    was made visible.
    """
    if isinstance(driver.watch, Phases):
        driver.watch.of_version(fact.version)
    machine = machine or Machine(State.DECIDED, driver.watch)
    patience = driver.patience(driver.options.apply_deadline_s)
    while machine.state is not State.VISIBLE:
        try:
            manifest = seal_everywhere(driver, machine, fact, manifest)
            publish(driver, machine, fact, catalog_entry(fact, manifest))
            driver.last_manifest = manifest
        except StoreNotVerifiedError as changed:
            if patience.over:
                raise
            driver.met(changed)
            _make_good(driver, fact, patience, changed)
            patience.pause()
            machine = Machine(State.DECIDED, driver.watch)  # decided stays decided: on from there


def decided_since(driver: Driver, base: int, mine: OnItsWay) -> list[OnItsWay]:
    """What was decided behind the base, oldest first: the driver's own version, hardly ever any other.

    A driver that cannot learn what became of its decision fences itself, and whoever opened since its base.
    What that one had decided is nobody else's to make visible now, and its batches are skipped from now on.
    OutcomeUnknownError: the log, which has to be asked for very many, does not answer: ours is decided.
    """
    if driver.last_decided == mine.fact.version == base + 1 or driver.folded.epoch != driver.epoch:
        return [mine]
    try:
        facts = list(facts_from(driver, min(base + 1, mine.fact.version)))
    except WalUnavailableError as error:  # which would say that nothing was decided
        msg = (
            f"version {mine.fact.version} is decided, and others beside it that are not visible yet:"
            f" {error}; restart the query or run `tidegate recover`"
        )
        raise OutcomeUnknownError(msg) from error
    return [mine if fact == mine.fact else OnItsWay(fact, None, Machine(State.DECIDED)) for fact in facts]


def _make_good(driver: Driver, fact: VersionFact, patience: Patience, why: TidegateError) -> None:
    """Servers changed under the version: put back what they lost, what is said to be visible included.

    The pointer's own server may be one of them, so versions before ours may have to be published
    again. Tried until the deadline.
    """
    logger.warning("version %s waits for a repair: %s", fact.version, why)
    while True:
        try:
            repair(driver)
            for earlier in facts_from(driver, driver.store.pointer().visible + 1):
                if earlier.version < fact.version:
                    complete(driver, earlier)
            return
        except (*RETRIED, StoreNotVerifiedError):
            if patience.over:
                raise
            patience.pause()
