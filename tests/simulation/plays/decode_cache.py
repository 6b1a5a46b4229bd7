"""A cache of decoded records, manifests and frames, for one process of the simulation.

A schedule's actors read the same few of them dozens of times. The decoded form is a pure function of the
bytes and of the other arguments, and the objects are immutable.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from tidegate.committers.apply import apply
from tidegate.wal import catch_up, fold

ANSWERS_MAX = 500
"""The size of each function's cache; a schedule has some dozens of entries."""

PURE: tuple[tuple[ModuleType, str], ...] = (
    (fold, "decode_record"),
    (catch_up, "decode_manifest"),
    (apply, "decode_frame"),
)
"""The modules in which production calls them."""


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Cache the answers of these functions in this process; errors are not cached."""
    plain: list[Callable[..., Any]] = [getattr(module, name) for module, name in PURE]
    for (module, name), function in zip(PURE, plain, strict=True):
        setattr(module, name, functools.lru_cache(ANSWERS_MAX)(function))
    try:
        yield
    finally:
        for (module, name), function in zip(PURE, plain, strict=True):
            setattr(module, name, function)
