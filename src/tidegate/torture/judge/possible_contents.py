"""Possible contents of the tables at a version: one, or several while an outcome is unknown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tidegate.torture.history.events import Change
from tidegate.torture.history.offers import Offer, Origin
from tidegate.torture.judge.candidates import Choice
from tidegate.torture.judge.tables import Tables

MOST = 64
"""The number of contents followed in parallel; with more the rest of a namespace is left unjudged."""


Chosen = tuple["Chosen", int, Offer] | None
"""A chain of choices: the earlier ones, a version, the offer that it is of."""


@dataclasses.dataclass
class CandidateState:
    """One combination of the unknown outcomes."""

    tables: Tables
    taken: tuple[Origin, ...] = ()
    """Batches that are a version here, without a known one."""
    chosen: Chosen = None
    """The choices for the versions that had several."""

    def allows(self, choice: Choice) -> bool:
        """Return whether neither the batch nor a later one of its lineage has a version here yet."""
        return choice.known or not any(_bars(other, choice.origin) for other in self.taken)

    def offers(self) -> dict[int, Offer]:
        """Map the versions with several choices to their offers here."""
        offers: dict[int, Offer] = {}
        chain = self.chosen
        while chain is not None:
            chain, version, offer = chain
            offers[version] = offer
        return offers


def _bars(taken: Origin, origin: Origin) -> bool:
    same_line = not (taken.token or origin.token) and taken.lineage == origin.lineage
    return taken == origin or (same_line and taken.batch >= origin.batch)


def step(
    states: list[CandidateState],
    version: int,
    choices: list[Choice],
    changes_of: Callable[[Offer], list[Change]],
) -> list[CandidateState]:
    """Advance the states to the next version. None is left when no choice is possible in any."""
    contents = [changes_of(choice.offer) for choice in choices]
    stepped: list[CandidateState] = []
    for state in states:
        allowed = [index for index, choice in enumerate(choices) if state.allows(choice)]
        for index in allowed:
            tables = state.tables if index == allowed[-1] else state.tables.copy()
            tables.apply(contents[index], version)
            choice = choices[index]
            taken = state.taken if choice.known else (*state.taken, choice.origin)
            chosen = state.chosen if len(choices) == 1 else (state.chosen, version, choice.offer)
            stepped.append(CandidateState(tables, taken, chosen))
    return _different(stepped) if len(stepped) > 1 else stepped


def _different(states: list[CandidateState]) -> list[CandidateState]:
    """Keep one of each content and of each set of batches taken."""
    by_content = {(state.tables.fingerprint(), frozenset(state.taken)): state for state in reversed(states)}
    return list(by_content.values())[::-1]
