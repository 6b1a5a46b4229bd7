"""The namespaces that an alias's gate has read: open ones, and the eviction of idle ones."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Generic, Protocol, TypeVar

from tidegate.sinks.aliases import Target
from tidegate.sinks.records import Pointer

SPACES_MAX = 100
"""The number of namespaces whose last seen pointer a gate remembers."""


class Gate(Protocol):
    @property
    def seen(self) -> Pointer: ...


G = TypeVar("G", bound=Gate)


@dataclasses.dataclass
class Opened(Generic[G]):
    """A namespace that was read: its gate, the number of running calls, its snapshots and diffs.

    ``gate`` is None after it was closed as idle; ``seen`` is the last pointer that it saw.
    """

    gate: G | None = None
    seen: Pointer = dataclasses.field(default_factory=Pointer)
    calls: int = 0
    taken: weakref.WeakSet[Any] = dataclasses.field(default_factory=weakref.WeakSet)

    @property
    def idle(self) -> bool:
        return not self.calls and all(one.closed for one in self.taken)


def let_go(spaces: dict[Target, Opened[G]], now: Target | None) -> list[G]:
    """Evict idle namespaces but ``now``; return their gates, which the caller closes."""
    gates = []
    for target, space in list(spaces.items()):
        if target == now or not space.idle:
            continue
        if space.gate is not None:
            gates.append(space.gate)
            space.seen, space.gate = space.gate.seen, None
        if len(spaces) > SPACES_MAX:
            del spaces[target]
    return gates
