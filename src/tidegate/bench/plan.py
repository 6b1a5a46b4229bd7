"""The plan of a comparison: its servers, its numbers of rows, its parts."""

from __future__ import annotations

import dataclasses
from typing import Any

from tidegate.errors import ConfigError
from tidegate.options.endpoints import Endpoints

PARTS = ("throughput", "latency", "reads", "recovery")
TABLE = "t"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One comparison, against one log and one store.

    Its namespaces and the baselines' rows are named ``mark``.

    ``rows`` a batch, over ``keys`` keys (0: all distinct), ``rounds`` times after one to warm up;
    ``small_batches`` of ``small_rows``; ``reads`` of one key each, by every reader. A stream that takes
    longer than ``deadline_s`` is an error.

    ConfigError: a part or a number does not fit.
    """

    wal: str = dataclasses.field(repr=False)
    store: str = dataclasses.field(repr=False)
    mark: str
    parts: tuple[str, ...] = PARTS
    rows: int = 200_000
    keys: int = 0
    rounds: int = 3
    small_rows: int = 1_000
    small_batches: int = 50
    reads: int = 2_000
    master: str = "local[2]"
    deadline_s: float = 600.0
    allow_unsafe: bool = False
    wal_options: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    store_options: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.parts) - set(PARTS)):
            msg = f"there is no part {', '.join(unknown)}: the parts are {', '.join(PARTS)}"
            raise ConfigError(msg)
        for name in ("rows", "rounds", "small_rows", "small_batches", "reads"):
            if getattr(self, name) < 1:
                msg = f"{name} is {getattr(self, name)}; it must be at least 1"
                raise ConfigError(msg)
        if self.keys < 0 or self.keys > self.rows:
            msg = f"keys is {self.keys}; it must be 1 to {self.rows:,} (rows), or 0: one for each row"
            raise ConfigError(msg)

    @property
    def distinct(self) -> int:
        """The number of keys of a batch."""
        return self.keys or self.rows

    def endpoints(self, part: str) -> Endpoints:
        """Return the namespace of one part."""
        return Endpoints(f"{self.mark}-{part}", self.wal, self.store, self.wal_options, self.store_options)
