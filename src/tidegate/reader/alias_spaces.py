"""The namespaces that a gate by an alias has read: which are open, and which may be closed."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Generic, Protocol, TypeVar

from tidegate.sinks.aliases import Target
from tidegate.sinks.records import Pointer

SPACES_MAX = 100
"""Of so many namespaces that were read a gate remembers what it has seen."""


class Gate(Protocol):
    @property
    def seen(self) -> Pointer: ...


G = TypeVar("G", bound=Gate)


@dataclasses.dataclass
class Opened(Generic[G]):
    """A namespace that was read: its gate, calls that are in it, what was taken and may be open.

    Without its gate, closed when nobody was in it any more, it is what was seen there.
    """

    gate: G | None = None
    seen: Pointer = dataclasses.field(default_factory=Pointer)
    calls: int = 0
    taken: weakref.WeakSet[Any] = dataclasses.field(default_factory=weakref.WeakSet)

    @property
    def idle(self) -> bool:
        return not self.calls and all(one.closed for one in self.taken)


def let_go(spaces: dict[Target, Opened[G]], now: Target | None) -> list[G]:
    """The gates of namespaces where nobody reads any more, to be closed; ``now`` stays."""
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
