"""Which batches the driver may take to itself: foretold from those before, bounded whatever comes.

A batch is **expected to be small** if the one before it was: at most ``driver_stage_max_rows`` rows
and ``driver_stage_max_bytes`` bytes as they were given, by whichever way it was staged. Of the first
batch nothing is known, and it may be a backlog: it goes by the job. Only a batch that is expected to
be small is collected, and of each partition at most a quota of rows, of each row at most
``CELL_BYTES``: so there is a bound whatever comes. A batch that was **cut** there is dropped whole, and
the job stages it: that is the one wasted job, and the next batches are not expected to be small. Each
time that happens twice as many small batches in a row are waited for before the next is collected, up
to ``WAIT_MAX``, until as many went well. No pyspark is imported here.
"""

from __future__ import annotations

CELL_BYTES = 16 * 1024
"""A longer key, value or text to order by is cut, and so is its batch."""
SPREAD = 4
"""All partitions together may give so many times the rows of a small batch: they are never equally full."""
WAIT_MAX = 64


class SmallBatchPredictor:
    """What is expected of a sink's next batch. One per sink; not shared between threads."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._last_was_small = self._was_cut = False
        self._wait, self._penalty, self._went_well = 0, 1, 0
        self._partitions = SPREAD

    @property
    def expected(self) -> bool:
        """Whether the next batch should be collected."""
        return self._rows_max > 0 and self._last_was_small and not self._wait

    def quota(self) -> int:
        """So many rows each partition may give; the same for about as many partitions: it stands in a plan,
        and code that Spark has compiled is used again.
        """
        return max(1, SPREAD * self._rows_max // self._partitions)

    def fits(self, partitions: int) -> bool:
        """Whether the quota was made for so many partitions; else it is, from now on."""
        fits = partitions <= self._partitions
        while self._partitions < partitions:
            self._partitions *= 2
        return fits

    def staged(self, rows: int, size: int) -> None:
        """A batch was staged, of so many rows and bytes as they were given."""
        collected, was_cut, self._was_cut = self.expected, self._was_cut, False
        self._last_was_small = rows <= self._rows_max and size <= self._bytes_max
        if was_cut or not self._last_was_small:
            return
        if not collected:
            self._wait = max(0, self._wait - 1)
        else:
            self._went_well += 1
            if self._went_well >= WAIT_MAX:
                self._penalty, self._went_well = 1, 0

    def cut(self) -> None:
        """A batch that was expected to be small was not; the job stages it now."""
        self._wait, self._went_well, self._was_cut = self._penalty, 0, True
        self._penalty = min(2 * self._penalty, WAIT_MAX)
