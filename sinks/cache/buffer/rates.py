"""The request rate of each key group on a host: one file for all its processes.

Pieces of state come and go with every batch, key groups stay: so a new piece of a group that is
asked for often is known to be hot. A damaged or missing file is no rates.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tidegate.sinks.cache.buffer.usage import locked

Requests: TypeAlias = npt.NDArray[np.int64]
"""Requests by key group; groups beyond its end have none."""
_BATCH = struct.Struct("<q")


class Rates:
    """Requests per batch by key group, exponentially weighted, as of a batch."""

    def __init__(self, batch: int = 0, by_group: Any = ()) -> None:
        self.batch = batch
        self.by_group: npt.NDArray[np.float64] = np.asarray(by_group, np.float64)

    def mean(self, first: int, end: int) -> float:
        """Return the mean rate of the key groups in [first, end)."""
        return float(self.by_group[first:end].sum()) / max(1, end - first)

    def at(self, batch: int, new_share: float) -> Rates:
        """Return the rates as of a batch: they decay without requests. An earlier batch changes nothing."""
        passed = max(0, batch - self.batch)
        return Rates(max(batch, self.batch), self.by_group * (1 - new_share) ** passed)

    def after(self, requests: Requests, batch: int, new_share: float) -> Rates:
        """Return the rates after more requests in a batch."""
        rates = self.at(batch, new_share)
        grown = np.zeros(max(len(rates.by_group), len(requests)))
        grown[: len(rates.by_group)] += rates.by_group
        grown[: len(requests)] += new_share * requests
        return Rates(rates.batch, grown)


class RatesFile:
    """The rates of a host in one file. Raises: OSError from all methods, its folder cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Rates:
        try:
            return _parse(self._path.read_bytes())
        except FileNotFoundError:
            return Rates()

    def add(self, requests: Requests, batch: int, new_share: float) -> None:
        """Add the requests of one task in a batch."""
        with locked(self._path) as fd:
            rates = _parse(os.pread(fd, os.fstat(fd).st_size, 0)).after(requests, batch, new_share)
            content = _BATCH.pack(rates.batch) + rates.by_group.tobytes()
            os.ftruncate(fd, len(content))  # a damaged one may be longer
            os.pwrite(fd, content, 0)


def _parse(content: bytes) -> Rates:
    if len(content) % 8 or not content:
        return Rates()
    by_group = np.frombuffer(content, np.float64, offset=_BATCH.size)
    if not (np.isfinite(by_group) & (by_group >= 0)).all():
        return Rates()
    return Rates(_BATCH.unpack_from(content)[0], by_group)
