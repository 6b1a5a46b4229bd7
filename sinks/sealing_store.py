"""An optional power of a store: rows and their seal in one flight.

A seal counts what is there and refuses what is not whole, so it may be sent behind the rows without
waiting for the store to take them: rows that did not arrive show in the count.
"""

from __future__ import annotations

import abc

from tidegate.sinks.key_sets import KeySets
from tidegate.sinks.store import Counts, Stamp, Store
from tidegate.wal.frame import Chunk


class SealingStore(Store):
    """A store with that power."""

    @abc.abstractmethod
    def apply_and_seal(
        self, stamp: Stamp, counts: Counts, *chunks: Chunk, sets: KeySets | None = None
    ) -> None:
        """``apply`` these chunks, the last of a work, then ``seal`` its key groups. On return both are
        durable, as behind ``seal``; may be repeated. ``sets``: the keys of all chunks of the work, these
        too, where they are known. Errors as for both; IncompleteError: apply again, all chunks of the work.
        """
