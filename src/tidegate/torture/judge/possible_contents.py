"""What the tables can hold at a version: one content, or several while an outcome is unknown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tidegate.torture.history.events import Change
from tidegate.torture.history.offers import Offer, Origin
from tidegate.torture.judge.candidates import Choice
from tidegate.torture.judge.tables import Tables

MOST = 64
"""Contents that are followed beside each other; with more the rest of a namespace is left unjudged."""


Chosen = tuple["Chosen", int, Offer] | None
"""A chain of choices: the ones before, a version, the offer that it is of."""


@dataclasses.dataclass
class World:
    """One way in which all outcomes that are unknown may have come out."""

    tables: Tables
    taken: tuple[Origin, ...] = ()
    """Batches without a known version that are one here."""
    chosen: Chosen = None
    """For the versions that had several choices."""

    def allows(self, choice: Choice) -> bool:
        """The batch has no version here yet, and no later one of its lineage has."""
        return choice.known or not any(_bars(other, choice.origin) for other in self.taken)

    def offers(self) -> dict[int, Offer]:
        """The offers that versions with several choices are of here."""
        found: dict[int, Offer] = {}
        chain = self.chosen
        while chain is not None:
            chain, version, offer = chain
            found[version] = offer
        return found


def _bars(taken: Origin, origin: Origin) -> bool:
    same_line = not (taken.token or origin.token) and taken.lineage == origin.lineage
    return taken == origin or (same_line and taken.batch >= origin.batch)


def step(
    worlds: list[World], version: int, choices: list[Choice], changes_of: Callable[[Offer], list[Change]]
) -> list[World]:
    """The worlds at the next version, of which there are none when no choice is possible in any."""
    contents = [changes_of(choice.offer) for choice in choices]
    stepped: list[World] = []
    for world in worlds:
        allowed = [at for at, choice in enumerate(choices) if world.allows(choice)]
        for at in allowed:
            tables = world.tables if at == allowed[-1] else world.tables.copy()
            tables.apply(contents[at], version)
            choice = choices[at]
            taken = world.taken if choice.known else (*world.taken, choice.origin)
            chosen = world.chosen if len(choices) == 1 else (world.chosen, version, choice.offer)
            stepped.append(World(tables, taken, chosen))
    return _different(stepped) if len(stepped) > 1 else stepped


def _different(worlds: list[World]) -> list[World]:
    """One of each content and of each set of batches taken."""
    by_content = {(world.tables.fingerprint(), frozenset(world.taken)): world for world in reversed(worlds)}
    return list(by_content.values())[::-1]
