"""Two readers who look all along: one with a long-lived gate, one that connects for each look."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import tidegate
from game_day.stream import Content, Generator, Sums
from tidegate import Gate

EVERY_S = 0.2
GAP_S = 1.0
"""A time between two answers that counts as a time without answers."""


@dataclasses.dataclass(frozen=True)
class Look:
    """One look: when it began and ended, and the answer or the error's text."""

    began: float
    ended: float
    version: int = 0
    last: int = -1
    error: str = ""


def content_of(gate: Gate) -> tuple[int, Content | None]:
    """Return both tables at one version; None before the first batch."""
    with gate.snapshot() as snapshot:
        if snapshot.version == 0:
            return 0, None
        totals = snapshot.table("totals").get("all")
        latest = {key: (row["seq"], row["n"]) for key, row in snapshot.table("latest").scan()}
        return snapshot.version, Content(Sums(totals["count"], totals["n"], totals["last"]), latest)


class Readers:
    """Both readers, their looks, and the answers that were wrong."""

    def __init__(self, connect: Callable[[], Gate], generator: Generator) -> None:
        self.connect, self._generator = connect, generator
        self.looks: dict[str, list[Look]] = {"long-lived": [], "fresh": []}
        self.wrong: list[str] = []
        self.sums_follow_input = True
        """Whether a version's sums are those of the input's beginning; a restore ends that."""
        self._end, self._reconnect = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._newest = 0
        self._threads = [
            threading.Thread(target=self._long_lived, daemon=True),
            threading.Thread(target=self._fresh, daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(30)

    def reconnect(self) -> None:
        """Let the long-lived reader connect again, as its error may propose; older versions are accepted."""
        with self._lock:
            self._newest = 0
        self._reconnect.set()

    @property
    def newest(self) -> int:
        """The newest version that either reader has seen."""
        return self._newest

    @property
    def reconnecting(self) -> bool:
        return self._reconnect.is_set()

    # -- what became of it ------------------------------------------------------------------------

    def answered_since(self, moment: float) -> int:
        """Return the smallest ``last`` of both readers' newest answers since then; -1 without them."""
        newest = []
        for looks in self.looks.values():
            answers = [look for look in looks[-20:] if not look.error and look.began >= moment]
            newest.append(answers[-1].last if answers else -1)
        return min(newest)

    def errors_since(self, moment: float) -> list[tuple[float, str, str]]:
        return sorted(
            (look.ended, f"{name} reader", look.error)
            for name, looks in self.looks.items()
            for look in list(looks)
            if look.error and look.ended >= moment
        )

    def seconds_without_answers(self, moment: float) -> dict[str, float]:
        """Return each reader's time without answers since ``moment``."""
        return {name: round(_gaps(looks, moment), 1) for name, looks in self.looks.items()}

    # -- the threads --------------------------------------------------------------------------------

    def _long_lived(self) -> None:
        gate: Gate | None = None
        while not self._end.wait(EVERY_S):
            if self._reconnect.is_set() and gate is not None:
                self._reconnect.clear()
                gate.close()
                gate = None
            began, newest = time.monotonic(), self._newest
            try:
                gate = gate or self.connect()
                self._noted("long-lived", began, newest, *content_of(gate))
            except Exception as error:  # noqa: BLE001 - it is counted
                self._failed("long-lived", began, error)
        if gate is not None:
            gate.close()

    def _fresh(self) -> None:
        while not self._end.wait(EVERY_S):
            began, newest = time.monotonic(), self._newest
            try:
                with self.connect() as gate:
                    self._noted("fresh", began, newest, *content_of(gate))
            except Exception as error:  # noqa: BLE001 - it is counted
                self._failed("fresh", began, error)

    def _failed(self, name: str, began: float, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if not isinstance(error, tidegate.TidegateError):
            self.wrong.append(f"{name} reader: not an error of tidegate: {text[:300]}")
        self.looks[name].append(Look(began, time.monotonic(), error=text))

    def _noted(self, name: str, began: float, newest: int, version: int, content: Content | None) -> None:
        last = -1 if content is None else content.totals.last
        self.looks[name].append(Look(began, time.monotonic(), version, last))
        with self._lock:
            self._newest = max(self._newest, version)
        if version < newest:
            self.wrong.append(f"{name} reader: version {version} was answered after {newest}")
        if content is not None:
            self._check(f"{name} reader, version {version}", content)

    def _check(self, who: str, content: Content) -> None:
        totals = content.totals
        newest = max((seq for seq, _ in content.latest.values()), default=-1)
        if newest != totals.last:
            self.wrong.append(f"{who}: torn: totals end at row {totals.last}, latest at {newest}")
        expected = self._generator.expected(totals.last)
        if self.sums_follow_input and totals != expected:
            self.wrong.append(f"{who}: sums are {totals}, the input gives {expected}")


def _gaps(looks: list[Look], moment: float) -> float:
    ends = [look.ended for look in looks if not look.error]
    ends.append(looks[-1].ended if looks and looks[-1].error else (ends or [moment])[-1])
    spans = [after - max(before, moment) for before, after in itertools.pairwise(ends) if after > moment]
    return sum((span - EVERY_S for span in spans if span > GAP_S), 0.0)


def gate_of(url: str, namespace: str, options: dict[str, Any], successors: list[str]) -> Gate:
    return tidegate.connect(url, namespace=namespace, options=options, follow_redirects=successors)
