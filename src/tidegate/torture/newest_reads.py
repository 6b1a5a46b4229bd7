"""Reads at the newest version say by what they show how new it was; who begins later sees no older one."""

from __future__ import annotations

import dataclasses

from tidegate.torture.account import Account, LooseRead
from tidegate.torture.answers import Answer
from tidegate.torture.steps import Steps


@dataclasses.dataclass
class Fit:
    """A read, and the versions among which it is right: ``lowest`` to ``highest``, -1 while there is none.

    ``newest``: the last one that it can have been of.
    """

    read: LooseRead
    answer: Answer
    newest: int
    lowest: int = -1
    highest: int = -1

    def at(self, version: int) -> None:
        """It is right at this version, which is above all before."""
        self.lowest = version if self.lowest < 0 else self.lowest
        self.highest = version


@dataclasses.dataclass(frozen=True, slots=True)
class _Shown:
    """What is kept of a fit."""

    read: LooseRead
    lowest: int
    highest: int


class NewestReads:
    """The reads of one namespace that were right at some version."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._shown: list[_Shown] = []

    def add(self, fit: Fit) -> None:
        self._shown.append(_Shown(fit.read, fit.lowest, fit.highest))

    def check(self) -> None:
        """Who begins behind a read sees the version that it showed, or a later one (I9)."""
        proven: dict[str, Steps] = {}
        for shown in sorted(self._shown, key=lambda one: one.read.at):
            if shown.read.at > self._account.forgot_at:
                steps = proven.setdefault(shown.read.store, Steps())
                steps.tell(shown.read.at, shown.lowest, str(shown.read.place))
        for store, steps in proven.items():
            for shown in self._shown:
                if shown.read.store == store:
                    self._compare(steps, shown.read.began, shown.highest, str(shown.read.place))
            for look in self._account.looks.get(store, ()):
                self._compare(steps, look.began, look.version, look.line)

    def _compare(self, steps: Steps, began: int, version: int, line: str) -> None:
        least, by = steps.before(began)
        if version < least:
            self._account.find(
                "regressed",
                "the visible version went back behind one that a read at the newest version had shown",
                f"version {least} or later, whose content had been read before this began",
                f"version {version}",
                by,
                line,
            )
