"""The gate of an alias: each call reads the namespace that the alias names as the call begins.

An alias is read at every call, before the visible version. A snapshot, a scan or a diff that has begun stays
in its own namespace, under its lease, even if the alias names another one by then (I8). Versions are numbers
within a namespace: this gate remembers the newest one that it has seen of each (I9), and does not compare
those of two namespaces. The reasons are in docs/decisions/0042.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any

from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.base.source_offsets import Offsets
from tidegate.base.steps import Result, Steps, run
from tidegate.errors import ConfigError, SnapshotExpiredError, StoreLostError, TidegateError, WaitTimeoutError
from tidegate.reader import rules
from tidegate.reader.flow.reader import patiently
from tidegate.reader.rules import TRIES
from tidegate.reader.spaces import Flow, Opened, SpacesFlow, SpacesGate
from tidegate.sinks.aliases import Target
from tidegate.sinks.records import Pointer
from tidegate.sinks.rules.version_ref import Version

LOOK_S = 1.0
"""The longest time between two reads of the alias while a gate waits for offsets."""


class AliasFlow(SpacesFlow):
    """The flows of a gate by an alias, whose places are ``Target``s."""

    alias: str
    _store: Any

    # -- the namespace of a call ----------------------------------------------------------------

    def _read_alias(self) -> Any:
        """Read the alias's target, or return a coroutine that does."""
        raise NotImplementedError

    def _target(self) -> Steps[Target]:
        if self._closed:
            raise rules.gate_closed(self.where)
        with one_call():
            return rules.checked_alias((yield self._read_alias()), self.where, self.alias)

    def _call(self, flow: Flow[Result]) -> Steps[Result]:
        """Run a flow of the gate to the namespace that the alias names.

        It is repeated if the alias was set to another namespace meanwhile, and the earlier one is gone.
        """
        return (yield from self._call_unless(lambda: False, flow))

    def _call_unless(self, stays: Callable[[], bool], flow: Flow[Result]) -> Steps[Result]:
        """Do ``_call``; once ``stays()`` is true, the errors of that namespace are final."""
        for _ in range(TRIES - 1):
            target = yield from self._target()
            try:
                return (yield from self._call_in(target, flow))
            except (ConfigError, SnapshotExpiredError, StoreLostError):
                if stays() or (yield from self._target()) == target:
                    raise
        return (yield from self._call_in((yield from self._target()), flow))

    # -- the flows of a gate --------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        """The namespace that was read last."""
        assert isinstance(self._now, Target)
        return self._now.namespace

    @property
    def uuid(self) -> str:
        """None of its own: the namespace may change."""
        return ""

    @property
    def connected_as(self) -> str:
        return self.alias

    @property
    def seen(self) -> dict[Target, Pointer]:  # type: ignore[override]
        """The newest pointer that was seen of each namespace."""
        return {
            target: space.last_seen
            for target, space in self._spaces.items()
            if isinstance(target, Target) and space.last_seen is not None
        }

    def remember(self, seen: Mapping[Target, Pointer]) -> None:  # type: ignore[override]
        """Set the pointers that an earlier gate has seen, by namespace (I9)."""
        for target, pointer in seen.items():
            space = self._spaces.setdefault(target, Opened())
            space.seen = pointer
            if space.gate is not None:
                space.gate.remember(pointer)

    def _wait_steps(self, version: Version | None, timeout: float, offsets: Offsets | None) -> Steps[int]:
        """Wait for a version, or for offsets.

        A version is one of the namespace that the alias names when the wait begins: after the first look at
        it, no other one answers. Offsets are waited for in any namespace that the alias names meanwhile; on
        return they are visible in its present one.
        """
        awaited = rules.awaited(version, offsets, timeout)
        end = self._clock.monotonic() + float(timeout)
        if offsets is None:
            looks: list[int] = []

            def ends(error: TidegateError) -> bool:
                return error.final or (isinstance(error, StoreLostError) and not looks)

            wait: Flow[int] = methodcaller("_wait_until", awaited, timeout, end, looks.append, ends)
            begin: Callable[[], Steps[int]] = lambda: self._call_unless(lambda: bool(looks), wait)  # noqa: E731
            return (yield from patiently(begin, end, self._clock, self._sleep))
        while True:
            target = yield from patiently(self._target, end, self._clock, self._sleep)
            left = end - self._clock.monotonic()
            with contextlib.suppress(WaitTimeoutError):
                look_s = max(min(left, LOOK_S), 0.0)
                visible: int = yield from self._call(methodcaller("_wait_steps", None, look_s, offsets))
                now = yield from patiently(self._target, end, self._clock, self._sleep)
                if now == target:
                    return visible
            if left <= 0:
                raise rules.waited(awaited, timeout, (yield from self._version_steps()), self.namespace)

    def __repr__(self) -> str:
        return f"<Gate by alias {self.alias} of {self.where}>"


class AliasGate(AliasFlow, SpacesGate):
    """A ``Gate`` whose calls follow an alias; ``tidegate.connect`` returns it for one.

    ``namespace`` is the one that was read last. Raises: the errors of ``Gate``; also, at every call,
    ConfigError: the alias was dropped. StoreLostError: the namespace that it names is gone.

    >>> import tidegate
    >>> from tidegate.testing.example import write_flights
    >>> write_flights("memory://flip", "memory://flip", "blue", alias="live")
    >>> gate = tidegate.connect("memory://flip", namespace="live")
    >>> write_flights("memory://flip", "memory://flip", "green", alias="live")
    >>> gate.version(), gate.namespace
    (3, 'green')
    """

    def __init__(self, alias: str, store: Any, open_gate: Callable[[Target], Any], clock: Clock) -> None:
        super().__init__(open_gate, clock)
        self.alias, self.where, self._store = alias, store.where, store
        self._aliases = store.aliases()
        try:
            run(self.open_steps())
        except BaseException:
            self.close()
            raise

    def _read_alias(self) -> Target | None:
        target: Target | None = self._aliases.get(self.alias)
        return target

    def close(self) -> None:
        """Release the connections; its tables and snapshots end with it. Repeatable."""
        if not self._closed:
            super().close()
            self._store.close()
