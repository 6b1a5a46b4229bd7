"""Who runs in a schedule of ``random_repairs.py``: greenlets that give way before each call to the server."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import greenlet

from tidegate.base.clock import Clock
from tidegate.committers.coordinator import Coordinator
from tidegate.errors import (
    IncompleteError,
    SnapshotExpiredError,
    StoreNotVerifiedError,
    VersionRegressedError,
    WalGapError,
)
from tidegate.sinks.redis.client.replies import RetryLater

if TYPE_CHECKING:
    from services.support.redis.repairs.random_repairs import Schedule

TRIES = 100
REFUSALS = (StoreNotVerifiedError, SnapshotExpiredError, VersionRegressedError)


class Died(BaseException):
    """Ends a repair as SIGKILL would: none of its calls is sent any more."""


class WrongError(AssertionError):
    """What a schedule must not do."""


class TurnClock(Clock):
    """A clock on which time passes by sleeping, which lets others run."""

    def __init__(self, yield_to_apply: Callable[[], None]) -> None:
        self._give_way, self._slept = yield_to_apply, 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._slept

    def sleep(self, seconds: float) -> None:
        self._slept += seconds
        self._give_way()


class Attempt:
    """One try of a call, in place of tenacity's: between two tries others run."""

    again: RetryLater | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        self.again = error if isinstance(error, RetryLater) else None
        return self.again is not None


class Actor:
    """One process. ``body`` gets its driver, whose every call gives way first."""

    def __init__(self, schedule: Schedule, name: str, body: Callable[[Coordinator], None]) -> None:
        self.name, self.dead, self.dies_at, self.steps = name, False, 0, 0
        self._schedule, self._body = schedule, body
        self.driver = schedule.start.opened(TurnClock(self.yield_to_apply))
        calls = self.driver.store._space.calls
        self._run = calls.run
        calls.run, calls.few, calls.retrying = self.run, self.run, self._retrying
        for method in ("each_primary", "each_primary_scan"):
            setattr(calls, method, self._giving_way(getattr(calls, method)))
        self.greenlet = greenlet.greenlet(self._live)

    def run(self, calls: Sequence[Any], **how: Any) -> list[Any]:
        """As ``Calls.run``, one call after the other."""
        replies = []
        for call in calls:
            self.yield_to_apply()
            replies += self._run([call], **how)
        return replies

    def _retrying(self) -> Iterator[Attempt]:
        for _ in range(TRIES):
            yield (attempt := Attempt())
            if attempt.again is None:
                return
            self.yield_to_apply()
        raise WrongError(f"{self.name}: tried {TRIES} times: {attempt.again}")

    def _giving_way(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.yield_to_apply()
            return method(*args)

        return call

    def yield_to_apply(self) -> None:
        self.steps += 1
        if not self.dead:
            self._schedule.hub.switch()
        if self.dead or (self.dies_at and self.steps >= self.dies_at):
            self.dead = True
            raise Died

    def _live(self) -> None:
        try:
            self._body(self.driver)
        except Died:
            self._schedule.counts["died"] += 1
        except REFUSALS as error:
            self._schedule.counts[f"{self.name}: {type(error).__name__}"] += 1
        except WalGapError as error:
            self._schedule.note_gap(self.name, error)
        except IncompleteError:
            if not self._schedule.destroyed and not self._schedule.failovers:
                self._schedule.wrong = traceback.format_exc()
        except Exception:  # noqa: BLE001 - any other error is a finding
            self._schedule.wrong = f"{self.name}:\n{traceback.format_exc()}"

    def close(self) -> None:
        self.dead = True
        if self.greenlet and not self.greenlet.dead:
            self.greenlet.throw(Died)
        self.driver.store.close()
