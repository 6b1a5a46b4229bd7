"""The loads and imports of a namespace, each of which may be decided only once."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator


class Tokens(Collection[str]):
    """``Folded.once`` of successive states: their tokens are in one dictionary, each has a count of its own.

    A state looks up a load, and adds one, in the same time however many there are. Equal to a tuple of
    the same tokens.
    """

    __slots__ = ("_count", "_places")

    def __init__(self, places: dict[str, int], count: int) -> None:
        self._places, self._count = places, count

    @classmethod
    def of(cls, tokens: Collection[str]) -> Tokens:
        """Return these tokens with an index."""
        if isinstance(tokens, Tokens):
            return tokens
        return cls({token: place for place, token in enumerate(tokens)}, len(tokens))

    def followed_by(self, token: str) -> Tokens:
        """Return these tokens and one more, which they do not contain."""
        # A second state that follows this one gets a dictionary of its own.
        if len(self._places) > self._count:
            return Tokens.of(tuple(self)).followed_by(token)
        places = self._places
        places[token] = self._count
        return Tokens(places, self._count + 1)

    def __contains__(self, token: object) -> bool:
        place = self._places.get(token) if isinstance(token, str) else None
        return place is not None and place < self._count

    def __iter__(self) -> Iterator[str]:
        return itertools.islice(self._places, self._count)

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | Tokens) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))
