"""The interface of baselines: writers and readers without any guarantee, as one would write them by hand.

Each kind of store has its own, in a file named after it.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidegate.bench.plan import Plan
from tidegate.errors import ConfigError

Write = Callable[[Any], None]
"""Writes all rows (``key``, ``value``, strings) of a DataFrame; returns when the server has them."""

KEY = "key-{:09d}"
"""The keys of all batches, by number."""


@dataclasses.dataclass(frozen=True, slots=True)
class Baselines:
    """Writers by name, the plainest first; readers of the last one's rows; a function that removes all.

    ``get`` reads one key, ``get_many`` several at once. Both return the number of keys found.
    """

    writers: Mapping[str, Write]
    reader: str
    get: Callable[[str], int]
    get_many: Callable[[Sequence[str]], int]
    remove: Callable[[], None]
    left_out: tuple[str, ...] = ()


def baselines_for(plan: Plan) -> Baselines:
    """Make the baselines for the plan's store. ConfigError: there are none for such a store."""
    kind = plan.store.partition(":")[0].partition("+")[0].removesuffix("s")
    kinds = ("redis", "sqlite", "cassandra")
    name = next((each for each in kinds if each.removesuffix("s") == kind), None)
    if name is None:
        msg = f"there is nothing to compare a store {kind}:// with: use {', '.join(kinds)}"
        raise ConfigError(msg)
    module = importlib.import_module(f"tidegate.bench.baselines.{name}")
    made: Baselines = module.baselines(plan)
    return made
