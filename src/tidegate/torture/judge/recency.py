"""Recency of reads at the newest version: what they show bounds the versions that later reads may see."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tidegate.torture.history.watermark import Watermark
from tidegate.torture.judge.answers import Answer
from tidegate.torture.judge.timeline import LooseRead, Timeline


@dataclasses.dataclass(slots=True)
class Shown:
    """A read, and the range of versions at which it is right; -1 while there is none."""

    read: LooseRead
    lowest: int = -1
    highest: int = -1

    def at(self, version: int) -> None:
        """Note that the read is right at this version, which is above all earlier ones."""
        self.lowest = version if self.lowest < 0 else self.lowest
        self.highest = version


@dataclasses.dataclass(slots=True)
class Fit:
    """A read that is still compared. ``newest``: the last version that it can have been of."""

    shown: Shown
    answer: Answer
    newest: int


class NewestReads:
    """The reads at the newest version of one namespace."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._shown: list[Shown] = []

    def add(self, shown: Shown) -> None:
        self._shown.append(shown)

    def since(self, at: int) -> Iterator[Shown]:
        """Yield those that ended at that time or later."""
        return (shown for shown in self._shown if shown.read.at >= at)

    def check(self) -> None:
        """Check that operations after a read see the version that it showed, or a later one (I9)."""
        right = [shown for shown in self._shown if shown.highest >= 0]
        proven: dict[str, Watermark] = {}
        for shown in sorted(right, key=lambda shown: shown.read.at):
            if shown.read.at > self._timeline.forgot_at:
                steps = proven.setdefault(shown.read.store, Watermark())
                steps.add(shown.read.at, shown.lowest, str(shown.read.place))
        for store, steps in proven.items():
            for shown in right:
                if shown.read.store == store:
                    self._compare(steps, shown.read.began, shown.highest, str(shown.read.place))
            for look in self._timeline.looks.get(store, ()):
                self._compare(steps, look.began, look.version, look.line)

    def _compare(self, steps: Watermark, began: int, version: int, line: str) -> None:
        least, by = steps.before(began)
        if version < least:
            self._timeline.find(
                "regressed",
                "the visible version went back, below one that a read at the newest version had shown",
                f"version {least} or later, whose content had been read before this began",
                f"version {version}",
                by,
                line,
            )
