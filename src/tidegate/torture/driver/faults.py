"""Faults that a driver process inflicts on itself, at a named failpoint.

Some happen at the failpoint: an exception, SIGKILL, SIGSTOP. The others affect the next call after it that
writes into the log or the store, between driver and client library, so that they are possible with every log
and store: its reply is lost, it is late, it is done twice, it is refused.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.base.clock import Clock
from tidegate.base.failpoints import FailpointError, stop
from tidegate.errors import OutcomeUnknownError, StoreUnavailableError, TidegateError, WalUnavailableError
from tidegate.torture.driver.full_disk import full_disk
from tidegate.torture.history.events import Fault
from tidegate.torture.history.files import Recorder

FAULTS = {
    "raise": "an exception in the driver",
    "kill": "SIGKILL to the driver",
    "stop": "SIGSTOP; the driver wakes when others have gone on without it",
    "twice": "the next write is done twice",
    "lost": "the next write is done, its reply is lost",
    "late": "the next write is given up by its caller, and is done later all the same",
    "io": "the next write is refused: an I/O error",
    "full": "the disks of log and store are full for some writes of the driver: files do not grow",
    "forgotten": "the next rows are taken, and lost before they are sealed",
    "net-lost": "through a TCP proxy: the server does it, its reply is lost with the connection",
    "net-late": "through a TCP proxy: the request reaches the server after its caller gave up",
    "clock-back": "the driver's clock goes back by half an hour",
    "clock-ahead": "the driver's clock goes ahead by half an hour",
    "evict-layer": "a hash of a visible version is removed from Redis",
    "evict-base": "a hash of merged versions is removed from Redis, and the log no longer has its rows",
    "reshard": "slots of the namespace move between primaries, every second move is cancelled half-way",
    "replica": "replicas are attached, detached and promoted",
    "other-rows": "SIGKILL; the replay of the batch has other rows",
    "attempts": "SIGKILL; every task is tried twice, with other rows the first time",
    "old-checkpoint": "SIGKILL; afterwards an older copy of the checkpoint is put back",
    "new-checkpoint": "SIGKILL; afterwards a new checkpoint takes the old one's place",
    "executor": "SIGKILL to an executor of Spark in a task, or to all of them between two jobs",
    "python-worker": "SIGKILL to a Python worker of Spark in a task, or to all of them between two jobs",
    "shuffle": "the shuffle files of an executor of Spark are removed while tasks read them",
}
"""Descriptions of the faults, by name."""

TABLE = ("raise", "kill", "stop", "twice", "lost", "late")
"""The faults of the crash table."""

EVICTIONS = ("evict-layer", "evict-base")
TOPOLOGY = ("reshard", "replica")
"""Faults that affect all servers together: no other cell runs meanwhile."""
CLUSTER = "cluster"
"""A fault of the user's plan: the driver stops at the failpoint until a command has begun it."""
OUTSIDE = (*EVICTIONS, *TOPOLOGY)
"""Faults that another process does to the store, while the driver is stopped at the failpoint."""

SPARK = ("executor", "python-worker", "shuffle")
"""Faults of Spark's own processes, for runs whose drivers are Spark applications."""
WITH_SPARK = (*TABLE, "io", "forgotten", *SPARK)
"""All faults of such runs."""

KILLS = ("kill", "other-rows", "attempts", "old-checkpoint", "new-checkpoint")
ROWS = ("apply", "apply_and_seal")
AT_A_CALL = ("twice", "lost", "late", "io", "forgotten")
CLOCK_STEPS_S = {"clock-back": -1_800.0, "clock-ahead": 1_800.0}
"""Less than the hour by which a decision may be ahead of other clocks."""
DIES_AFTER = 6
"""The number of writes after which a driver dies whose clock stepped and whose work another one takes over.
It decides first. If fewer writes are left for it to do, it dies when it is through
(``Disturber.is_through``).
"""
FULL_FOR = 3
"""The number of writes that fail for lack of space; the first one half-way, if it makes the longest file
longer.
"""
LATER_BY = 2
"""A late write is done before the second next one of the same driver, unless others take over first."""


class Errors(NamedTuple):
    """The errors of a writing call: when it provably did nothing, and when nothing is proven."""

    refused: type[TidegateError]
    unknown: type[TidegateError]


_LOG = Errors(WalUnavailableError, WalUnavailableError)
_STORE = Errors(StoreUnavailableError, StoreUnavailableError)
LOG_WRITES = {
    "create": _LOG,
    "append_decision": Errors(WalUnavailableError, OutcomeUnknownError),
    "stage": _LOG,
    "trim_decisions": _LOG,
    "trim_blobs": _LOG,
}
STORE_WRITES = dict.fromkeys(
    (
        "create",
        "claim",
        "heartbeat",
        "publish",
        "put_schemas",
        "begin",
        "apply",
        "apply_and_seal",
        "seal",
        "announce",
        "retire",
        "stamp",
        "begin_fill",
        "publish_filled",
    ),
    _STORE,
)


class Strike(NamedTuple):
    """One fault: its kind, its failpoint, and at which hit.

    ``taken_over``: another driver continues its work.
    """

    fault: str
    failpoint: str
    nth: int
    taken_over: bool


class SteppedClock(Clock):
    """A wall clock that is ``ahead_us`` off; its monotonic clock is right."""

    ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


