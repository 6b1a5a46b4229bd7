"""The state of a driver: its client of the decision log, its stores, and what it holds in memory."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from tidegate.base.clock import Clock
from tidegate.committers.apply.apply import ApplyWork
from tidegate.committers.apply.priority import ApplyPriority
from tidegate.committers.decision_log import Backoff, DecisionLog
from tidegate.committers.states import Watch
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.records import REMOVAL_BEGINS, Stamp
from tidegate.sinks.store import Store
from tidegate.wal.log import Log
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import Folded

ApplyOnExecutors = Callable[[Sequence[ApplyWork]], None]
"""Runs all works on executors, in parallel. Raises: TidegateError when one failed."""

HOST_MAX = 60
PROCESS_WRITER = re.compile(r"([A-Za-z0-9_.-]+):(\d+):([0-9-]+T[0-9:]+Z):([0-9a-f]+)")


def process_writer(clock: Clock) -> str:
    """Return a fresh writer's id that names its host, process and start.

    It looks like ``worker-3:4711:2026-11-24T12:37:50Z:8a1f6b0e3c554c8e``.
    """
    host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())[:HOST_MAX]
    start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(clock.now_us() / 1e6))
    return f"{host}:{os.getpid()}:{start}:{clock.new_id()}"


def describe_writer(writer: str) -> str:
    """Return a writer in words, with its host, process and start if its id has them."""
    parts = PROCESS_WRITER.fullmatch(writer)
    if writer[:1] == REMOVAL_BEGINS:
        return "the command `tidegate store remove`"
    if parts is None:
        return f"driver {writer}"
    host, process, start, random_id = parts.groups()
    return f"driver {random_id} (host {host}, process {process}, open since {start})"


@dataclasses.dataclass(frozen=True)
class OpenRequest:
    """The request of a command to the open of a namespace; that of a query is empty."""

    discard_lost: bool = False
    """Remove from the store the rows of attempts whose decision the log lost."""
    may_make_again: bool = False
    """Make a store again whose folder is gone with it."""
    has_copy: bool = False
    """A repair has the rows that the log no longer has, from another store or an export."""
    from_backup: bool = False
    """This driver fills its empty store from a backup."""
    is_copying: bool = False
    """This driver is that of a rekey, whose copies are complete with their last version."""
    expected_tasks: int = 1
    """The tasks of a batch, as far as they are known: for the number of key groups of a new namespace."""


class Coordinator:
    """The one writer of a namespace, from its open on. Not thread-safe.

    ``decisions`` is its client of the decision log. ``store`` is the primary; ``others`` are the secondaries,
    which catch up in the background. A step that takes a coordinator may write to ``store``; a step that
    takes a ``DecisionLog`` touches no store.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        log: Log,
        store: Store,
        options: Options | None = None,
        clock: Clock | None = None,
        apply_on_executors: ApplyOnExecutors | None = None,
        *,
        watch: Watch | None = None,
        writer: str = "",
    ) -> None:
        self.endpoints, self.store, self.options = endpoints, store, options or Options()
        self.clock, self.apply_on_executors = clock or Clock(), apply_on_executors
        self.decisions = DecisionLog(
            log,
            endpoints.namespace,
            writer or self.clock.new_id(),
            self.clock,
            self.options.decide_s,
            watch or Watch(),
        )
        self.others: tuple[Store, ...] = ()
        self.last_manifest: Manifest | None = None
        """The manifest of this driver's last decided or published version; None: it is only in the log."""
        self.held: Mapping[str, bytes] = {}
        """Frames that the driver itself staged for the current barrier, by address: not read back."""
        self.priority = ApplyPriority()
        """The priority at the store, shared by both sides of a pipeline."""
        self.begun_us = 0
        """The latest time of a version that was begun in the primary; the log may have lost its decision."""
        self.follows_future = False
        """Whether its decisions follow the time of an earlier one, more than an hour ahead of this clock."""
        self.request = OpenRequest(expected_tasks=self.options.tasks or 1)
        self.rebuilt_from = 0
        """The oldest readable version of a store whose lost pointer was made again; 0: it was not lost."""
        self.discarded: list[Stamp] = []
        """The attempts that were removed in this way."""

    def copy(self) -> Coordinator:
        """Return a coordinator for another thread of the same driver, at the same state.

        Both share the stores and the priority; each has a decision log of its own.
        """
        other = copy.copy(self)
        other.decisions = copy.copy(self.decisions)
        return other

    @property
    def log(self) -> Log:
        """The log, with decisions and change-logs."""
        return self.decisions.log

    @property
    def writer(self) -> str:
        """The driver's own id, which its records and claims have."""
        return self.decisions.writer

    @property
    def epoch(self) -> int:
        """The fencing number that the driver owns in log and store; 0: not open."""
        return self.decisions.epoch

    @property
    def folded(self) -> Folded:
        """The state of the decision log as far as it was folded."""
        return self.decisions.folded

    @property
    def last_decided(self) -> int:
        """The last version decided in the log as far as it was folded; 0: none."""
        return self.decisions.last_decided

    @property
    def stores(self) -> tuple[Store, ...]:
        """Every store to which this driver's decided versions are applied."""
        return (self.store, *self.others)

    @property
    def watch(self) -> Watch:
        """The observer of the current barrier."""
        return self.decisions.watch

    @watch.setter
    def watch(self, watch: Watch) -> None:
        self.decisions.watch = watch

    def retried(self, error: BaseException) -> None:
        """Report to the watch that a try failed and is made again."""
        self.watch.retried(error)

    def waiting_for(self, reason: str) -> None:
        """Report to the watch what the driver waits for, when the phase does not name it."""
        self.watch.waiting_for(reason)

    def backoff(self, first_s: float = 0.01, most_s: float = 1.0) -> Backoff:
        """Return a backoff for the store, whose deadline is ``apply_deadline_s`` from now."""
        return Backoff(self.clock, self.options.apply_deadline_s, first_s, most_s)
