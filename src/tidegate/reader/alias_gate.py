"""The gate of an alias: each call reads the namespace that the alias names as the call begins.

An alias is read at every call, before the visible version. A snapshot, a scan or a diff that has begun stays
in its own namespace, under its lease, even if the alias names another one by then (I8). Versions are numbers
within a namespace: this gate remembers the newest one that it has seen of each (I9), and does not compare
those of two namespaces. The reasons are in docs/decisions/0042.

``AliasFlow`` is for threads and for event loops: it has the flows of ``GateFlow``, each run in the gate of a
namespace. How that gate is opened and closed differs: ``_enter``, ``_leave``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from tidegate.base import forks
from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.base.source_offsets import Offsets
from tidegate.errors import ConfigError, SnapshotExpiredError, StoreLostError, WaitTimeoutError
from tidegate.reader import rules
from tidegate.reader.diff import Diff
from tidegate.reader.flow import GateFlow, SnapshotFlow
from tidegate.reader.gate import Gate
from tidegate.reader.rules import TRIES, VersionInfo
from tidegate.reader.table import Result, Steps, run
from tidegate.sinks.aliases import Target
from tidegate.sinks.records import Pointer

LOOK_S = 1.0
"""The longest time between two reads of the alias while a gate waits for offsets."""
SPACES_MAX = 100
"""The number of namespaces whose last seen pointer a gate remembers."""


@dataclasses.dataclass
class Opened:
    """A namespace that was read: its gate, the number of running calls, its snapshots and diffs.

    ``gate`` is None after it was closed as idle; ``seen`` is the last pointer that it saw.
    """

    gate: Any = None
    seen: Pointer = dataclasses.field(default_factory=Pointer)
    calls: int = 0
    taken: weakref.WeakSet[Any] = dataclasses.field(default_factory=weakref.WeakSet)

    @property
    def idle(self) -> bool:
        return not self.calls and all(snapshot.closed for snapshot in self.taken)


def _nothing(_: GateFlow) -> Steps[None]:
    yield from ()


class AliasFlow(GateFlow):
    """The flows of a gate by an alias. ``open_gate`` returns a gate to a target, or a coroutine for one."""

    def __init__(self, alias: str, store: Any, open_gate: Callable[[Target], Any], clock: Clock) -> None:
        self.alias = alias
        self._store, self._open_gate, self._clock = store, open_gate, clock
        self._spaces: dict[Target, Opened] = {}
        self._now: Target | None = None
        self._closed = False

    # -- the namespace of a call ----------------------------------------------------------------

    def _read_alias(self) -> Any:
        """Read the alias's target, or return a coroutine that does."""
        raise NotImplementedError

    def _enter(self, target: Target) -> Any:
        """Count a call in the namespace and open its gate, or return a coroutine that does."""
        raise NotImplementedError

    def _leave(self, space: Opened) -> None:
        """End a call in the namespace, and the gates that are idle then."""
        raise NotImplementedError

    def open_steps(self) -> Steps[None]:
        """Open the namespace that the alias names."""
        yield from self._call(_nothing)

    def _target(self) -> Steps[Target]:
        if self._closed:
            raise rules.gate_closed(self._store.where)
        with one_call():
            return rules.checked_alias((yield self._read_alias()), self._store.where, self.alias)

    def _call(self, flow: Callable[..., Steps[Result]], *args: Any) -> Steps[Result]:
        """Run a flow of the gate to the namespace that the alias names.

        It is repeated if the alias was set to another namespace meanwhile, and the earlier one is gone.
        """
        return (yield from self._call_unless(lambda: False, flow, *args))

    def _call_unless(
        self, stays: Callable[[], bool], flow: Callable[..., Steps[Result]], *args: Any
    ) -> Steps[Result]:
        """Do ``_call``; once ``stays()`` is true, the errors of that namespace are final."""
        for _ in range(TRIES - 1):
            target = yield from self._target()
            try:
                return (yield from self._call_in(target, flow, *args))
            except (ConfigError, SnapshotExpiredError, StoreLostError):
                if stays() or (yield from self._target()) == target:
                    raise
        return (yield from self._call_in((yield from self._target()), flow, *args))

    def _call_in(self, target: Target, flow: Callable[..., Steps[Result]], *args: Any) -> Steps[Result]:
        space: Opened = yield self._enter(target)
        try:
            answer = yield from flow(space.gate, *args)
            if isinstance(answer, SnapshotFlow | Diff):
                space.taken.add(answer)
            return answer
        finally:
            self._leave(space)

    def _evict(self) -> list[Any]:
        """Evict idle namespaces but the one that was read last; return their gates, to be closed."""
        gates = []
        for target, space in list(self._spaces.items()):
            if target == self._now or not space.idle:
                continue
            if space.gate is not None:
                gates.append(space.gate)
                space.seen, space.gate = space.gate.seen, None
            if len(self._spaces) > SPACES_MAX:
                del self._spaces[target]
        return gates

    # -- the flows of a gate --------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        """The namespace that was read last."""
        assert self._now is not None
        return self._now.namespace

    @property
    def key_groups(self) -> int:
        """The number of key groups of the namespace that was read last."""
        gate = self._spaces[self._now].gate if self._now is not None else None
        if gate is None:
            raise rules.gate_closed(self._store.where)
        return int(gate.key_groups)

    def read(self, table: str, fn: Callable[..., Steps[Result]], *args: Any) -> Steps[Result]:
        """Do one read at the newest version, for ``Table``."""
        return self._call(GateFlow.read, table, fn, *args)

    def version_steps(self) -> Steps[int]:
        return self._call(GateFlow.version_steps)

    def tables_steps(self) -> Steps[list[str]]:
        return self._call(GateFlow.tables_steps)

    def history_steps(self, limit: int | None) -> Steps[list[VersionInfo]]:
        return self._call(GateFlow.history_steps, limit)

    def snapshot_steps(
        self, version: int | None, as_of: datetime.datetime | None, lease_s: float
    ) -> Steps[Any]:
        """Take a snapshot, which stays in its namespace, ``snapshot.namespace``."""
        return self._call(GateFlow.snapshot_steps, version, as_of, lease_s)

    def wait_steps(self, version: int | None, timeout: float, offsets: Offsets | None) -> Steps[int]:
        """Wait for a version, or for offsets.

        A version is one of the namespace that the alias names when the wait begins: after the first look at
        it, no other one answers. Offsets are waited for in any namespace that the alias names meanwhile; on
        return they are visible in its present one.
        """
        wanted = rules.awaited(version, offsets, timeout)
        end = self._clock.monotonic() + float(timeout)
        if offsets is None:
            looks: list[int] = []
            return (
                yield from self._call_unless(
                    lambda: bool(looks), GateFlow.wait_until, wanted, timeout, end, looks.append
                )
            )
        while True:
            target, left = (yield from self._target()), end - self._clock.monotonic()
            with contextlib.suppress(WaitTimeoutError):
                look_s = max(min(left, LOOK_S), 0.0)
                visible = yield from self._call(GateFlow.wait_steps, None, look_s, offsets)
                if (yield from self._target()) == target:
                    return visible
            if left <= 0:
                raise rules.waited(wanted, timeout, (yield from self.version_steps()), self.namespace)

    def __repr__(self) -> str:
        return f"<Gate by alias {self.alias} of {self._store.where}>"


