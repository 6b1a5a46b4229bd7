"""A gate over several gates: each call runs in one of them, and gates that nobody uses are closed.

By an alias the gates are those of namespaces (``reader/alias_gate.py``); a gate that follows redirects has
one for each store (``reader/redirects.py``). A place is the key by which the gates differ. ``SpacesFlow`` is
for threads and for event loops: it has the flows of ``GateFlow``, each run in the gate of a place. How that
gate is opened and closed differs: ``_enter``, ``_leave``.

Calls that need a place which is being opened share that opening, with its result or its error. It began
before them, so they wait for at most as long as for one of their own. A call that ends waits for no opening.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import weakref
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import CancelledError, Future
from operator import methodcaller
from typing import Any

from tidegate.base import forks
from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.base.steps import Result, Steps
from tidegate.reader import rules
from tidegate.reader.changes import Changes
from tidegate.reader.diff import Diff
from tidegate.reader.flow.gate import GateFlow
from tidegate.reader.flow.reader import Tables
from tidegate.reader.flow.snapshot import SnapshotFlow
from tidegate.reader.gate import Gate
from tidegate.reader.rules import VersionInfo
from tidegate.reader.table import KeysByTable, ValuesByTable, keys_by_table
from tidegate.sinks.rules.version_ref import Version
from tidegate.wal.manifest import Step

SPACES_MAX = 100
"""The number of places whose last seen pointer a gate remembers."""

Flow = Callable[[Any], Steps[Result]]
"""The steps of one call, in the gate that it gets."""


@dataclasses.dataclass
class Opened:
    """A place that was read: its gate, the number of running calls, its snapshots, diffs and changes.

    ``gate`` is None after it was closed as idle; ``seen`` is its last ``seen``, None before. ``opening`` is
    what calls share that wait for the gate: an ``Opening`` in threads, a ``SingleFlight`` on an event loop.
    """

    gate: Any = None
    seen: Any = None
    opening: Any = None
    calls: int = 0
    taken: weakref.WeakSet[Any] = dataclasses.field(default_factory=weakref.WeakSet)

    @property
    def last_seen(self) -> Any:
        """The last ``seen`` of its gate, or of the one before; None: there was none."""
        return self.seen if self.gate is None else self.gate.seen

    @property
    def idle(self) -> bool:
        return not self.calls and all(snapshot.closed for snapshot in self.taken)


class Opening(Future[None]):
    """An opening of a place by the thread of one call, for all that wait; an interrupt cancels it."""

    def __init__(self) -> None:
        super().__init__()
        self.pid = os.getpid()

    @property
    def runs_here(self) -> bool:
        """Whether its thread is one of this process: a forked child does not have it."""
        return self.pid == os.getpid()


def no_steps(_: GateFlow) -> Steps[None]:
    yield from ()


class SpacesFlow(GateFlow):
    """The flows of a gate over several. ``where`` names it in messages."""

    where: str

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spaces: dict[Hashable, Opened] = {}
        self._now: Hashable | None = None
        self._closed = False

    # -- the place of a call --------------------------------------------------------------------

    def _enter(self, place: Hashable) -> Any:
        """Count a call in the place and open its gate, or return a coroutine that does."""
        raise NotImplementedError

    def _leave(self, space: Opened) -> None:
        """End a call in the place, and the gates that are idle then."""
        raise NotImplementedError

    def _call(self, flow: Flow[Result]) -> Steps[Result]:
        """Run a flow in the gate of the place that counts now."""
        raise NotImplementedError

    def _sleep(self, seconds: float) -> Any:
        """Pause between two looks."""
        return self._clock.sleep(seconds)

    def open_steps(self) -> Steps[None]:
        """Open the place that counts now."""
        yield from self._call(no_steps)

    def _call_in(self, place: Hashable, flow: Flow[Result]) -> Steps[Result]:
        space: Opened = yield self._enter(place)
        try:
            answer = yield from flow(space.gate)
            if isinstance(answer, SnapshotFlow | Diff | Changes):
                space.taken.add(answer)
            return answer
        finally:
            self._leave(space)

    def _evict(self) -> list[Any]:
        """Evict idle places but the one that was read last; return their gates, to be closed."""
        gates = []
        for place, space in list(self._spaces.items()):
            if place == self._now or not space.idle:
                continue
            if space.gate is not None:
                gates.append(space.gate)
                space.seen, space.gate = space.gate.seen, None
            if len(self._spaces) > SPACES_MAX:
                del self._spaces[place]
        return gates

    # -- the flows of a gate --------------------------------------------------------------------

    def _gate_now(self) -> Any:
        """Return the gate of the place that was read last."""
        gate = self._spaces[self._now].gate if self._now is not None else None
        if gate is None:
            raise rules.gate_closed(self.where)
        return gate

    @property
    def namespace(self) -> str:
        """The namespace that was read last."""
        return str(self._gate_now().namespace)

    @property
    def key_groups(self) -> int:
        """The number of key groups of the namespace that was read last."""
        return int(self._gate_now().key_groups)

    def read(self, table: Tables, fn: Callable[..., Steps[Result]], *args: Any) -> Steps[Result]:
        """Do one read at the newest version, for ``Table``."""
        return self._call(methodcaller("read", table, fn, *args))

    def _get_many_steps(self, keys: KeysByTable) -> Steps[ValuesByTable]:
        """Read keys of several tables, all in the place that counts now."""
        by_table = keys_by_table(keys)  # once: a call that is sent again needs them, too
        return self._call(methodcaller("_get_many_steps", by_table))

    def _version_steps(self) -> Steps[int]:
        return self._call(methodcaller("_version_steps"))

    def _tables_steps(self) -> Steps[list[str]]:
        return self._call(methodcaller("_tables_steps"))

    def _history_steps(self, limit: int | None) -> Steps[list[VersionInfo]]:
        return self._call(methodcaller("_history_steps", limit))

    def _snapshot_steps(
        self, version: Version | None, as_of: datetime.datetime | None, lease_s: float
    ) -> Steps[Any]:
        """Take a snapshot, which stays in its place."""
        return self._call(methodcaller("_snapshot_steps", version, as_of, lease_s))


class SpacesGate(SpacesFlow, Gate):
    """A gate over several, in threads. ``open_gate`` returns the gate of a place."""

    def __init__(self, open_gate: Callable[[Any], Gate], clock: Clock) -> None:
        super().__init__(clock)
        self._open_gate = open_gate
        self._lock = forks.BriefLock()

    def _enter(self, place: Hashable) -> Opened:
        own: Opening | None = None
        with self._lock:
            if self._closed:
                raise rules.gate_closed(self.where)
            space = self._spaces.setdefault(place, Opened())
            space.calls += 1
            opening: Opening | None = None
            if space.gate is None:
                if space.opening is None or not space.opening.runs_here:
                    own = space.opening = Opening()
                opening = space.opening
        try:
            if own is not None:
                self._open_space(space, place, own)
            if opening is not None:
                opening.result()
        except BaseException as error:
            self._leave(space)
            if isinstance(error, CancelledError) and opening is not None and opening.cancelled():
                return self._enter(place)  # an interrupt ended the call that was opening it
            raise
        self._now = place
        return space

    def _open_space(self, space: Opened, place: Hashable, own: Opening) -> None:
        """Open the gate of the place. The outcome is that of ``own``; raises only an interrupt."""
        try:
            with one_call():
                gate = self._open_gate(place)
            with self._lock:
                if not self._closed:
                    space.gate, space.opening = gate, None
                    if space.seen is not None:
                        gate.remember(space.seen)
            if space.gate is not gate:
                gate.close()
                raise rules.gate_closed(self.where)
        except BaseException as error:
            with self._lock:
                space.opening = None
            if not isinstance(error, Exception):
                own.cancel()
                raise
            own.set_exception(error)
        else:
            own.set_result(None)

    def _leave(self, space: Opened) -> None:
        with self._lock:
            space.calls -= 1
            gates = [] if len(self._spaces) == 1 else self._evict()
        for gate in gates:
            gate.close()

    def _diff_steps(
        self, before: Version, after: Version | None, tables: Iterable[str] | None
    ) -> Steps[Diff]:
        """Compare two versions, both in the place that counts now."""
        return self._call(methodcaller("_diff_steps", before, after, tables))

    def _changes_steps(self, version: Version, table: str, key_group: int | None) -> Steps[Changes]:
        """Read the rows that a version wrote, in the place that counts now."""
        return self._call(methodcaller("_changes_steps", version, table, key_group))

    def _job_steps(self, version: int) -> Steps[tuple[Step, ...]]:
        """Read the steps of a version, in the place that counts now."""
        return self._call(methodcaller("_job_steps", version))

    def close(self) -> None:
        """Release the connections; its tables and snapshots end with it. Repeatable."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            gates = [space.gate for space in self._spaces.values() if space.gate is not None]
        for gate in gates:  # another thread may evict one meanwhile
            gate.close()
