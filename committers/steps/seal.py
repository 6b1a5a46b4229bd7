"""The seal: a decided version is applied and sealed in every key group, with retries."""

from __future__ import annotations

import contextlib

from tidegate.base import failpoints
from tidegate.committers.apply import apply
from tidegate.committers.barrier import parallelism_of
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.states import Event, Machine, Watch
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import (
    FencedError,
    IncompleteError,
    StoreUnavailableError,
    TidegateError,
    WalGapError,
    WalUnavailableError,
)
from tidegate.sinks.records import Stopped
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import DecidedVersion

RETRIED = (StoreUnavailableError, IncompleteError, WalUnavailableError)


def apply_and_seal(
    coordinator: Coordinator, machine: Machine, decided: DecidedVersion, manifest: Manifest | None
) -> Manifest:
    """Apply and seal every key group of the version, with backoff, until ``apply_deadline_s``.

    The manifest is read from the log, with the same backoff, unless given; it is returned.
    A small version is applied by the driver itself; a large one by the executors. Raises: FencedError:
    a newer driver opened; it finishes the version, or has, and trimmed its change-logs. WalGapError: another
    attempt was begun in the store. StoreNotVerifiedError: a server restarted or was promoted; repair, then
    seal again. StoreUnavailableError: the deadline passed.
    """
    backoff = coordinator.backoff(first_s=0.05, most_s=5.0)
    while True:
        try:
            manifest = _seal_once(coordinator, machine.watch, decided, manifest)
        except RETRIED as error:
            if error.writes_refused:
                _free(coordinator, lambda: backoff.expired)
            if backoff.expired:
                machine.on(Event.DEADLINE)
                msg = (
                    f"version {decided.version} is decided but could not be applied within"
                    f" {coordinator.options.apply_deadline_s} s ({error}); it stays decided: restart the"
                    " query or run `tidegate recover` when the cause is gone"
                )
                raise StoreUnavailableError(msg) from error
            coordinator.retried(error)
            backoff.wait()
        except WalGapError as error:
            _refuse_if_fenced(coordinator, decided, error)
            raise
        else:
            machine.on(Event.SEALED)
            return manifest


def _free(coordinator: Coordinator, stopped: Stopped) -> None:
    """Retire what may be retired: the store is full, and this version waits for the room.

    Recovery runs before the thread that retires is started.
    """
    with contextlib.suppress(TidegateError):
        retire_up_to(coordinator.log, coordinator.store, coordinator.folded, coordinator.options, stopped)


def _refuse_if_fenced(coordinator: Coordinator, decided: DecidedVersion, error: WalGapError) -> None:
    """Refuse with a FencedError when a newer driver has published the version and trimmed its change-log."""
    pointer = coordinator.store.pointer()
    if pointer.epoch > coordinator.epoch:
        msg = (
            f"driver {pointer.writer} claimed epoch {pointer.epoch} in {coordinator.store.where}, above this"
            f" driver's {coordinator.epoch}, and the log no longer holds version {decided.version}: that"
            " driver has finished with it; stop this one, or restart it if it is the one that should run"
        )
        raise FencedError(msg) from error


def _seal_once(
    coordinator: Coordinator, watch: Watch, decided: DecidedVersion, manifest: Manifest | None
) -> Manifest:
    if manifest is None:
        manifest = apply.read_manifest(coordinator.log, decided)
    if not coordinator.store.begin(apply.stamp_of(decided), manifest.schemas.values(), coordinator.epoch):
        return manifest  # it is visible already, so it is complete
    failpoints.hit("apply.after_begin")
    frames, options = manifest.frames(), coordinator.options
    small = (
        sum(ref.changes for ref in frames)
        <= min(options.apply_max_changes, coordinator.store.driver_changes_max)
        and sum(ref.bytes for ref in frames) <= options.driver_apply_max_bytes
    )
    with coordinator.priority.applying():
        on_executors = None if small else coordinator.apply_on_executors
        watch.applied_by("driver" if on_executors is None else "tasks")
        if on_executors is None:
            for work in apply.plan(manifest, decided, 1):
                apply.do(work, coordinator.log, coordinator.store, cached=coordinator.held)
        else:
            tasks = min(manifest.key_groups, max(parallelism_of(manifest), options.tasks or 1))
            on_executors(apply.plan(manifest, decided, tasks))
    if coordinator.options.wait_replicas or coordinator.options.wait_aof:
        replicas, aof = coordinator.options.wait_replicas, coordinator.options.wait_aof
        coordinator.store.confirm(decided.version, replicas=replicas, aof=aof)
    return manifest
