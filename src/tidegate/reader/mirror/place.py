"""The places of a mirror's content: this process's memory, or a file. This is their common interface."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tidegate.reader.mirror.view import At, MirrorView
from tidegate.reader.table import TableView


class Draft(Protocol):
    """The next content while it is made; nobody reads it before ``finish``. Tables that no call names are
    dropped.
    """

    @property
    def size(self) -> int:
        """The bytes that the content takes so far, as ``MirrorView.size``."""
        ...

    def stride_of(self, table: str) -> int | None:
        """Return the stride of a table of the present content; None: it has none of this name."""
        ...

    def keep(self, view: TableView) -> None:
        """Take the table over as it is; ``view`` is that of the next version."""
        ...

    def replace(self, view: TableView, pages: Iterable[tuple[int, Any]]) -> None:
        """Fill the table with all rows of these batches (key, value), each with its key group."""
        ...

    def change(self, view: TableView, batches: Iterable[Any]) -> None:
        """Take the table over with these differences, batches of ``sinks.diff.DIFFERENCES``."""
        ...

    def finish(self, at: At) -> None:
        """Make it the present content, as a whole."""
        ...


class Place(Protocol):
    """The content of one mirror, for one thread that changes it. Views may be read by all threads."""

    @property
    def at(self) -> At | None:
        """The version of the present content; None: there is none yet."""
        ...

    def open(self) -> float | None:
        """Open the place. Return the age in seconds of the content that it has; None: it has none.

        The age counts from the time when the content was last known to be the newest version's. Raises:
        ConfigError: it is the place of something else.
        """
        ...

    def draft(self) -> AbstractContextManager[Draft]:
        """Begin the next content; without ``finish`` within the block nothing changes."""
        ...

    def view(self) -> MirrorView:
        """Return the present content."""
        ...

    def checked(self) -> None:
        """Note that the present content is the newest version's."""
        ...

    def close(self) -> None:
        """Release the place. Repeatable."""
        ...