class Disturber:
    """The injector of one fault into this process.

    ``done`` is true once it happened. ``clock`` is for its drivers.
    """

    def __init__(self, strike: Strike, recorder: Recorder, cut_network: Callable[[], None]) -> None:
        self.done = False
        self.clock = SteppedClock()
        self._strike, self._recorder, self._cut_network = strike, recorder, cut_network
        self._hits: Counter[str] = Counter()
        self._pending = False
        self._late: Callable[[], object] | None = None
        self._writes_until = 0
        self._dies_after = 0
        self._full_for = 0
        self._half_way = False

    # -- at the failpoint -----------------------------------------------------------------------------

    def hit(self, name: str) -> None:
        """Count a hit of a failpoint, and strike at the n-th. For ``failpoints.listen``."""
        self._hits[name] += 1
        if name != self._strike.failpoint or self._hits[name] != self._strike.nth:
            return
        match self._strike.fault:
            case "raise":
                self.note(name)
                raise FailpointError(f"failpoint {name}")
            case fault if fault in ("stop", CLUSTER, *OUTSIDE):
                self.note(name)
                stop()
            case fault if fault in AT_A_CALL:
                self._pending = True
            case "full":
                self._full_for, self._half_way = FULL_FOR, True
            case "net-lost" | "net-late":
                self._cut_network()
            case fault if fault in CLOCK_STEPS_S:
                self.note(name)
                self.clock.ahead_us = int(CLOCK_STEPS_S[fault] * 1e6)
                self._dies_after = DIES_AFTER if self._strike.taken_over else 0
            case _:
                self.note(name)
                kill()

    def note(self, target: str) -> None:
        """Note in the history that the fault happens now; waiting processes look for it there."""
        self.done = True
        strike = self._strike
        detail = f"{strike.failpoint}, hit {strike.nth}"
        self._recorder.note(Fault(kind=strike.fault, target=target, detail=detail))

    # -- at the next call that writes -----------------------------------------------------------------

    def watch(self, kind: str, log_or_store: Any, folder: Path | None = None) -> None:
        """Route every writing call of a log or store through here. ``folder``: its files are there."""
        writes = LOG_WRITES if kind == "log" else STORE_WRITES
        for name, errors in writes.items():
            plain = getattr(log_or_store, name, None)
            if plain is None:
                continue  # a capability that this store does not have
            if folder is not None:
                plain = self._on_a_disk(f"{kind}.{name}", folder, plain)
            setattr(log_or_store, name, self._guarded(kind, name, errors, plain))

    def _on_a_disk(self, target: str, folder: Path, plain: Callable[..., Any]) -> Callable[..., Any]:
        def on_a_disk(*args: Any, **options: Any) -> Any:
            if not self._full_for:
                return plain(*args, **options)
            half_way, self._half_way = self._half_way, False
            try:
                with full_disk(folder, half_way=half_way):
                    return plain(*args, **options)
            except TidegateError as error:
                self._full_for -= 1
                if not self.done:
                    self.note(f"{target}: {type(error).__name__}")
                self._give_way()
                raise

        return on_a_disk

    def _guarded(self, kind: str, name: str, errors: Errors, plain: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **options: Any) -> Any:
            self._do_late()
            self._die_if_due()
            if not self._pending or (self._strike.fault == "forgotten" and name not in ROWS):
                return plain(*args, **options)
            self._pending = False
            arguments = [list(arg) if hasattr(arg, "__next__") else arg for arg in args]
            self.note(f"{kind}.{name}")
            return self._disturbed(name, errors, lambda: plain(*arguments, **options), plain, arguments)

        return guarded

    def _disturbed(
        self,
        name: str,
        errors: Errors,
        effect: Callable[[], Any],
        plain: Callable[..., Any],
        args: list[Any],
    ) -> Any:
        strike = self._strike
        match strike.fault:
            case "io":
                self._give_way()
                raise errors.refused(f"{name}: an I/O error, as the fault wants it")
            case "forgotten":
                self._give_way()
                return None if name == "apply" else plain(*args[:2])  # the seal is sent without its rows
            case "lost":
                effect()
                self._give_way()
                raise errors.unknown(f"{name}: the reply was lost, as the fault wants it")
            case "twice":
                result = effect()
                again = effect
                if name == "stage":  # a segment's name is never used twice: the copy is of orphans
                    again = lambda: plain(f"{args[0]}-again", *args[1:])  # noqa: E731
                with contextlib.suppress(TidegateError):  # the second reply has no recipient
                    again()
                self._give_way()
                return result
            case _:
                if strike.taken_over:
                    stop()  # the write is done after other drivers have continued
                    with contextlib.suppress(TidegateError):
                        effect()
                else:
                    self._late, self._writes_until = effect, LATER_BY
                raise errors.unknown(f"{name}: no reply in time, as the fault wants it")

    def _do_late(self) -> None:
        self._writes_until -= 1
        if self._late is not None and self._writes_until <= 0:
            self.do_late()

    def _die_if_due(self) -> None:
        self._dies_after -= 1
        if self._dies_after == 0:
            kill()

    def is_through(self) -> None:
        """Kill the process if its death is still due: the driver has done all its work."""
        if self._dies_after > 0:
            kill()

    def do_late(self) -> None:
        """Do the late write now, if there is one that was not done yet."""
        effect, self._late = self._late, None
        if effect is not None:
            with contextlib.suppress(TidegateError):  # its reply has no recipient
                effect()

    def _give_way(self) -> None:
        if self._strike.taken_over:
            kill()


def kill() -> None:
    """Send SIGKILL to this process: nothing is flushed, nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)
