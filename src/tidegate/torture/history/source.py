"""Lines of a history read again by their place, and the contents of batches."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from tidegate.errors import ConfigError, CorruptError
from tidegate.torture.history import events
from tidegate.torture.history.files import read_at
from tidegate.torture.history.offers import Offer, Place

if TYPE_CHECKING:
    from typing_extensions import Self

Recompute = Callable[[events.Offered], list[events.Change]]
"""Computes the changes of a batch that was offered by its recipe."""

MOST_OPEN = 64


class Source:
    """The files of a folder, at most ``MOST_OPEN`` open at once. A context manager."""

    def __init__(self, folder: Path, recompute: Recompute | None) -> None:
        self._folder, self._recompute = folder, recompute
        self._files: OrderedDict[str, BinaryIO] = OrderedDict()

    def event(self, place: Place) -> events.AnyEvent:
        """Read the event at a place."""
        file = self._files.get(place.file)
        if file is None:
            file = self._files[place.file] = (self._folder / place.file).open("rb")
            if len(self._files) > MOST_OPEN:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(place.file)
        return read_at(file, place.offset, str(place))

    def changes(self, offer: Offer) -> list[events.Change]:
        """Return the changes of an offer.

        ConfigError: it has a recipe, and there is no function that computes it.
        """
        event = self.event(offer.place)
        if not isinstance(event, events.Offered):
            raise CorruptError(f"{offer.place} changed while it was read")
        if not event.recipe:
            return event.changes
        if self._recompute is None:
            raise ConfigError(f"{offer.place} offers a recipe: check needs the workload that follows it")
        return self._recompute(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:
            for file in self._files.values():
                stack.enter_context(file)
