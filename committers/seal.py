"""Seal: a decided version is applied and sealed in every key group, however often it takes."""

from __future__ import annotations

import tenacity

from tidegate import failpoints
from tidegate.committers import apply
from tidegate.committers.barrier import parallelism_of
from tidegate.committers.driver import Driver
from tidegate.committers.states import Event, Machine
from tidegate.errors import (
    FencedError,
    IncompleteError,
    StoreUnavailableError,
    WalGapError,
    WalUnavailableError,
)
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import VersionFact

RETRIED = (StoreUnavailableError, IncompleteError, WalUnavailableError)


def seal_everywhere(
    driver: Driver, machine: Machine, fact: VersionFact, manifest: Manifest | None
) -> Manifest:
    """Apply and seal every key group of the version, with backoff, until ``apply_deadline_s``.

    The manifest is read from the log, with the same patience, unless given; it is returned.
    A small version is applied by the driver itself; a large one by the executors. FencedError:
    a newer driver opened; it finishes the version, or has, and trimmed its change-logs. WalGapError: another
    attempt was begun in the store. StoreNotVerifiedError: a server restarted or was promoted; repair, then
    seal again.
    """
    end = driver.clock.monotonic() + driver.options.apply_deadline_s
    again = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(RETRIED),
        wait=tenacity.wait_exponential(multiplier=0.05, max=5),
        stop=lambda _: driver.clock.monotonic() >= end,
        sleep=driver.clock.sleep,
        before_sleep=lambda tried: _again(driver, tried),
        reraise=True,
    )
    try:
        manifest = again(_seal_once, driver, fact, manifest)
    except RETRIED as error:
        machine.on(Event.DEADLINE)
        msg = (
            f"version {fact.version} is decided but could not be applied within"
            f" {driver.options.apply_deadline_s} s ({error}); it stays decided: restart the query or run"
            " `tidegate recover` when the cause is gone"
        )
        raise StoreUnavailableError(msg) from error
    except WalGapError as error:
        _refuse_if_fenced(driver, fact, error)
        raise
    machine.on(Event.SEALED)
    return manifest


def _again(driver: Driver, tried: tenacity.RetryCallState) -> None:
    assert tried.outcome is not None
    error = tried.outcome.exception()
    assert error is not None
    driver.met(error)


def _refuse_if_fenced(driver: Driver, fact: VersionFact, error: WalGapError) -> None:
    """FencedError when a newer driver runs: it published the version long ago, and trimmed its change-log."""
    pointer = driver.store.pointer()
    if pointer.epoch > driver.epoch:
        msg = (
            f"driver {pointer.writer} claimed epoch {pointer.epoch} in {driver.store.where}, above this"
            f" driver's {driver.epoch}, and the log no longer holds version {fact.version}: that driver has"
            " finished with it; stop this one, or restart it if it is the one that should run"
        )
        raise FencedError(msg) from error


def _seal_once(driver: Driver, fact: VersionFact, manifest: Manifest | None) -> Manifest:
    if manifest is None:
        manifest = apply.read_manifest(driver.log, fact)
    if not driver.store.begin(apply.stamp_of(fact), manifest.schemas.values(), driver.epoch):
        return manifest  # it is visible already, so whole
    failpoints.hit("apply.after_begin")
    frames, options = manifest.frames(), driver.options
    small = (
        sum(ref.changes for ref in frames) <= options.driver_apply_max_changes
        and sum(ref.bytes for ref in frames) <= options.driver_apply_max_bytes
    )
    with driver.way.applying():
        if small or driver.apply_on_executors is None:
            for work in apply.plan(manifest, fact, 1):
                apply.do(work, driver.log, driver.store, held=driver.held)
        else:
            tasks = min(manifest.key_groups, max(parallelism_of(manifest), options.tasks or 1))
            driver.apply_on_executors(apply.plan(manifest, fact, tasks))
    if driver.options.wait_replicas or driver.options.wait_aof:
        replicas, aof = driver.options.wait_replicas, driver.options.wait_aof
        driver.store.confirm(fact.version, replicas=replicas, aof=aof)
    return manifest
