"""The gate of an alias: each call reads the namespace that the alias names as the call begins.

An alias is read at every call, before the visible version. A snapshot, a scan or a diff that has begun stays
in its own namespace, under its lease, even if the alias names another one by then (I8). Versions are numbers
within a namespace: this gate remembers the newest one that it has seen of each (I9), and does not compare
those of two namespaces. The reasons are in docs/decisions/0042.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tidegate.base import forks
from tidegate.base.deadline import one_call
from tidegate.base.source_offsets import Offsets
from tidegate.errors import ConfigError, SnapshotExpiredError, WaitTimeoutError
from tidegate.reader import rules
from tidegate.reader.alias_spaces import Opened, let_go
from tidegate.reader.diff import Diff
from tidegate.reader.gate import Gate
from tidegate.reader.rules import LEASE_S, TRIES, VersionInfo
from tidegate.reader.snapshot import Result, Snapshot, TableReader
from tidegate.sinks.aliases import Target
from tidegate.sinks.store import Store

LOOK_S = 1.0
"""The longest time between two reads of the alias while a gate waits for offsets."""

Answer = TypeVar("Answer")


class AliasGate(Gate):
    """A ``Gate`` whose calls follow an alias; ``tidegate.connect`` returns it for one.

    ``namespace`` is the one that was read last. Raises: the errors of ``Gate``; also, at every call,
    ConfigError: the alias was dropped, or the namespace that it names.

    >>> import tidegate
    >>> from tidegate.testing.example import write_flights
    >>> write_flights("memory://flip", "memory://flip", "blue", alias="live")
    >>> gate = tidegate.connect("memory://flip", namespace="live")
    >>> write_flights("memory://flip", "memory://flip", "green", alias="live")
    >>> gate.version(), gate.namespace
    (3, 'green')
    """

    def __init__(self, alias: str, store: Store, open_gate: Callable[[Target], Gate]) -> None:
        self.alias = alias
        self._store, self._open_gate = store, open_gate
        self._aliases = store.aliases()
        self._lock = forks.Lock()
        self._spaces: dict[Target, Opened[Gate]] = {}
        self._now: Target | None = None
        self._closed = False
        try:
            self._call(lambda _: None)
        except BaseException:
            self.close()
            raise

    # -- the namespace of a call ----------------------------------------------------------------

    def _named(self) -> Target:
        if self._closed:
            raise rules.gate_closed(self._store.where)
        with one_call():
            return rules.checked_alias(self._aliases.get(self.alias), self._store.where, self.alias)

    def _call(self, ask: Callable[[Gate], Answer]) -> Answer:
        """Call ``ask`` on the gate of the namespace that the alias names.

        It is repeated if the alias was set to another namespace meanwhile, and the earlier one is gone.
        """
        for _ in range(TRIES - 1):
            target = self._named()
            try:
                return self._ask(target, ask)
            except (ConfigError, SnapshotExpiredError):
                if self._named() == target:
                    raise
        return self._ask(self._named(), ask)

    def _ask(self, target: Target, ask: Callable[[Gate], Answer]) -> Answer:
        with self._inside(target) as space:
            assert space.gate is not None
            answer = ask(space.gate)
            if isinstance(answer, Snapshot | Diff):
                space.taken.add(answer)
            return answer

    @contextlib.contextmanager
    def _inside(self, target: Target) -> Iterator[Opened[Gate]]:
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
        try:
            yield space
        finally:
            with self._lock:
                space.calls -= 1
                left = [] if len(self._spaces) == 1 else let_go(self._spaces, self._now)
            for gate in left:
                gate.close()

    # -- the methods of a gate -------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        """The namespace that was read last."""
        assert self._now is not None
        return self._now.namespace

    @property
    def key_groups(self) -> int:
        """The number of key groups of the namespace."""
        return self._call(lambda gate: gate.key_groups)

    def version(self) -> int:
        """Read the visible version of the namespace."""
        return self._call(lambda gate: gate.version())

    def tables(self) -> list[str]:
        """List the names of the tables at the visible version."""
        return self._call(lambda gate: gate.tables())

    def snapshot(
        self,
        version: int | None = None,
        *,
        as_of: datetime.datetime | None = None,
        lease_s: float = LEASE_S,
    ) -> Snapshot:
        """Do ``Gate.snapshot``; the snapshot stays in its namespace, ``snapshot.namespace``."""
        return self._call(lambda gate: gate.snapshot(version, as_of=as_of, lease_s=lease_s))

    def wait_for(
        self, version: int | None = None, timeout: float = 30.0, *, offsets: Offsets | None = None
    ) -> int:
        """Do ``Gate.wait_for``.

        A version is one of the namespace that the alias names when the wait begins. Offsets are waited for in
        any namespace that the alias names meanwhile; on return they are visible in its present one.
        """
        wanted = rules.awaited(version, offsets, timeout)
        if offsets is None:
            return self._call(lambda gate: gate.wait_for(version, timeout))
        clock = self._call(lambda gate: gate.clock)
        end = clock.monotonic() + float(timeout)
        while True:
            target, left = self._named(), end - clock.monotonic()
            ask = functools.partial(Gate.wait_for, timeout=max(min(left, LOOK_S), 0.0), offsets=offsets)
            with contextlib.suppress(WaitTimeoutError):
                visible = self._call(ask)
                if self._named() == target:
                    return visible
            if left <= 0:
                raise rules.waited(wanted, timeout, self.version(), self.namespace)

    def history(self, limit: int | None = None) -> list[VersionInfo]:
        """List the visible versions of the namespace that can still be read, oldest first."""
        return self._call(lambda gate: gate.history(limit))

    def diff(self, before: int, after: int | None = None, tables: Iterable[str] | None = None) -> Diff:
        """Do ``Gate.diff``; both versions are of the namespace that the alias names now."""
        return self._call(lambda gate: gate.diff(before, after, tables))

    def read(self, table: str, fn: Callable[[TableReader], Result]) -> Result:
        """Do one read at the newest version, for ``Table``."""
        return self._call(lambda gate: gate.read(table, fn))

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

    def __repr__(self) -> str:
        return f"<Gate by alias {self.alias} of {self._store.where}>"