class AliasGate(AliasFlow, Gate):
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
        super().__init__(alias, store, open_gate, clock)
        self._aliases = store.aliases()
        self._lock = forks.Lock()
        try:
            run(self.open_steps())
        except BaseException:
            self.close()
            raise

    def _read_alias(self) -> Target | None:
        target: Target | None = self._aliases.get(self.alias)
        return target

    def _enter(self, target: Target) -> Opened:
        with self._lock:
            if self._closed:
                raise rules.gate_closed(self._store.where)
            space = self._spaces.setdefault(target, Opened())
            if space.gate is None:
                with one_call():
                    space.gate = self._open_gate(target)
                space.gate.remember(space.seen)
            space.calls += 1
            self._now = target
        return space

    def _leave(self, space: Opened) -> None:
        with self._lock:
            space.calls -= 1
            gates = [] if len(self._spaces) == 1 else self._evict()
        for gate in gates:
            gate.close()

    def diff_steps(self, before: int, after: int | None, tables: Iterable[str] | None) -> Steps[Diff]:
        """Compare two versions of the namespace that the alias names now."""
        return self._call(Gate.diff_steps, before, after, tables)

    def close(self) -> None:
        """Release the connections; its tables and snapshots end with it. Repeatable."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            gates = [space.gate for space in self._spaces.values() if space.gate is not None]
        for gate in gates:  # another thread may evict one meanwhile
            gate.close()
        self._store.close()
