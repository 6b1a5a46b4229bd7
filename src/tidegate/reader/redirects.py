"""The gate that follows redirects: when its store was removed, it continues at the successor.

A removed store has a note, which a gate sees with the pointer (``sinks/rules/removal.py``). The call that
sees it first opens the successor and is repeated there. That gate remembers the newest version that was seen
here, so no call is answered by an older one (I9). A snapshot, a scan or a diff that has begun stays in its
store.

The user's options, and the login of the user's URL, are sent to an address that was found in the data, and a
user of the store with fewer rights may have written it. So a gate does this only on request, only to servers
that the user has named (``Followed``), and only to a URL of the same scheme: never from TLS to plain text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any

from tidegate.base.clock import Clock
from tidegate.base.source_offsets import Offsets
from tidegate.base.steps import Result, Steps, run
from tidegate.base.text import brief
from tidegate.base.urls import Address, address_of, place_of, redact, scheme_of, servers_of, with_login_of
from tidegate.errors import ConfigError, StoreRemovedError
from tidegate.reader import rules
from tidegate.reader.gate import Gate
from tidegate.reader.spaces import Flow, Opened, SpacesFlow, SpacesGate
from tidegate.sinks.rules.version_ref import Version

HOPS_MAX = 4
"""The number of redirects that one call follows."""

Follow = bool | str | Sequence[str]
"""``follow_redirects``: False; the servers to follow to, as ``host:port``; True: those of the URL alone."""


@dataclasses.dataclass(frozen=True, slots=True)
class Followed:
    """The servers that may get the login of a gate: those of its URL, and those that the user has named."""

    servers: frozenset[Address]

    @classmethod
    def of(cls, url: str, follow: Follow, option: str = "follow_redirects") -> Followed:
        """Raises: ConfigError: one of ``follow`` is no ``host:port``."""
        given: object = follow  # of any type, whatever is declared
        names: list[object] = []
        if not isinstance(given, bool):
            names = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        named = [address_of(name) if isinstance(name, str) else None for name in names]
        if None in named:  # the name is not shown: it may be a URL with a login
            raise ConfigError(
                f"{option}: server {named.index(None) + 1} of it is not host:port: name the servers of the"
                " successors, as in green:6379"
            )
        return cls(servers_of(url) | frozenset(each for each in named if each))

    def admits(self, successor: str) -> bool:
        """Return whether all servers of a successor may get the login; a store without servers gets none."""
        return servers_of(successor) <= self.servers


class RedirectFlow(SpacesFlow):
    """The flows of a gate that follows redirects, whose places are URLs of stores without login."""

    def _begin(self, url: str, follow: Follow) -> None:
        self._followed = Followed.of(url, follow)
        self._url, self._at = url, place_of(url)
        self._first, self._uuid = self._at, ""
        self._known = False

    @property
    def where(self) -> str:  # type: ignore[override]
        """The store that is read now."""
        return f"store {redact(self._at)}"

    @property
    def uuid(self) -> str:
        """The namespace's uuid; '' of an alias."""
        return self._uuid

    @property
    def connected_as(self) -> str:
        return str(self._gate_now().connected_as)

    def _url_of(self, place: str) -> str:
        return self._url if place == self._first else with_login_of(self._url, place)

    def _check_same(self, gate: Any) -> None:
        """Refuse a successor that has another namespace of that name. Raises: ConfigError."""
        if self._known and gate.uuid != self._uuid:
            raise ConfigError(
                f"{brief(gate)}: the note of a removed store names this one as its successor, and another"
                f" namespace of that name is here ({gate.uuid or 'an alias'}, not"
                f" {self._uuid or 'an alias'}): connect to the right store"
            )
        self._known, self._uuid = True, gate.uuid

    def _call(self, flow: Flow[Result]) -> Steps[Result]:
        """Run a flow in the store that is read now; while that was removed, in its successor."""
        passed: list[str] = []
        while True:
            place = self._at
            try:
                return (yield from self._call_in(place, flow))
            except StoreRemovedError as removed:
                passed.append(place)
                successor = checked_successor(passed, removed, self._followed)
                yield from self._move(place, successor)

    def _move(self, place: str, successor: str) -> Steps[None]:
        """Open the successor, with the versions that were seen before."""
        before = self._spaces.get(place)
        space = self._spaces.setdefault(successor, Opened())
        if before is not None and before.last_seen is not None:
            space.seen = before.last_seen
            if space.gate is not None:
                space.gate.remember(space.seen)
        entered: Opened = yield self._enter(successor)
        self._leave(entered)
        self._at = successor

    def _wait_steps(self, version: Version | None, timeout: float, offsets: Offsets | None) -> Steps[int]:
        rules.awaited(version, offsets, timeout)
        end = self._clock.monotonic() + float(timeout)

        def wait(gate: Any) -> Steps[int]:
            left = max(0.0, end - self._clock.monotonic())
            visible: int = yield from gate._wait_steps(version, left, offsets)  # noqa: SLF001 - a gate, too
            return visible

        return self._call(wait)

    def __repr__(self) -> str:
        return f"<Gate that follows redirects, now to {self.where}>"


def checked_successor(passed: list[str], removed: StoreRemovedError, followed: Followed) -> str:
    """Return the successor that the note of the last of the ``passed`` stores names.

    Raises: StoreRemovedError: it names none, one of another scheme, or servers that are not ``followed``; the
    notes lead in a circle, or too far.
    """
    successor, scheme = removed.successor, scheme_of(passed[-1])
    if not successor:
        raise removed
    if scheme_of(successor) != scheme:
        why = f"that is no {scheme} store, so the options of this gate are not sent there: connect to it"
    elif not followed.admits(successor):
        why = (
            "its servers are not in follow_redirects, so the login is not sent there: if they are yours, add"
            " them, as host:port, or connect there"
        )
    elif successor in passed:
        why = "the gate comes from there: `tidegate store list` shows the namespace's stores; connect to one"
    elif len(passed) > HOPS_MAX:
        why = f"that would be redirect {HOPS_MAX + 1} of one call: connect to the newest store"
    else:
        return successor
    error = StoreRemovedError(
        f"store {redact(passed[-1])} was removed, its note names {successor} as its successor, and {why}"
    )
    error.successor = successor
    raise error


class RedirectGate(RedirectFlow, SpacesGate):
    """A ``Gate`` that continues at the successor of a removed store, for ``follow_redirects``.

    Raises: the errors of ``Gate``; also those of ``connect`` for the successor, by the call that opens it.
    StoreRemovedError: the note names no successor, or one that is not followed.
    """

    def __init__(self, url: str, follow: Follow, open_gate: Callable[[str], Gate], clock: Clock) -> None:
        super().__init__(self._opened, clock)
        self._begin(url, follow)
        self._connect = open_gate
        try:
            run(self.open_steps())
        except BaseException:
            self.close()
            raise

    def _opened(self, place: str) -> Gate:
        gate = self._connect(self._url_of(place))
        try:
            self._check_same(gate)
        except BaseException:
            gate.close()
            raise
        return gate

    def _diff_steps(self, before: Version, after: Version | None, tables: Any) -> Steps[Any]:
        """Compare two versions in the store that is read now: the note is looked for first."""
        yield from self._version_steps()
        return (yield from self._call(methodcaller("_diff_steps", before, after, tables)))
