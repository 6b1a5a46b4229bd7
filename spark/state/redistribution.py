"""Local state on rescale: the items of old instances with which a new instance begins. Pure.

A step ran at parallelism ``before``, each of its instances left a list of items, and now it runs at
``after``. There are three ways to redistribute them:

- ``split``: all lists, concatenated in the order of the instances, are cut into ``after`` parts
  whose sizes are within one of each other, the larger ones first (Flink's even split)
- ``union``: every new instance begins with all of them
- functions: instances whose indexes are equal modulo the smaller parallelism are relatives; a new
  one gets a share of its origin's list, and a removed one's list is merged into the remaining one's
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

SPLIT, UNION = "split", "union"

Split: TypeAlias = Callable[[list[Any], int], Sequence[list[Any]]]
"""``split(state, n)``: n lists, the first for the instance that had the state, then its new relatives'."""
Merge: TypeAlias = Callable[[list[list[Any]]], list[Any]]
"""``merge(states)``: one list, of the state of the remaining instance and those of its removed relatives."""


class Run(NamedTuple):
    """Items ``first`` to ``end`` (not included) of one old instance."""

    instance: int
    first: int
    end: int


def all_items(counts: Sequence[int]) -> list[Run]:
    """Return every item of every instance, in order: each new instance's share by union."""
    return [Run(instance, 0, count) for instance, count in enumerate(counts) if count]


def even_share(counts: Sequence[int], index: int, after: int) -> list[Run]:
    """Return the share of instance ``index`` of ``after`` by the even split.

    >>> even_share([2, 2, 1], 0, 2)
    [Run(instance=0, first=0, end=2), Run(instance=1, first=0, end=1)]
    """
    size, larger = divmod(sum(counts), after)
    first = index * size + min(index, larger)
    end = first + size + (1 if index < larger else 0)
    runs, before = [], 0
    for instance, count in enumerate(counts):
        run = Run(instance, max(first - before, 0), min(end - before, count))
        if run.first < run.end:
            runs.append(run)
        before += count
    return runs


def relatives(index: int, before: int, after: int) -> range:
    """Return the instances of the larger parallelism that share one instance of the smaller one,
    itself first.

    >>> list(relatives(1, 2, 5)), list(relatives(1, 5, 2))
    ([1, 3], [1, 3])
    """
    fewer = min(before, after)
    return range(index % fewer, max(before, after), fewer)
