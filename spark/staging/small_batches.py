"""The prediction of which batches the driver may stage itself: from those before, bounded in any case.

A batch is **predicted small** if the one before it was: at most ``driver_stage_max_rows`` rows and
``driver_stage_max_bytes`` bytes of input, whichever way it was staged. The first batch has no
predecessor, and may be a backlog: the job stages it. Only a batch that is predicted small is
collected, with a quota of rows per partition and a limit of bytes per cell, so the collected amount is
bounded in any case. Few rows may have long cells (``FEW_ROWS``, ``CELL_BYTES``); more have shorter ones, so
that the bound is the same. A batch that was **cut** there is dropped whole, and the job stages it: that is
the one wasted job, and the next batches are not predicted small. After each cut twice as many consecutive
small batches are required before the next is collected, up to ``WAIT_MAX``. ``WAIT_MAX`` successes reset
that number. The next one is collected with the other of the two limits.

No pyspark is imported here.
"""

from __future__ import annotations

FEW_ROWS = 5_000
CELL_BYTES = 16 * 1024
"""A longer key, value or order text is cut, where few rows are expected, and so its batch counts as cut."""
SPREAD = 4
"""All partitions together may return this multiple of a small batch's rows: they are never equally full."""
WAIT_MAX = 64


class SmallBatchPredictor:
    """The prediction for a sink's next batch. One per sink; not shared between threads."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._last_was_small = self._was_cut = self._many = False
        self._wait, self._penalty, self._went_well = 0, 1, 0
        self._partitions = SPREAD

    @property
    def predicts_small(self) -> bool:
        """Whether the next batch should be collected."""
        return self._rows_max > 0 and self._last_was_small and not self._wait

    def quota(self) -> int:
        """Return the most rows that each partition may return.

        It is the same for similar numbers of partitions: it is part of a plan, and Spark then
        reuses its compiled code.
        """
        return max(1, SPREAD * self._limit // self._partitions)

    @property
    def cell_bytes(self) -> int:
        """The most bytes of a cell."""
        return CELL_BYTES * FEW_ROWS // max(self._limit, FEW_ROWS)

    @property
    def _limit(self) -> int:
        return self._rows_max if self._many else min(self._rows_max, FEW_ROWS)

    def fits(self, partitions: int) -> bool:
        """Return whether the quota fits this number of partitions, and adapt it if not."""
        fits = partitions <= self._partitions
        while self._partitions < partitions:
            self._partitions *= 2
        return fits

    def staged(self, rows: int, size: int) -> None:
        """Record a staged batch by the rows and bytes of its input."""
        collected, was_cut, self._was_cut = self.predicts_small, self._was_cut, False
        self._last_was_small = rows <= self._rows_max and size <= self._bytes_max
        self._many |= self._last_was_small and rows > FEW_ROWS and not was_cut
        if was_cut or not self._last_was_small:
            return
        if not collected:
            self._wait = max(0, self._wait - 1)
        else:
            self._went_well += 1
            if self._went_well >= WAIT_MAX:
                self._penalty, self._went_well = 1, 0

    def overflowed(self) -> None:
        """Record that a batch predicted small was not; the job stages it now."""
        self._wait, self._went_well, self._was_cut = self._penalty, 0, True
        self._many = not self._many and self._rows_max > FEW_ROWS
        self._penalty = min(2 * self._penalty, WAIT_MAX)
