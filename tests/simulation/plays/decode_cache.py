"""What production decodes again and again in a simulation is decoded once.

A schedule's actors read the same few records, manifests and frames dozens of times. What those bytes say is
a pure function of them and of what is asked with them: the same objects, which nobody can change.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from tidegate.committers.apply import apply
from tidegate.wal import fold

ANSWERS_MAX = 500
"""Of each function; a schedule has some dozens."""

PURE: tuple[tuple[ModuleType, str], ...] = (
    (fold, "decode_record"),
    (apply, "decode_manifest"),
    (apply, "decode_frame"),
)
"""Where production calls them."""


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Answer these calls of this process from memory where they were asked before; errors are not kept."""
    plain: list[Callable[..., Any]] = [getattr(module, name) for module, name in PURE]
    for (module, name), function in zip(PURE, plain, strict=True):
        setattr(module, name, functools.lru_cache(ANSWERS_MAX)(function))
    try:
        yield
    finally:
        for (module, name), function in zip(PURE, plain, strict=True):
            setattr(module, name, function)
