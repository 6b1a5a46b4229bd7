"""A gate that a mirror may follow before its store answers: the first call that can connects it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.base import forks
from tidegate.base.names import check_name
from tidegate.base.urls import redact
from tidegate.reader import rules
from tidegate.reader.snapshot import Snapshot
from tidegate.sinks.rules.version_ref import Version

if TYPE_CHECKING:
    from tidegate.reader.mirror.mirror import Followed


class LateGate:
    """The gate of one mirror, which closes it. Each call connects it if no earlier one could."""

    def __init__(self, url: str, connected_as: str, connect: Callable[[], Followed]) -> None:
        rules.check_url(url)
        check_name("namespace", connected_as)
        self._url, self.connected_as, self._connect = url, connected_as, connect
        self._lock = forks.Lock()
        self._gate: Followed | None = None
        self._closed = False

    def _connected(self) -> Followed:
        with self._lock:
            if self._closed:
                raise rules.gate_closed(redact(self._url))
            if self._gate is None:
                self._gate = self._connect()
            return self._gate

    @property
    def namespace(self) -> str:
        """The namespace that was read last; before, the name to connect by."""
        return self.connected_as if self._gate is None else self._gate.namespace

    @property
    def uuid(self) -> str:
        """The namespace's uuid; '' before it is known, and of an alias."""
        return "" if self._gate is None else self._gate.uuid

    def snapshot(self, version: int | None = None) -> Snapshot:
        return self._connected().snapshot(version)

    def version(self) -> int:
        return self._connected().version()

    def wait_for(self, version: Version, timeout: float) -> int:
        return self._connected().wait_for(version, timeout)

    def close(self) -> None:
        """Close the gate, if it was connected. Repeatable."""
        with self._lock:
            self._closed = True
            if self._gate is not None:
                self._gate.close()

    def __repr__(self) -> str:
        if self._gate is not None:
            return repr(self._gate)
        return f"<Gate to {self.connected_as} in {redact(self._url)}, not connected yet>"
